"""`headwater log` on the folder of a stopped broker: verify, dump, damage, repair, backup and restore."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from broker_edge import Broker, Client, Row

COUNT = 40


def headwater(*words: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from headwater_cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "log", *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The folder of a stopped broker with a backup taken while it ran."""
    data_dir = tmp_path / "data"
    settings = {"log.backup_dir": tmp_path / "backups", "log.classes.telemetry.partitions": 1}
    with Broker(data_dir, settings=settings) as broker, Client(broker.server) as client:
        client.produce([Row("devices/d1/telemetry", f"value {n}".encode()) for n in range(COUNT)])
        in_use = headwater("verify", data_dir)
        assert in_use.returncode == 4
        assert "in use by process" in in_use.stderr
        done = headwater("backup", "daily", "--server", broker.server, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["copied"] >= 1
    return data_dir


def test_a_log_is_verified_dumped_and_mended_without_a_broker(data_dir: Path) -> None:
    whole = headwater("verify", data_dir, "--json")
    assert whole.returncode == 0, whole.stderr
    assert not json.loads(whole.stdout)["damaged"]
    lines = headwater("dump", data_dir, "-p", "telemetry-0", "--from", 10, "--limit", 5).stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == [f"value {n}" for n in range(10, 15)]

    (data_dir / "log.meta").unlink()
    assert headwater("verify", data_dir).returncode == 1
    planned = headwater("repair", data_dir, "--dry-run")
    assert planned.returncode == 0
    assert "would write log.meta" in planned.stdout
    assert not (data_dir / "log.meta").exists()
    assert headwater("repair", data_dir).returncode == 0
    assert headwater("verify", data_dir).returncode == 0


def test_a_backup_is_restored_under_an_id_of_its_own(data_dir: Path, tmp_path: Path) -> None:
    restored = tmp_path / "restored"
    done = headwater("restore", tmp_path / "backups" / "daily", restored, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["log_id"] != report["source_log_id"]
    lines = headwater("dump", restored, "-p", "telemetry-0").stdout.splitlines()
    assert [json.loads(line)["value"] for line in lines] == [f"value {n}" for n in range(COUNT)]
    assert headwater("restore", tmp_path / "backups" / "daily", restored).returncode == 4
    assert headwater("restore", tmp_path, tmp_path / "other").returncode == 4


def test_wrong_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    nothing = headwater("verify", tmp_path)
    assert nothing.returncode == 4
    assert "is no log" in nothing.stderr
    assert headwater("backup", "x").returncode == 2
