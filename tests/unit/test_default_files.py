"""The files that the wheel brings are those of the checkout, and jobs fall back to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from broker_edge.default_files import FOLDER, default_files
from broker_edge.errors import SettingsError
from headwater_cli import main
from pipelines.settings import Settings, load_settings
from pipelines.silver.rules import load_rules
from pipelines.silver.schema import load_schemas

ROOT = Path(__file__).parents[2]
OF_DEPLOY = {
    Path("prometheus/headwater.rules.yml"): ROOT / "deploy/prometheus/headwater.rules.yml",
    Path("grafana/headwater.json"): ROOT / "deploy/grafana/headwater.json",
}


def test_each_is_a_link_to_its_owner_and_none_of_conf_is_missing() -> None:
    conf = ROOT / "conf"
    owners = {path.relative_to(conf): path for path in conf.rglob("*") if path.is_file()} | OF_DEPLOY
    assert set(default_files()) == set(owners)
    for name, owner in owners.items():
        assert (FOLDER / name).is_symlink(), "a copy can differ from what it copies"
        assert (FOLDER / name).resolve() == owner


def test_without_a_folder_conf_silver_takes_the_schemas_and_rules_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    silver = load_settings(None).silver
    assert silver.rules is not None
    schemas = load_schemas(Path(silver.schemas))
    assert [one.name for one in schemas] == ["telemetry"]
    assert set(load_rules(Path(silver.rules), schemas)) == {"telemetry"}


def test_a_folder_conf_counts_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf/schemas").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert Settings().silver.schemas == "conf/schemas"


def test_a_folder_that_somebody_named_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "pipelines.yaml"
    settings.write_text("silver: {schemas: conf/schemas, rules: null}\n")
    with pytest.raises(SettingsError, match="there is no folder conf/schemas with message schemas"):
        load_schemas(Path(load_settings(settings).silver.schemas))


def test_a_missing_settings_file_says_where_it_was_looked_for_and_what_writes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as caught:
        load_settings(Path("nowhere.yaml"))
    assert f"there is no file {tmp_path}/nowhere.yaml" in str(caught.value)
    assert "`headwater init FOLDER` writes a pipelines.yaml" in str(caught.value)


def test_the_files_are_copied_for_changes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "conf"
    assert main(["setup", "files", "--to", str(to)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(to / one) for one in default_files()]
    assert not any(path.is_symlink() for path in to.rglob("*"))
    assert yaml.safe_load((to / "pipelines.yaml").read_text())["tenant"] == "default"
    (to / "pipelines.yaml").write_text("mine")
    assert main(["setup", "files", "--to", str(to)]) == 5
    assert "is not empty: name a new folder" in capsys.readouterr().err
    assert (to / "pipelines.yaml").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["setup", "files", "--to", str(tmp_path / "file/conf")]) == 5
    assert capsys.readouterr().err.startswith(f"headwater: cannot write {tmp_path}/file/conf")
