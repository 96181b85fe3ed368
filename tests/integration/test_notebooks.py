"""Every committed notebook runs from top to bottom here, and was committed with the outputs of such a run.

Four of them look at the same installation, which is made once. Two get it as a person without tables does, two get it
by address, as deployed tables.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from deltalake import DeltaTable
from nbclient import NotebookClient
from support.charts import JUDGE, WATCH

from broker_edge import Broker
from broker_edge.errors import SettingsError
from pipelines.analysis import Tables, chart
from pipelines.demo import take_account
from pipelines.demo.account import read_acked
from pipelines.demo.layout import Layout
from pipelines.demo.notebook_place import open_place, remove_sample
from pipelines.demo.sample import DONE, ROLLOUTS, Sample, SampleError, make_sample
from pipelines.demo.stored_day import Fleet
from pipelines.spark.jars import default_folder
from pipelines.spark.java import SHORT_RUN_JVM

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_S = 800
OWN_DATA = ("01_quickstart", "02_replay", "03_ota")
# The first of them runs a whole demo, which test_demo.py does each time: `make test-long` runs it as a notebook.
EXECUTED = OWN_DATA if os.environ.get("HEADWATER_LONG_NOTEBOOKS") else OWN_DATA[1:]


@dataclass(frozen=True, slots=True)
class Made:
    folder: Path
    sample: Sample

    @property
    def tables(self) -> Tables:
        return Tables(str(Layout(self.folder).tables))

    def count(self, query: str) -> int:
        ((found,),) = self.tables.duckdb().sql(query).fetchall()
        return int(found)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """The installation that the first cell of four notebooks makes."""
    folder = tmp_path_factory.mktemp("notebooks") / "sample"
    with pytest.MonkeyPatch.context() as patch:
        _fast_start(patch)
        place = open_place({"SAMPLE_FOLDER": str(folder)})
    assert place.sample == folder
    yield Made(folder, make_sample(folder))
    remove_sample({"SAMPLE_FOLDER": str(folder)})
    assert not folder.exists()


def _fast_start(patch: pytest.MonkeyPatch) -> None:
    # For jobs that run for seconds, the optimizing compiler costs more than it saves.
    patch.setenv("JAVA_TOOL_OPTIONS", SHORT_RUN_JVM)
    patch.setenv("HEADWATER_JARS", str(default_folder()))
    patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


def executed(path: Path, folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """The notebook with the outputs of a run in `folder`, and what is wrong with its charts."""
    notebook = nbformat.read(path, as_version=4)
    cells = list(notebook.cells)
    notebook.cells = [nbformat.v4.new_code_cell(WATCH), *cells, nbformat.v4.new_code_cell(JUDGE)]
    # The kernel of the interpreter that runs the tests, whatever kernels are registered on this machine.
    client = NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources={"metadata": {"path": folder}})
    manager = client.create_kernel_manager()
    manager.kernel_spec.argv[0] = sys.executable
    client.execute()
    *_, judged = notebook.cells
    notebook.cells = cells
    return notebook, json.loads(judged.outputs[-1].text)


def run(path: Path, folder: Path) -> Any:
    notebook, charts = executed(path, folder)
    assert all(cell.get("outputs") for cell in notebook.cells if cell.cell_type == "code")
    assert charts["charts"] > 0
    assert charts["missing"] == []
    return notebook


def said(notebook: Any) -> str:
    """The text of all outputs."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= set(OWN_DATA)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXECUTED)
def test_a_notebook_with_its_own_data_runs_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fast_start(monkeypatch)
    for variable in ("QUICKSTART_FOLDER", "REPLAY_FOLDER", "OTA_FOLDER"):
        monkeypatch.setenv(variable, str(tmp_path / "data"))
    run(ROOT / "notebooks" / f"{name}.ipynb", tmp_path)


@pytest.mark.timeout(1200)
def test_the_sample_has_every_acknowledged_record(made: Made) -> None:
    sample, bronze = made.sample, Layout(made.folder).bronze
    account = take_account(bronze, read_acked(made.folder / "acked.csv"), devices=Fleet().ids)
    assert account.missing == 0
    assert sample.live > 100
    assert made.count("select count(*) from bronze_telemetry") >= sample.stored + sample.live
    # Stored readings are of whole quarters of an hour, also those of which half a line came.
    stored = r"""cast(regexp_extract(text, '"ts":([0-9]+)', 1) as bigint) % 900000000 = 0"""
    assert made.count('select count(distinct (log_id, partition, "offset")) from bronze_telemetry') == made.count(
        "select count(*) from bronze_telemetry"
    )
    assert made.count(f"select count(*) from bronze_telemetry_text where {stored}") == sample.stored
    assert made.count("select sum(\"end\" - start) from ingest_gaps where consumer_group = 'telemetry'") == (
        sample.forgotten
    )


