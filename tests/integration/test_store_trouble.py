"""A store that refuses, is not there or does not answer: each command and job says it in one sentence and ends with 3,
and a signal ends the jobs whatever the store does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.flight_server import FlightServer
from support.s3 import BUCKET, CarelessStore, S3Server, s3_server

from broker_edge.errors import StoreRefusedError
from headwater_cli import main
from pipelines.catalogue import refuse_stores
from pipelines.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 25.0
"""Less than the store client waits for an answer."""
STOP_S = 1.0

COMMANDS = {
    "devices list": ("devices", "list"),
    "actions list": ("actions", "list"),
    "actions create": ("actions", "create", "echo", "--device", "d1"),
    "devices import": ("devices", "import", "fleet.csv", "--create"),
    "jobs run actions": ("jobs", "run", "actions", "--available-now"),
    "jobs run gaps": ("jobs", "run", "gaps", "--available-now"),
    "jobs run status": ("jobs", "run", "status", "--available-now"),
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.csv").write_text("device_id\nd1\n")
    (tmp_path / "wrong").write_text("hunter2")
    return tmp_path


def config(folder: Path, options: dict[str, str], broker: str, *, bucket: str = BUCKET) -> str:
    root = f"s3://{bucket}/trouble"
    chosen = {
        "servers": [broker],
        "actions": {"root": root},
        "silver": {"root": root, "schemas": str(ROOT / "conf/schemas"), "rules": None},
        "storage": {"options": options},
        "jobs": {"retries": 1, "retry_first_s": 0.1, "look_s": 0.1, "stop_s": STOP_S},
    }
    path = folder / "pipelines.yaml"
    path.write_text(yaml.safe_dump(chosen))
    return str(path)


def options_for(trouble: str, s3: S3Server, folder: Path) -> dict[str, str]:
    match trouble:
        case "wrong key":
            return s3.options() | {"aws_secret_access_key": f"file:{folder / 'wrong'}"}
        case "nobody":
            return s3.options("http://127.0.0.1:1")
        case _:
            return s3.options()


@pytest.mark.parametrize(
    ("command", "trouble"),
    [
        ("devices list", "missing bucket"),
        ("devices list", "wrong key"),
        ("devices import", "missing bucket"),
        ("devices import", "nobody"),
        ("actions list", "nobody"),
        ("actions create", "wrong key"),
        ("jobs run actions", "missing bucket"),
        ("jobs run actions", "wrong key"),
        # No session of Spark is started for a store that refuses.
        ("jobs run status", "missing bucket"),
        ("jobs run status", "wrong key"),
        ("jobs run gaps", "missing bucket"),
        ("jobs run gaps", "wrong key"),
        ("jobs run gaps", "nobody"),
    ],
)
def test_trouble_with_a_store_is_one_sentence_and_exit_code_3(
    command: str,
    trouble: str,
    s3: S3Server,
    flight_server: FlightServer,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipelines.run_jobs.open_session", lambda name, settings: pytest.fail("a session was started"))
    bucket = "nothing" if trouble == "missing bucket" else BUCKET
    settings = config(folder, options_for(trouble, s3, folder), flight_server.location, bucket=bucket)
    code = main([*COMMANDS[command], "--config", settings])
    said = capsys.readouterr().err
    *alerts, last = said.splitlines()
    assert (code, bucket in last) == (3, True), said
    assert all(line.startswith("alert: ") for line in alerts), said
    assert "hunter2" not in said


def test_before_the_session_only_a_refusal_counts(s3: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(trouble: str) -> None:
        path = config(folder, options_for(trouble, s3, folder), "grpc://127.0.0.1:1")
        refuse_stores(["telemetry", "status", "actions", "silver"], load_settings(Path(path)))

    asked("nobody")
    with pytest.raises(StoreRefusedError, match="403 Forbidden"):
        asked("wrong key")
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17")
    asked("wrong key")


@pytest.mark.parametrize("command", ["devices import", "jobs run gaps"])
def test_a_store_without_conditional_put_is_refused_before_anything_is_written(
    command: str, s3: S3Server, flight_server: FlightServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CarelessStore(s3) as careless:
        settings = config(folder, s3.options(careless.endpoint), flight_server.location)
        code = main([*COMMANDS[command], "--config", settings])
    said = capsys.readouterr().err
    assert (code, "has no conditional PUT (If-None-Match)" in said.splitlines()[-1]) == (3, True), said
    assert [path for path in (s3.folder / BUCKET / "trouble").rglob("*") if path.is_file()] == []


def test_a_signal_ends_the_jobs_while_the_store_does_not_answer(flight_server: FlightServer, folder: Path) -> None:
    """It accepts connections and is silent, so that each request lasts half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        settings = config(
            folder,
            {
                "aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "aws_region": "us-east-1",
                "aws_access_key_id": "a",
                "aws_secret_access_key": f"file:{folder / 'wrong'}",
            },
            flight_server.location,
        )
        program = "import sys; from headwater_cli import main; sys.exit(main())"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with subprocess.Popen(
            [sys.executable, "-c", program, "jobs", "run", "actions", "gaps", "--config", settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        ) as process:
            waiting, _ = silent.accept()
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=WAIT_S)
        waiting.close()
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert f"did not end within {STOP_S:g} s: the next start repeats what was begun" in said
