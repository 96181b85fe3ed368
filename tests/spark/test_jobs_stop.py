"""Ctrl-C and SIGTERM while Spark is still starting: the run ends cleanly, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support.jobs_process import take_interrupts

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import sys; from headwater_cli import main; sys.exit(main())"
WAIT_S = 120.0


def jvms(group: int) -> list[int]:
    """Processes of Java in a process group."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name = (folder / "comm").read_text().strip()
                if name == "java" and os.getpgid(int(folder.name)) == group:
                    found.append(int(folder.name))
            except (OSError, ProcessLookupError):
                continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_signal_while_spark_starts_ends_the_run_with_its_last_line(number: signal.Signals, tmp_path: Path) -> None:
    settings = {
        "servers": ["grpc://127.0.0.1:1"],
        "telemetry": {"table_path": str(tmp_path / "bronze"), "checkpoint": str(tmp_path / "checkpoint")},
    }
    config = tmp_path / "pipelines.yaml"
    config.write_text(yaml.safe_dump(settings))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", PROGRAM, "jobs", "run", "telemetry", "--json", "--config", str(config)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_interrupts,
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while not jvms(process.pid):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no JVM was started"
            time.sleep(0.05)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # As a terminal does.
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
        assert [json.loads(line)["state"] for line in out.splitlines()] == ["stopped"]
        assert "Traceback" not in err
        while jvms(process.pid):
            assert time.monotonic() < deadline, "the JVM is left"
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
