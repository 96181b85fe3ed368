"""The folder of a local cluster: its ports, and what is said when it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_edge.errors import ConfigError, StartError
from broker_edge.local_cluster import NODES, EtcdProcess, Layout, Ports
from headwater_cli import main


def test_the_ports_are_chosen_once_and_differ(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new")
    ports = layout.ports()
    assert len(set(ports.numbers)) == Ports.COUNT
    assert layout.ports() == ports
    settings = [layout.settings(node, ports) for node in NODES]
    binds = [value for one in settings for key, value in one.items() if key.endswith((".bind", ".listen"))]
    assert len(set(binds)) == len(binds) == 12


def test_ports_may_be_given_once(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new")
    ports = layout.ports(21_000)
    assert (ports.of_etcd("client"), ports.of_node("n1", "mqtt"), ports.of_node("n3", "mesh")) == (
        21_000,
        21_002,
        21_013,
    )
    assert layout.ports(21_000) == ports
    with pytest.raises(ConfigError, match="has the ports from 21000 on"):
        layout.ports(22_000)
    with pytest.raises(ConfigError, match="ports 65530 to 65543 do not all exist"):
        Layout(tmp_path / "other").ports(65_530)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="is not the folder of a local cluster"):
        Layout(tmp_path).ports()
    (tmp_path / "notes").unlink()
    (tmp_path / "ports.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match="does not hold 14 ports: remove it"):
        Layout(tmp_path).ports()


def test_a_missing_etcd_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["cluster", "dev", str(tmp_path / "new")]) == 5
    assert "etcd is missing: install it (Debian and Ubuntu: apt-get install etcd-server)" in capsys.readouterr().err


def test_an_etcd_that_ends_is_reported_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho no such disk >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    etcd = EtcdProcess(data_dir=tmp_path / "data", log_file=tmp_path / "log", client_port=9, peer_port=9)
    with pytest.raises(StartError, match="no such disk"):
        etcd.start()
    assert not etcd.is_running
