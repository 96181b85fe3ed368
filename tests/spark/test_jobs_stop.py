"""Ctrl-C and SIGTERM while Spark is still starting: the run ends cleanly, and nothing of it is left."""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.jobs_process import WAIT_S, JobsProcess

_JAVA = """#!/bin/sh
# Says its process id when Spark is started; what finds out the command line of Spark runs before it.
case "$*" in
*org.apache.spark.launcher.Main*) ;;
*org.apache.spark.deploy.SparkSubmit*) echo $$ > '{said}' ;;
esac
exec '{java}' "$@"
"""


def java_that_says_when_it_starts(folder: Path, said: Path) -> Path:
    """A JAVA_HOME whose `java` writes its process id into the pipe `said` before it becomes the JVM of Spark."""
    java = shutil.which("java", path=os.pathsep.join([f"{os.environ.get('JAVA_HOME', '')}/bin", os.environ["PATH"]]))
    assert java is not None, "java is missing: install openjdk-17-jre-headless"
    wrapper = folder / "java-home" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_JAVA.format(said=said, java=java))
    wrapper.chmod(0o755)
    return wrapper.parent.parent


def readable(descriptor: int, what: str) -> None:
    assert select.select([descriptor], [], [], WAIT_S)[0], f"no {what}"


@pytest.mark.parametrize("end", [JobsProcess.interrupt, JobsProcess.terminate], ids=["SIGINT", "SIGTERM"])
def test_a_signal_while_spark_starts_ends_the_run_with_its_last_line(
    end: Callable[[JobsProcess], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "servers": ["grpc://127.0.0.1:1"],
        "telemetry": {"table_path": str(tmp_path / "bronze"), "checkpoint": str(tmp_path / "checkpoint")},
    }
    config, said = tmp_path / "pipelines.yaml", tmp_path / "said"
    config.write_text(yaml.safe_dump(settings))
    os.mkfifo(said)
    monkeypatch.setenv("JAVA_HOME", str(java_that_says_when_it_starts(tmp_path, said)))
    # For writing too, so that opening it waits for nobody.
    pipe = os.open(said, os.O_RDWR)
    try:
        with JobsProcess(tmp_path, config) as jobs:
            jobs.start("telemetry")
            readable(pipe, "JVM was started")
            jvm = os.pidfd_open(int(os.read(pipe, 32)))
            assert end(jobs) == 0, jobs.last_words()
            assert [line["state"] for line in jobs.lines()] == ["stopped"]
            assert "Traceback" not in jobs.talk()
            readable(jvm, "end of the JVM")
            os.close(jvm)
    finally:
        os.close(pipe)
