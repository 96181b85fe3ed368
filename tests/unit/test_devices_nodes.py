"""`--node` of `headwater devices simulate` and `run`: the further nodes of a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_edge.device.fleet import Fleet, FleetSettings
from broker_edge.mqtt_address import parse_mqtt
from headwater_cli import main


@pytest.mark.parametrize("command", [("simulate", "1"), ("run", "d1", "--allow-unsigned")])
def test_all_nodes_have_the_protocol_of_the_first(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["devices", *command, "--mqtt", "mqtts://a", "--node", "mqtt://b"]
    words += ["--state", str(tmp_path)] if command[0] == "run" else []
    assert main(words) == 2
    assert "with the protocol of --mqtt" in capsys.readouterr().err
    assert main([*words[:-1], "b:0"]) == 2


def test_each_device_of_a_fleet_knows_all_nodes() -> None:
    async def known() -> list[list[str]]:
        others = (parse_mqtt("b"), parse_mqtt("c:1884"))
        fleet = Fleet(FleetSettings(count=2, host="a", port=1883, others=others), [{}])
        return [[str(server) for server in device.link.servers] for device in fleet.devices]

    assert asyncio.run(known()) == [["a:1883", "b:1883", "c:1884"]] * 2