@pytest.mark.timeout(1200)
def test_a_day_of_devices_shows_silent_devices_and_holes(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fast_start(monkeypatch)
    monkeypatch.setenv("SAMPLE_FOLDER", str(made.folder))
    text = said(run(ROOT / "notebooks" / "04_fleet_day.ipynb", tmp_path))
    assert made.tables.device_names()[made.sample.never_there] in text
    rows = made.count("select count(*) from bronze_telemetry")
    assert f"'bronze': {rows}" in text
    # The device that stopped at 15:00, and the one without readings from 02:00 to 05:30.
    assert "14:45" in text
    assert "01:45" in text
    assert "05:30" in text


@pytest.mark.timeout(1200)
def test_the_funnel_of_a_rollout_begins_with_its_targets(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fast_start(monkeypatch)
    monkeypatch.setenv("TABLES", made.tables.root)
    text = said(run(ROOT / "notebooks" / "05_rollouts.ipynb", tmp_path))
    for version in ROLLOUTS:
        ended = made.count(f"select count(*) from action_targets where action_id = 'controller-{version}'")
        assert ended == made.sample.targets
        good = made.count(
            f"select count(*) from action_targets where action_id = 'controller-{version}' and state = 'SUCCEEDED'"
        )
        assert 0 < good < made.sample.targets
        words = next(line for line in text.splitlines() if line.startswith(f"controller-{version} ")).split()
        assert [int(word) for word in words[1:]][:: len(words) - 2] == [made.sample.targets, good]
    failing = [id_ for id_, fault in made.sample.faults.items() if fault in ("fails", "refuses", "wrong-checksum")]
    assert failing
    names = made.tables.device_names()
    assert all(names[id_] in text for id_ in failing)


@pytest.mark.timeout(1200)
def test_a_refused_row_leads_to_its_record(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fast_start(monkeypatch)
    monkeypatch.setenv("SAMPLE_FOLDER", str(made.folder))
    text = said(run(ROOT / "notebooks" / "06_quality.ipynb", tmp_path))
    assert "sensor_is_connected" in text
    assert "purged" in text
    refused = made.count("select count(*) from quarantine where pipeline = 'silver/telemetry'")
    by_rule = made.count("select sum(failed) from dq_results where source = 'batch' and on_fail = 'quarantine'")
    assert 0 < by_rule < refused


@pytest.mark.timeout(1200)
def test_three_engines_agree_on_tables_by_address(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fast_start(monkeypatch)
    monkeypatch.setenv("TABLES", made.tables.root)
    monkeypatch.setenv("BRONZE", made.tables.address("bronze_telemetry"))
    with Broker(Layout(made.folder).broker) as broker:
        monkeypatch.setenv("BROKER", broker.server)
        notebook = run(ROOT / "notebooks" / "07_deployed_tables.ipynb", tmp_path)
    assert f"'readings': {made.count('select count(*) from silver_telemetry')}" in said(notebook)
    # The comparison can fail: an engine that loses a row is found by the notebook's own cell.
    (cell,) = [cell for cell in notebook.cells if "answers = {" in cell.source]
    given = next(line for line in cell.source.splitlines() if line.startswith("answers = {"))
    row = ("pump-0001", "Harbour north", 1, 1.0, datetime(2026, 1, 1, tzinfo=UTC))
    wrong = {"DuckDB": [row], "Polars": [row], "Spark": []}
    with pytest.raises(AssertionError, match="DuckDB and Spark differ"):
        exec(cell.source.replace(given, ""), {"answers": wrong})


@pytest.mark.timeout(1200)
def test_tables_are_where_the_settings_of_the_jobs_say(made: Made) -> None:
    tables = Tables.of_settings(made.folder / "pipelines.yaml")
    assert tables.address("bronze_telemetry") == str(Layout(made.folder).bronze)
    assert tables.names() == made.tables.names()
    (versions,) = {DeltaTable(tables.address("devices")).version(), made.tables.delta("devices").version()}
    assert versions >= 0


@pytest.mark.timeout(1200)
def test_a_row_was_committed_after_the_broker_had_it(made: Made) -> None:
    rows = made.tables.committed_rows("bronze_telemetry", ["timestamp"])
    assert rows.num_rows == made.count("select count(*) from bronze_telemetry")
    assert all(row["timestamp"] < row["committed_at"] for row in rows.to_pylist())
    newest = made.tables.commits("bronze_telemetry")[-1]
    assert made.tables.commits("bronze_telemetry", since=newest.at)[-1] == newest


def test_a_missing_table_is_named_with_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no table at .*/devices: set TABLES"):
        Tables(str(tmp_path)).delta("devices")
    with pytest.raises(SettingsError, match=r"there are no tables under .*: set TABLES"):
        Tables(str(tmp_path)).duckdb()


def test_tables_by_name_are_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "pipelines.yaml").write_text("silver: {root: null, catalog_schema: main.plant}\n")
    with pytest.raises(SettingsError, match="by name"):
        Tables.of_settings(tmp_path / "pipelines.yaml")


def test_own_tables_without_a_broker_say_what_to_set(tmp_path: Path) -> None:
    place = open_place({"TABLES": str(tmp_path)})
    assert place.job_lines() == []
    assert not place.has_broker
    with pytest.raises(SettingsError, match="set BROKER"), place.client():
        pass


def test_an_unfinished_sample_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "jobs.log").touch()
    with pytest.raises(SampleError, match="holds no finished sample: remove it"):
        make_sample(tmp_path)
    assert not (tmp_path / DONE).exists()


def test_a_chart_without_labels_is_found() -> None:
    """The negative control of the check of all charts."""
    with pytest.raises(ValueError, match="label on both axes"):
        chart("a title", "", "temperature (°C)")
    bad = 'import matplotlib\nmatplotlib.use("Agg")\nimport matplotlib.pyplot as plt\n_, axes = plt.subplots()\n'
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(f"{WATCH}\n{bad}axes.set_title('only that')\n{JUDGE}", {})
    assert json.loads(printed.getvalue()) == {"charts": 1, "missing": ["chart 1 has no x", "chart 1 has no y"]}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs_and_no_paths_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    text = path.read_text()
    for folder in ("/home/", "/root/", "/Users/", "/tmp/"):
        assert folder not in text
