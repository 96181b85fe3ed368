"""A local session starts from the archive of classes, and without a word where the archive is spoiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipelines.spark import class_archive, jars

ROOT = Path(__file__).parents[2]
PROGRAM = """
from pipelines.spark.session import spark_session
spark = spark_session("archive")
print(spark.range(3).count())
spark.stop()
"""


def _start(folder: Path, loaded: Path) -> tuple[str, str]:
    """What a program with a session prints on stdout, and where its JVM took the class SparkContext from."""
    java = f"{os.environ['JAVA_TOOL_OPTIONS']} -Xlog:class+load:file={loaded}.%p"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=dict(os.environ, JAVA_TOOL_OPTIONS=java, HEADWATER_JARS=str(folder), PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for file in loaded.parent.glob(f"{loaded.name}.*") for line in file.read_text().splitlines()]
    (source,) = {line.partition("source: ")[2] for line in lines if " org.apache.spark.SparkContext source:" in line}
    return done.stdout, source


def test_a_session_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    folder = jars.default_folder()
    assert class_archive.record(folder), "`make setup` writes it"
    assert _start(folder, tmp_path / "loaded") == ("3\n", "shared objects file (top)")


def test_a_spoiled_archive_costs_only_the_time(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in jars.delta_jars():
        (folder / jar.name).symlink_to(jar)
    class_archive.archive_path(folder).write_bytes(b"no archive" * 1000)
    said, source = _start(folder, tmp_path / "loaded")
    assert said == "3\n"
    assert source.startswith(("file:", "jar:")), source
