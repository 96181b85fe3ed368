"""`databricks.yml` refers only to things that exist: entry points of the wheel, options of the jobs, declared
variables, uploaded files. Its jobs have the fields that Databricks knows."""

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
from databricks.bundles.jobs import Job

from pipelines.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
STREAMS = ("telemetry", "status", "actions", "silver")
HOURLY = ("gaps", "quality", "maintenance")
JOBS = (*STREAMS, *HOURLY)
READ_BROKERS = ("telemetry", "status", "actions", "gaps")


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


def test_the_jobs_have_the_fields_that_databricks_publishes(bundle: dict[str, Any]) -> None:
    for name, job in bundle["resources"]["jobs"].items():
        assert Job.from_dict(job).as_dict() == job, name


@pytest.mark.parametrize(
    "wrong", [{"max_concurent_runs": 1}, {"continuous": {"pause": "UNPAUSED"}}, {"tasks": [{"task_kye": "telemetry"}]}]
)
def test_control_a_field_that_databricks_does_not_know_is_refused(
    bundle: dict[str, Any], wrong: dict[str, Any]
) -> None:
    job = bundle["resources"]["jobs"]["telemetry"]
    with pytest.raises((ValueError, TypeError)):
        Job.from_dict(job | wrong)


def test_the_rest_of_the_file_has_the_keys_of_a_bundle(bundle: dict[str, Any]) -> None:
    assert set(bundle) == {"bundle", "variables", "sync", "artifacts", "resources", "targets"}
    assert set(bundle["sync"]) == {"include", "exclude"}
    for name, variable in bundle["variables"].items():
        assert set(variable) <= {"description", "default"}, name
    for target in bundle["targets"].values():
        assert set(target) <= {"mode", "default", "workspace", "run_as", "variables"}
        assert set(target.get("variables", {})) <= set(bundle["variables"])


def test_production_has_a_place_and_a_user_of_its_own(bundle: dict[str, Any]) -> None:
    production = bundle["targets"]["prod"]
    assert production["mode"] == "production"
    assert production["workspace"]["root_path"].startswith("/Workspace/Shared/")
    assert production["run_as"] == {"service_principal_name": "${var.service_principal}"}
    # Databricks refuses a deployment without it, and an empty name would be one.
    assert "default" not in bundle["variables"]["service_principal"]
    assert "variables" not in production


def test_secrets_are_references_and_every_job_that_reads_brokers_has_one(bundle: dict[str, Any]) -> None:
    for name, _, task in tasks(bundle):
        given = dict(one.partition("=")[::2] for one in task["python_wheel_task"]["parameters"])
        assert ("--server" in given) == (name in READ_BROKERS), name
        if name in READ_BROKERS:
            assert given["--password-from"] == "secret:${var.secret_scope}/password"
            assert given["--user"] == "${var.user}"
            assert "--token-from" not in given


def test_what_the_jobs_read_from_the_workspace_is_uploaded(bundle: dict[str, Any]) -> None:
    text = (ROOT / "databricks.yml").read_text()
    read = set(re.findall(r"=\$\{workspace\.file_path\}/(\S+)", text))
    assert read == {"conf/pipelines.yaml", "conf/schemas", "conf/quality"}
    for path in read:
        assert (ROOT / path).exists(), path
    assert "conf/**" in bundle["sync"]["include"]
    assert not any(pattern.startswith("conf") for pattern in bundle["sync"]["exclude"])


def test_the_node_fits_the_wheel_and_tables_of_actions_are_not_in_a_volume(bundle: dict[str, Any]) -> None:
    # ARM nodes have a g after the generation: m6gd, c7g.
    assert re.fullmatch(r"[a-z]\d[a-fh-z]*\.\w+", bundle["variables"]["node_type_id"]["default"])
    # Volumes have neither a rename nor a conditional PUT.
    assert "default" not in bundle["variables"]["tables_root"]
    assert "not a volume" in bundle["variables"]["tables_root"]["description"]


def test_the_list_of_servers_is_one_option() -> None:
    settings = Settings().with_servers(["grpc://edge-1:8815, grpc://edge-2:8815", "grpc://edge-3:8815"])
    assert [one.server for one in settings.fleet()] == [f"grpc://edge-{number}:8815" for number in (1, 2, 3)]


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
