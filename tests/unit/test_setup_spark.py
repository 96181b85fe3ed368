"""`headwater setup spark`: where the jars go and where sessions look for them, and what it says. Nothing is fetched
here; `tests/spark/test_jars_fetch.py` fetches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_edge.errors import MissingExtraError, SetupError
from headwater_cli import main
from pipelines.spark import class_archive, jars


def installed(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    """As if the module were in the site packages of somebody without a checkout."""
    monkeypatch.delenv(jars.JARS_ENV, raising=False)
    monkeypatch.setattr(jars, "__file__", str(site / "pipelines/spark/jars.py"))


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fetching is a list of what was asked for; the digests are those of nothing."""
    asked: list[str] = []

    def resolve(scratch: Path, packages: list[str], excludes: list[str], repository: str | None) -> Path:
        asked.append(f"{packages[0]} {repository}")
        found = scratch / "ivy/jars"
        found.mkdir(parents=True)
        for name in jars.JAR_NAMES if packages[0].startswith("io.delta") else ["hadoop-aws.jar"]:
            (found / name).write_bytes(b"jar")
        return found

    monkeypatch.setattr(jars, "_resolve", resolve)
    monkeypatch.setattr(jars, "check_digests", lambda files: None)
    monkeypatch.setattr(
        class_archive, "record", lambda folder: bool(class_archive.archive_path(folder).write_bytes(b"1"))
    )
    return asked


def test_a_checkout_keeps_its_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(jars.JARS_ENV, raising=False)
    assert jars.default_folder() == Path(__file__).parents[2] / ".cache/jars"


def test_without_a_checkout_they_are_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path / "site-packages")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert jars.default_folder() == tmp_path / "cache/headwater/jars" / jars.DELTA_VERSION
    for relative in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert jars.default_folder() == tmp_path / ".cache/headwater/jars" / jars.DELTA_VERSION
    monkeypatch.setenv(jars.JARS_ENV, str(tmp_path / "mine"))
    assert jars.default_folder() == tmp_path / "mine"


def test_a_session_finds_what_was_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, resolved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, tmp_path / "site-packages")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SetupError, match="run `headwater setup spark --to"):
        jars.delta_jars()
    assert main(["setup", "spark"]) == 0
    out, err = capsys.readouterr()
    folder = tmp_path / "cache/headwater/jars" / jars.DELTA_VERSION
    assert f"delta jars\tfetched\t{len(jars.JAR_NAMES)} in {folder}" in out
    assert f"fetching {len(jars.JAR_NAMES)} Delta jars into {folder}" in err
    assert "classes\twritten\t" in out
    assert [path.parent for path in jars.delta_jars()] == [folder] * len(jars.JAR_NAMES)
    assert main(["setup", "spark", "--json"]) == 0
    out, err = capsys.readouterr()
    steps = {step["step"]: step["state"] for step in json.loads(out)["steps"]}
    assert (steps, err) == ({"pyspark": "ok", "java": "ok", "delta jars": "ok", "classes": "ok"}, "")
    assert resolved == [f"{jars.DELTA_PACKAGE} None"], "the second run fetches nothing"


def test_another_folder_and_repository_are_told_and_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, resolved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, tmp_path)
    to = tmp_path / "here"
    assert main(["setup", "spark", "--to", str(to), "--repository", "http://mirror/", "--s3a"]) == 0
    out, err = capsys.readouterr()
    assert resolved == [f"{jars.DELTA_PACKAGE} http://mirror/", f"{jars.S3A_PACKAGES[0]} http://mirror/"]
    assert f"s3a jars\tfetched\t1 in {to}-s3a" in out
    assert f"{jars.JARS_ENV}={to}" in err
    assert f"spark.driver.extraClassPath: '{to}-s3a/*'" in err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".fetch")] == []


def test_fetching_without_spark_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("broker_edge.extras.is_installed", lambda name: False)
    with pytest.raises(MissingExtraError, match=r"fetching jars needs pyspark, .* 'headwater\[spark\]'"):
        jars.fetch(tmp_path)
