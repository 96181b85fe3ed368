"""Which tables a command of devices and actions works on: `--root`, then the settings file, then HEADWATER_TABLES."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from actions.fleet_desk import FleetDesk
from headwater_cli import main


def fleet(folder: Path, device: str) -> Path:
    """Tables with one device."""
    FleetDesk(folder, create=True).describe_devices({device: {}})
    return folder


def settings(folder: Path, text: str) -> str:
    path = folder / "pipelines.yaml"
    path.write_text(text)
    return str(path)


def devices(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    code = main(["devices", "list", "--json", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return [row["device_id"] for row in json.loads(out)["devices"]]


def test_the_option_counts_more_than_the_settings_and_they_more_than_the_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = {name: fleet(tmp_path / name, name) for name in ("option", "settings", "variable")}
    config = ["--config", settings(tmp_path, f"actions: {{root: {roots['settings']}}}")]
    monkeypatch.setenv("HEADWATER_TABLES", str(roots["variable"]))
    assert devices(capsys) == ["variable"]
    assert devices(capsys, *config) == ["settings"]
    assert devices(capsys, *config, "--root", str(roots["option"])) == ["option"]
    # Also if it is what the variable says.
    assert devices(capsys, *config, "--root", str(roots["variable"])) == ["variable"]


@pytest.mark.parametrize("unused", [("--mode", "soft"), ("--mode", "forced"), ("--supersede",), ("--requires", "1")])
def test_what_only_an_ota_has_is_refused_for_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unused: tuple[str, ...]
) -> None:
    root = str(fleet(tmp_path / "tables", "d1"))
    assert main(["actions", "create", "echo", "--device", "d1", "--root", root, *unused]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{unused[0]} is for an OTA: give --artifact NAME:VERSION, or omit it" in said


def test_what_is_written_goes_to_the_tables_and_the_tenant_of_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", settings(tmp_path, f"tenant: north\nactions: {{root: {tmp_path}/tables}}")]
    (tmp_path / "fleet.csv").write_text("device_id\nd1\n")
    assert main(["devices", "import", str(tmp_path / "fleet.csv"), "--create", *config]) == 0
    assert main(["actions", "create", "echo", "--device", "d1", "--by", "ann", *config]) == 0
    (action_id,) = capsys.readouterr().out.split()[-1:]
    assert main(["actions", "pause", action_id, "--by", "ann", *config]) == 0
    for name in ("devices", "actions"):
        assert DeltaTable(tmp_path / "tables" / name).to_pyarrow_table()["tenant"].to_pylist() == ["north"]
    assert DeltaTable(tmp_path / "tables/action_requests").to_pyarrow_table()["kind"].to_pylist() == ["pause"]


@pytest.mark.parametrize("words", [("devices", "list"), ("actions", "list")])
def test_a_store_is_reached_as_the_settings_say(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens on port 9 of this machine; the environment names another port."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:10")
    monkeypatch.setenv("STORE_KEY", "hunter2")
    config = settings(
        tmp_path,
        "actions: {root: s3://bucket/tables}\n"
        "storage: {options: {aws_endpoint: 'http://127.0.0.1:9', aws_region: us-east-1, aws_access_key_id: a, "
        "aws_secret_access_key: 'env:STORE_KEY'}}\n",
    )
    code = main([*words, "--config", config])
    err = capsys.readouterr().err
    assert (code, "did not answer http://127.0.0.1:9/bucket/tables/" in err) == (3, True), err
    assert "hunter2" not in err


def test_a_settings_file_that_is_wrong_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "list", "--config", settings(tmp_path, "actions: {rot: x}")]) == 5
    err = capsys.readouterr().err
    assert (err.count("\n"), "pipelines.yaml:1" in err, "root" in err) == (1, True, True), err
