"""Commands that are given the addresses of a cluster: they wait for its leader and go on at the next one."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from support.memory_nodes import Nodes

from broker_edge.access import BrokerAccess
from headwater_cli import main
from headwater_cli._offers import _removed


@pytest.fixture
def elected_while_waited_for(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody leads until a client has waited for more than a second."""
    waits: list[float] = []
    nodes.leader = None

    def wait(seconds: float) -> None:
        waits.append(seconds)
        nodes.leader = 1 if sum(waits) > 1 else None

    monkeypatch.setattr("broker_edge._connection.time.sleep", wait)


@pytest.mark.usefixtures("elected_while_waited_for")
def test_tail_waits_for_a_leader(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    nodes.all[0].log.append("devices/d/telemetry", b"one", partition=3)
    assert main(["tail", "--from", "earliest", "--no-follow", "--server", nodes.address]) == 0
    assert capsys.readouterr().out == "telemetry-0:0\tdevices/d/telemetry\tone\n"


@pytest.mark.usefixtures("elected_while_waited_for")
def test_an_artifact_is_pushed_to_the_leader_that_is_waited_for(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "fw.bin"
    image.write_bytes(b"firmware")
    command = ["artifacts", "push", str(image), "fw", "1", "--server", nodes.address]
    assert main(command) == 0, capsys.readouterr()


@pytest.mark.usefixtures("elected_while_waited_for")
def test_an_artifact_is_removed_by_the_leader_that_is_waited_for(nodes: Nodes) -> None:
    rows, failed = _removed((BrokerAccess(nodes.address),), "fw", "1", 30.0)
    assert (rows, failed) == ([{"broker": nodes.address, "what": "does not have fw 1"}], None)


def test_tail_goes_on_at_the_next_leader(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    log, first = nodes.all[0].log, nodes.all[0]
    log.append("devices/d/telemetry", b"0", partition=3)

    def fail() -> None:
        first.down()
        nodes.leader = 2
        log.append("devices/d/telemetry", b"1", partition=3)

    gate, failing = first.before, threading.Thread(target=fail)

    def before(name: str) -> None:
        gate(name)
        if name == "DoGet" and not failing.ident:
            failing.start()

    first.before = before
    command = ["tail", "devices/#", "--from", "telemetry-0:0", "--count", "2", "--json"]
    assert main([*command, "--server", nodes.address]) == 0
    failing.join()
    assert [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()] == [0, 1]
    assert nodes.all[2].calls["DoGet"] == 1
