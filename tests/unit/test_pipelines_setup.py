"""Requirements before Spark starts, and the settings file: each error is one sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from pyspark.errors import StreamingQueryException

from broker_edge.errors import DataLossError, SettingsError, SetupError
from pipelines.jobs.process import run_job
from pipelines.settings import Settings, load_settings
from pipelines.spark import jars
from pipelines.spark.errors import own_error
from pipelines.spark.java import require_java

CONF = Path(__file__).parents[2] / "conf" / "pipelines.yaml"


def a_java(folder: Path, version: str) -> Path:
    """A `java` that only reports its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    java.chmod(0o755)
    return java


def test_a_java_home_without_java_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="point JAVA_HOME at a Java 17"):
        require_java()


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11)])
def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, major: int) -> None:
    a_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match=f"is Java {major}, but Spark needs Java 17 or newer"):
        require_java()


def test_a_new_java_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = a_java(tmp_path, "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == java


def test_missing_jars_say_how_to_fetch_them(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"is missing\): run `headwater setup spark --to"):
        jars.delta_jars(tmp_path)


def test_jars_that_are_there_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in jars.JAR_NAMES:
        (tmp_path / name).write_bytes(b"jar")

    def no_network(scratch: Path) -> None:
        raise AssertionError("nothing is to be resolved")

    monkeypatch.setattr(jars, "_resolve", no_network)
    digest = hashlib.sha256(b"jar").hexdigest()
    monkeypatch.setattr(jars, "digests", lambda: dict.fromkeys(jars.JAR_NAMES, digest))
    assert not jars.fetch(tmp_path)
    assert [path.name for path in jars.delta_jars(tmp_path)] == list(jars.JAR_NAMES)


def test_a_fetch_that_fails_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(scratch: Path, packages: Sequence[str], excludes: Sequence[str], repository: str | None) -> Path:
        found = scratch / "ivy" / "jars"
        found.mkdir(parents=True)
        (found / jars.JAR_NAMES[0]).write_bytes(b"jar")
        return found

    monkeypatch.setattr(jars, "_resolve", half)
    monkeypatch.setattr(jars, "require_java", lambda: Path("java"))
    with pytest.raises(SetupError, match="was resolved without"):
        jars.fetch(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {jars.JAR_NAMES[0]}


def test_the_settings_file_states_the_defaults() -> None:
    assert load_settings(CONF) == Settings() == load_settings(None)
    written = yaml.safe_load(CONF.read_text())
    assert set(written) == set(Settings.model_fields)
    for name, section in written.items():
        if isinstance(section, dict):
            model = Settings.model_fields[name].annotation
            assert model is not None
            assert set(section) == set(model.model_fields), name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "tenant: a\ntelemetry:\n  subscribes: [x]\n",
            ":3: unknown key telemetry.subscribes: did you mean telemetry.subscribe?",
        ),
        ("server: [x]\n", ":1: unknown key server: did you mean servers?"),
        (
            "tenant: a\ntelemetry:\n  max_offsets_per_trigger: 0\n",
            ":3: telemetry.max_offsets_per_trigger: Input should be",
        ),
        ("telemetry:\n  table: a.b.c\n", ":1: telemetry: Value error, give either table or table_path"),
        ("bronze: {writer: csv}\n", ":1: bronze.writer: Input should be 'auto', 'spark' or 'files'"),
        ("- a\n", ":1: settings: Input should be"),
        ("a: [\n", ":2:1 is not YAML: expected the node content, but found '<stream end>'"),
        ("a: \0\n", "is not YAML: a character that YAML does not allow"),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "pipelines.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_settings(path)
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)


def test_settings_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the settings"):
        load_settings(tmp_path / "none.yaml")


@pytest.mark.parametrize("kind", [f"{DataLossError.__module__}.DataLossError", "sources.errors.DataLossError"])
def test_our_sentence_is_found_in_sparks_error(kind: str) -> None:
    """Also from a worker with an older wheel."""
    text = f"[STREAM_FAILED] Traceback …\n{kind}: records are gone\n\n at org.apache.spark"
    assert own_error(RuntimeError(text)) == ("DataLossError", "records are gone")
    assert own_error(RuntimeError("java.io.IOException: disk")) is None


def test_a_stream_whose_table_got_columns_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[STREAM_FAILED] Query [id = …] terminated with exception: [DELTA_SCHEMA_CHANGED] Detected schema change"

    def work() -> None:
        raise StreamingQueryException(f"{text}:\nstreaming source schema: root\n |-- value: binary\n")

    assert run_job(work) == 1
    assert capsys.readouterr().err == (
        "error: the table that it reads has new columns: start the job again, it goes on with them\n"
    )
