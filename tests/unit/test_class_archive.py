"""The archive of classes: its name, what is removed, and what is said where none can be made. No JVM runs here."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pipelines.spark import class_archive, java

JAVA_17 = 'openjdk version "17.0.1"'


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What Java says of itself; to be changed."""
    said = {"java": JAVA_17}
    monkeypatch.setattr(class_archive, "require_java", lambda: Path("java"))
    monkeypatch.setattr(class_archive, "java_words", lambda path: said["java"])
    return said


def _writes(monkeypatch: pytest.MonkeyPatch, *, content: bytes | None, said: str = "") -> list[str]:
    """The recording session writes `content`; the answer is the list of the options of its JVMs."""
    asked: list[str] = []

    def run(scratch: Path, folder: Path, jvm_options: str) -> str:
        asked.append(jvm_options)
        if content is not None:
            Path(jvm_options.rpartition("=")[2]).write_bytes(content)
        return said

    monkeypatch.setattr(class_archive, "_run", run)
    return asked


def test_it_is_made_once_and_named_to_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: dict[str, str]
) -> None:
    asked = _writes(monkeypatch, content=b"classes")
    assert class_archive.options(tmp_path) == ""
    assert [class_archive.record(tmp_path) for _ in range(2)] == [True, True]
    assert len(asked) == 1
    (archive,) = tmp_path.iterdir()
    assert class_archive.options(tmp_path).split()[0] == f"-XX:SharedArchiveFile={archive}"


def test_another_java_has_another_archive_and_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: dict[str, str]
) -> None:
    _writes(monkeypatch, content=b"classes")
    class_archive.record(tmp_path)
    of_another_environment = tmp_path / "classes-000000000000-000000000000.jsa"
    of_another_environment.touch()
    version["java"] = 'openjdk version "21.0.8"'
    assert class_archive.options(tmp_path) == ""
    class_archive.record(tmp_path)
    assert set(tmp_path.iterdir()) == {class_archive.archive_path(tmp_path), of_another_environment}


@pytest.mark.parametrize("name", ["jars", "my jars"])
@pytest.mark.usefixtures("version")
def test_where_none_can_be_made_a_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    _writes(monkeypatch, content=None, said="ArchiveClassesAtExit is unsupported")
    folder = tmp_path / name
    folder.mkdir()
    with caplog.at_level(logging.WARNING):
        assert not class_archive.record(folder)
    (record,) = caplog.records
    expected = "has a space" if " " in name else "Spark starts more slowly: ArchiveClassesAtExit is unsupported"
    assert expected in record.getMessage()
    assert list(folder.iterdir()) == []
    assert class_archive.options(folder) == ""


def test_the_version_of_java_is_told_from_the_options_that_it_repeats(tmp_path: Path) -> None:
    fake = tmp_path / "java"
    fake.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2\necho '{JAVA_17}' >&2\n")
    fake.chmod(0o755)
    assert java.java_words(fake) == JAVA_17


@pytest.mark.usefixtures("version")
def test_how_a_jvm_compiles_makes_no_other_archive(tmp_path: Path, version: dict[str, str]) -> None:
    names = set()
    for mode in ("mixed mode, sharing", "mixed mode, emulated-client, sharing"):
        version["java"] = f"{JAVA_17}\nOpenJDK Runtime Environment (build 17.0.1)\nOpenJDK 64-Bit Server VM ({mode})"
        names.add(class_archive.archive_path(tmp_path))
    assert len(names) == 1
