"""`databricks.yml` refers only to things that exist: entry points of the wheel, options of the jobs, declared
variables."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
STREAMS = ("telemetry", "status", "actions", "silver")
HOURLY = ("gaps", "quality", "maintenance")
JOBS = (*STREAMS, *HOURLY)


@pytest.fixture(scope="module")
def bundle() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "databricks.yml").read_text())
    return found


def tasks(bundle: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, job in bundle["resources"]["jobs"].items():
        for task in job["tasks"]:
            yield name, job, task


def scripts() -> dict[str, str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: dict[str, str] = tomllib.load(file)["project"]["scripts"]
    return found


def test_there_is_a_job_for_each_pipeline_and_each_runs_once_at_a_time(bundle: dict[str, Any]) -> None:
    assert tuple(bundle["resources"]["jobs"]) == JOBS
    for name, job, task in tasks(bundle):
        assert job["max_concurrent_runs"] == 1, name
        if name in STREAMS:
            assert job["continuous"] == {"pause_status": "UNPAUSED"}, name
        else:
            # Quartz has six or seven fields: seconds first, and one of the two day fields is a question mark.
            fields = job["schedule"]["quartz_cron_expression"].split()
            assert len(fields) in (6, 7), name
            assert [fields[3], fields[5]].count("?") == 1, name
            assert "--once" in task["python_wheel_task"]["parameters"], name
        clusters = {cluster["job_cluster_key"]: cluster["new_cluster"] for cluster in job["job_clusters"]}
        assert {"spark_version", "node_type_id", "num_workers"} <= set(clusters[task["job_cluster_key"]]), name


def test_every_entry_point_is_one_of_the_wheel_and_can_be_loaded(bundle: dict[str, Any]) -> None:
    known = scripts()
    for name, _, task in tasks(bundle):
        wheel_task = task["python_wheel_task"]
        assert wheel_task["package_name"] == "headwater"
        value = known[wheel_task["entry_point"]]
        assert value == f"pipelines.entry:{name}"
        assert callable(EntryPoint(name, value, "console_scripts").load())
        assert {"whl": "./dist/*.whl"} in task["libraries"], name


def test_libraries_are_those_that_the_wheel_was_tested_with(bundle: dict[str, Any]) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    tested = {requirement for name in ("spark", "quality", "device") for requirement in extras[name]}
    for name, _, task in tasks(bundle):
        named = {library["pypi"]["package"] for library in task["libraries"] if "pypi" in library}
        assert named <= tested, name
        # Packages of the platform are not requested; these are not part of it.
        assert any(one.startswith("deltalake") for one in named), name
        assert any(one.startswith("great-expectations") for one in named) or name != "quality"


def test_every_option_is_one_that_the_job_takes(bundle: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for name, _, task in tasks(bundle):
        with pytest.raises(SystemExit):
            importlib.import_module(f"pipelines.{name}").main(["--help"])
        shown = capsys.readouterr().out
        for parameter in task["python_wheel_task"]["parameters"]:
            option, is_given, _ = parameter.partition("=")
            assert is_given or option == "--once", parameter
            assert re.search(rf"{option}[ \]]", shown), (name, option)


def test_every_variable_that_is_used_is_declared(bundle: dict[str, Any]) -> None:
    used = set(re.findall(r"\$\{var\.(\w+)\}", (ROOT / "databricks.yml").read_text()))
    assert used == set(bundle["variables"])


def test_a_job_that_failed_ends_with_its_code_and_one_that_ended_well_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = importlib.import_module("pipelines.entry")
    for name in JOBS:
        job = importlib.import_module(f"pipelines.{name}")
        monkeypatch.setattr(job, "main", lambda: 0)
        getattr(entry, name)()
        monkeypatch.setattr(job, "main", lambda: 5)
        with pytest.raises(SystemExit) as end:
            getattr(entry, name)()
        assert end.value.code == 5
