"""Ports that are chosen before the server that listens at them is started."""

from __future__ import annotations

import socket

import pytest

from broker_edge import free_ports as module
from broker_edge.errors import ConfigError
from broker_edge.free_ports import PORT_END, PORT_MIN, free_ports


def test_the_ports_are_in_a_row_and_no_outgoing_connection_gets_one() -> None:
    ports = free_ports(14)
    assert ports == list(range(ports[0], ports[0] + 14))
    assert ports[0] >= PORT_MIN
    assert ports[-1] < PORT_END < 32_768, "Linux gives these to outgoing connections"
    assert (ports[0] - PORT_MIN) % 14 == 0


def test_a_row_with_a_listener_is_passed_over_and_the_search_goes_round() -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", free)):
        (next_one,) = free_ports(1, begin=free)
        assert next_one != free
        first = free_ports(3, begin=free - 1)[0]
        assert first not in range(free - 2, free + 2)
    last = PORT_END - 1
    with socket.create_server(("127.0.0.1", last)):
        assert PORT_MIN <= free_ports(1, begin=last)[0] < last


def test_without_a_free_row_the_error_names_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = free_ports(1)
    monkeypatch.setattr(module, "PORT_MIN", taken)
    monkeypatch.setattr(module, "PORT_END", taken + 1)
    with socket.create_server(("127.0.0.1", taken)):
        with pytest.raises(ConfigError, match=f"no 1 ports in a row are free on 127.0.0.1 from {taken} to"):
            free_ports(1)
