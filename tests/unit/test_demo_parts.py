"""The parts of the demo that need neither a broker nor Spark: the operator, the watch on bronze, the output."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from actions.job import ActionJob
from actions.store import DeltalakeStore
from broker_edge.device.fleet import FleetSettings, device_ids
from broker_edge.errors import SettingsError
from pipelines.demo.account import Account
from pipelines.demo.action import Operator, Outcome
from pipelines.demo.devices import DeviceCounts
from pipelines.demo.layout import Layout, open_layout
from pipelines.demo.result import Result
from pipelines.demo.screen import Addresses, Screen, line, next_steps, result_text
from pipelines.demo.series import hourly_temperatures, samples
from pipelines.demo.watch import BronzeTail, Snapshot

ROOT = Path(__file__).resolve().parents[2]
IDS = device_ids(FleetSettings(count=50))
CLEAN = Account(bronze_rows=2, missing=0, duplicates=0, p50_ms=900.0, p99_ms=2100.0)


class NoDevices:
    """A publisher whose devices never answer."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    name = None

    def log_id(self) -> str:
        return "log"

    def publish(self, rows: list[object]) -> list[object]:
        from broker_edge import Place

        self.topics += [row.topic for row in rows]  # type: ignore[attr-defined]
        return [Place(2, index, duplicate=False) for index, _ in enumerate(rows)]


def test_the_series_is_a_year_of_measured_hours() -> None:
    assert len(hourly_temperatures()) == 8_759
    assert all(-20 < celsius < 45 for celsius in hourly_temperatures())
    assert set(samples()[0]) == {"temperature_c"}


def test_the_inserted_row_selects_twenty_devices_and_stays_open_until_they_answer(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.describe_devices(IDS)
    publisher = NoDevices()
    engine = ActionJob(DeltalakeStore(tmp_path), publisher)  # type: ignore[arg-type]
    assert operator.outcome() == Outcome()
    operator.insert_action()
    assert (operator.outcome().actions, operator.outcome().open) == (1, 1)
    engine.turn()
    assert sorted(publisher.topics) == [f"devices/{id_}/actions" for id_ in IDS[:20]]
    outcome = operator.outcome()
    assert (outcome.targets, outcome.open, outcome.succeeded) == (20, 1, 0)
    assert not outcome.all_succeeded


def test_actions_that_were_there_before_do_not_count(tmp_path: Path) -> None:
    Operator(tmp_path).insert_action()
    assert Operator(tmp_path).outcome() == Outcome()


def test_devices_are_described_once(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.describe_devices(IDS[:10])
    operator.describe_devices(IDS)
    ids = DeltaTable(tmp_path / "devices").to_pyarrow_table()["device_id"].to_pylist()
    assert sorted(ids) == IDS


def test_bronze_is_counted_from_where_the_watch_began(tmp_path: Path) -> None:
    bronze = tmp_path / "bronze"
    assert BronzeTail(bronze).rows() == 0
    write_deltalake(bronze, pa.table({"a": [1, 2, 3]}))
    tail = BronzeTail(bronze)
    assert tail.rows() == 0
    write_deltalake(bronze, pa.table({"a": [4, 5]}), mode="append")
    assert tail.rows() == 2
    assert (tail.rows(), tail.version) == (2, 1)


def test_a_result_is_as_promised_only_when_nothing_is_missing_doubled_or_open() -> None:
    done = Outcome(actions=1, open=0, targets=20, states={"SUCCEEDED": 20})
    counts = DeviceCounts(connected=0, published=2, acked=2)

    def ok(account: Account, outcome: Outcome) -> bool:
        return Result(account=account, outcome=outcome, counts=counts, devices=2, seconds=1.0).ok

    assert ok(CLEAN, done)
    assert not ok(Account(2, 1, 0, 1.0, 1.0), done)
    assert not ok(Account(2, 0, 1, 1.0, 1.0), done)
    assert not ok(CLEAN, Outcome(actions=1, open=1, targets=20, states={"SUCCEEDED": 20}))
    assert not ok(CLEAN, Outcome(actions=1, open=0, targets=20, states={"SUCCEEDED": 19, "FAILED": 1}))
    assert not ok(CLEAN, Outcome(actions=1, open=1))


def test_the_object_has_the_promised_keys() -> None:
    outcome = Outcome(actions=1, open=0, targets=20, states={"SUCCEEDED": 20})
    result = Result(account=CLEAN, outcome=outcome, counts=DeviceCounts(published=2, acked=2), devices=2, seconds=1.0)
    shown = json.loads(json.dumps(result.to_json()))
    assert {"published", "acked", "bronze_rows", "missing", "duplicates", "actions", "p50_ms", "p99_ms"} <= set(shown)
    assert (shown["actions"]["targets"], shown["actions"]["succeeded"]) == (20, 20)
    assert "nothing is missing" in result_text(result)


def test_the_commands_that_it_prints_work_when_pasted(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "with a space")
    Operator(layout.tables)
    write_deltalake(layout.bronze, pa.table({"topic": ["devices/d/telemetry"] * 3, "timestamp": [7, 8, 9]}))
    steps = next_steps(Addresses("127.0.0.1:1", "grpc://127.0.0.1:2", "127.0.0.1:3"), layout)
    commands = [step.strip() for step in steps if " -c " in step]
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    (row,) = DeltaTable(layout.tables / "actions").to_pyarrow_table().to_pylist()
    assert (row["action_id"], row["name"], row["device_ids"]) == ("hello-1", "echo", ["device-0001"])


def test_without_a_terminal_it_says_how_far_it_is_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(live=True)
    snapshot = Snapshot(1.0, DeviceCounts(published=1_000, acked=990), 500, Outcome())
    with screen.step("broker"), screen.watching():
        screen.show(snapshot)
        screen.show(snapshot)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("1,000 published, 990 acknowledged, 500 rows in Delta") == 1
    assert snapshot.lag == 490
    assert "990" in line(snapshot)


def test_a_temporary_folder_goes_at_the_end_and_a_named_one_stays(tmp_path: Path) -> None:
    with open_layout(None) as layout:
        root = layout.root
        assert layout.broker.is_dir()
    assert not root.exists()
    with open_layout(tmp_path / "kept") as layout:
        pass
    assert layout.tables.is_dir()


def test_a_folder_that_cannot_be_used_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file for the demo .*--data"), open_layout(tmp_path / "file"):
        pass


def test_only_results_reach_stdout_whatever_children_print() -> None:
    code = (
        "import os, sys\n"
        "from pipelines.demo.interrupt import stdout_for_results\n"
        "with stdout_for_results() as results:\n"
        "    print('noise'); os.system('echo child')\n"
        "    results.write('{}\\n')\n"
        "print('after')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout == "{}\nafter\n"
    assert {"noise", "child"} <= set(done.stderr.split())
