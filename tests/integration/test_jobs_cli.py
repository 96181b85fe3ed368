"""`headwater jobs run`: JSON lines, exit codes, and a clean stop, with the jobs that need no JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from support.flight_server import FlightServer

from broker_edge import Client
from headwater_cli import main
from pipelines import run_jobs
from pipelines.catalogue import JOB_NAMES

ROOT = Path(__file__).resolve().parents[2]


def config(server: str, folder: Path) -> Path:
    tables = str(folder / "tables")
    silver = {"root": tables, "schemas": str(ROOT / "conf/schemas"), "rules": str(ROOT / "conf/quality")}
    chosen = {
        "servers": [server],
        "telemetry": {"table_path": str(folder / "bronze")},
        "silver": silver,
        "actions": {"root": tables},
        "jobs": {"retries": 1, "retry_first_s": 0.1, "look_s": 0.1},
    }
    path = folder / "pipelines.yaml"
    path.write_text(yaml.safe_dump(chosen))
    return path


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_jobs_end_when_they_have_done_what_there_was(
    flight_server: FlightServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(flight_server.location) as client:
        client.gap(3, 0, 5, reason="damage")
    settings = str(config(flight_server.location, tmp_path))
    assert main(["jobs", "run", "gaps", "actions", "--available-now", "--json", "--config", settings]) == 0
    assert {line["job"] for line in lines(capsys.readouterr().out) if line["state"] == "ended"} == {"gaps", "actions"}
    assert DeltaTable(tmp_path / "tables" / "ingest_gaps").to_pyarrow_table().num_rows == 1


def test_the_program_of_spark_submit_runs_several_jobs_too(
    flight_server: FlightServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = str(config("grpc://127.0.0.1:1", tmp_path))
    live = ["--available-now", "--config", settings, "--server", flight_server.location]
    assert run_jobs.main(["gaps", "actions", *live]) == 0
    assert {line["job"] for line in lines(capsys.readouterr().out) if line["state"] == "ended"} == {"gaps", "actions"}
    assert run_jobs.main(["gasp", *live]) == 5
    assert "error: there is no job gasp: telemetry, status, silver" in capsys.readouterr().err
    flight_server.down()
    assert run_jobs.main(["gaps", *live]) == 3


def test_a_broker_that_stays_away_is_an_alert_and_exit_code_3(
    flight_server: FlightServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flight_server.down()
    settings = str(config(flight_server.location, tmp_path))
    assert main(["jobs", "run", "gaps", "--json", "--config", settings]) == 3
    out, talk = capsys.readouterr()
    alerts = [line["alert"] for line in lines(out) if "alert" in line]
    assert [(alert["kind"], alert["job"]) for alert in alerts] == [("restarted", "gaps"), ("stopped", "gaps")]
    assert f"error: gaps: cannot reach the broker at {flight_server.location}" in talk


def test_a_single_run_of_the_engine_without_a_broker_ends_with_exit_code_3(
    flight_server: FlightServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if nothing is owed to a device. Of several brokers one that answers is enough."""
    run = ["jobs", "run", "actions", "--available-now", "--json", "--config"]
    silent = "grpc://127.0.0.1:1"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert main([*run, str(config(silent, tmp_path / "one"))]) == 3
    assert f"error: actions: cannot connect to {silent}: is the broker running" in capsys.readouterr().err
    settings = str(config(silent, tmp_path / "two"))
    assert main([*run, settings, "--server", silent, "--server", flight_server.location]) == 0


def test_brokers_and_credentials_of_the_command_line_count_more_than_the_file(
    flight_server: FlightServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADWATER_USER", "HEADWATER_PASSWORD_FROM"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with Client(flight_server.location) as client:
        client.gap(3, 0, 5, reason="damage")
    settings = str(config("grpc://127.0.0.1:1", tmp_path))
    live = ["--server", flight_server.location, "--password-from", f"file:{tmp_path}/nothing"]
    run = ["jobs", "run", "gaps", "--available-now", "--json", "--config", settings]
    # The password is needed for the first call, so it is missed there: options before and after the command are one.
    assert main(["--user", "ann", *run, *live]) == 5
    assert f"cannot read {tmp_path}/nothing" in capsys.readouterr().err
    (tmp_path / "nothing").write_text("pw")
    assert main(["--user", "ann", *run, *live]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["gaps", "--user", "ann", "--password-from", "hunter2"], 5, "write file:PATH, env:NAME or secret:SCOPE/KEY"),
        (["gaps", "--server", "http://x"], 5, "`http://x` is not a server address"),
        (["nothing"], 5, "there is no job nothing: telemetry, status, silver"),
        (["gaps", "--config", "nowhere.yaml"], 5, "cannot read the settings nowhere.yaml"),
        (["gaps", "--webhook", "ftp://a"], 5, "jobs.webhook must be an http:// or https:// address"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "run", *arguments]) == code
    assert says in capsys.readouterr().err


def test_the_list_of_jobs_needs_no_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "list", "--json"]) == 0
    (document,) = lines(capsys.readouterr().out)
    assert [one["name"] for one in document["jobs"]] == list(JOB_NAMES)


def test_sigterm_stops_the_jobs_cleanly(flight_server: FlightServer, tmp_path: Path) -> None:
    settings = str(config(flight_server.location, tmp_path))
    program = "import sys; from headwater_cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "jobs", "run", "actions", "gaps", "--config", settings]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        running: set[str] = set()
        for line in process.stdout:
            one = json.loads(line)
            running |= {one["job"]} if one["state"] == "running" else set()
            if running == {"actions", "gaps"}:
                break
        process.send_signal(signal.SIGTERM)
        out, talk = process.communicate(timeout=60)
    assert process.returncode == 0, talk
    assert json.loads(out.splitlines()[-1])["state"] == "stopped"
    assert "Traceback" not in talk
