"""A password or token that would go to another machine without TLS is one warning; nothing is connected here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from broker_edge._connection import Connection
from broker_edge.admin import Admin
from broker_edge.clear_text import is_loopback, warn_in_clear
from broker_edge.credentials import Credentials
from broker_edge.device.link import Link
from broker_edge.mqtt_address import parse_mqtt
from headwater_cli._mqtt import Mqtt

SHOWN = Credentials(user="ann", password="env:SECRET")
ANONYMOUS = Credentials()


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    warn_in_clear.cache_clear()


def by_flight(address: str, credentials: Credentials) -> None:
    Connection(address, timeout_s=1, retries=0, credentials=credentials)._options(1)


def by_admin(address: str, credentials: Credentials) -> None:
    Admin(address, credentials=credentials)._headers()


def by_command(address: str, credentials: Credentials) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("USER", credentials.user), ("PASSWORD_FROM", credentials.password)):
            if value is None:
                patch.delenv(f"HEADWATER_{name}", raising=False)
            else:
                patch.setenv(f"HEADWATER_{name}", value)
        Mqtt(address, protocol="5")


def by_device(address: str, credentials: Credentials) -> None:
    at = parse_mqtt(address)
    user, password = credentials.mqtt()

    async def link() -> None:
        Link("d1", host=at.host, port=at.port, scheme=at.scheme, user=user, password=password)

    asyncio.run(link())


Way = Callable[[str, Credentials], None]


@pytest.mark.parametrize(
    ("way", "clear", "secure"),
    [
        (by_flight, "grpc://edge-7:8815", "grpc+tls"),
        (by_flight, "GRPC://edge-7:8815", "grpc+tls"),
        (by_admin, "http://edge-7:8080", "https"),
        (by_command, "mqtt://edge-7:1883", "mqtts"),
        (by_command, "ws://edge-7:8083", "wss"),
        (by_device, "mqtt://edge-7:1883", "mqtts"),
        (by_device, "ws://10.1.2.3:8083", "wss"),
    ],
)
def test_a_secret_in_clear_is_one_warning(way: Way, clear: str, secure: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        way(clear, SHOWN)
    (said,) = [one.getMessage() for one in caplog.records if one.name == "broker_edge.clear_text"]
    assert said.endswith(f" has no TLS: others on the network can read the password or token; write {secure}://")
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("way", "address", "credentials"),
    [
        (by_flight, "grpc://edge-7:8815", ANONYMOUS),
        (by_flight, "GRPC+TLS://edge-7:8815", SHOWN),
        (by_flight, "grpc://[::1]:8815", SHOWN),
        (by_admin, "http://edge-7:8080", ANONYMOUS),
        (by_admin, "HTTPS://edge-7:8080", SHOWN),
        (by_admin, "http://localhost:8080", SHOWN),
        (by_command, "mqtt://edge-7:1883", ANONYMOUS),
        (by_command, "wss://edge-7:8084", SHOWN),
        (by_command, "mqtt://127.3.2.1:1883", SHOWN),
        (by_device, "mqtt://edge-7:1883", ANONYMOUS),
        (by_device, "mqtts://edge-7:8883", SHOWN),
        (by_device, "mqtt://localhost:1883", SHOWN),
    ],
)
def test_a_secret_over_tls_or_to_this_machine_is_none(
    way: Way, address: str, credentials: Credentials, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    way(address, credentials)
    assert [one for one in caplog.records if one.name == "broker_edge.clear_text"] == []


def test_a_name_that_only_looks_local_is_remote() -> None:
    local = ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.255.0.1", "::1")
    remote = ("localhost.example", "edge-7", "128.0.0.1", "0.0.0.0", "::", "fe80::1", "")
    assert [is_loopback(host) for host in (*local, *remote)] == [True] * len(local) + [False] * len(remote)
