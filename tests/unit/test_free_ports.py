"""Ports that are chosen before the server that listens at them is started."""

from __future__ import annotations

import socket

import pytest
from support.ports import free_port

from broker_edge import free_ports as module
from broker_edge.errors import ConfigError
from broker_edge.free_ports import PORT_END, PORT_MIN, free_ports


def test_the_ports_are_in_a_row_and_no_outgoing_connection_gets_one() -> None:
    ports = free_ports(14)
    assert ports == list(range(ports[0], ports[0] + 14))
    assert ports[0] >= PORT_MIN
    assert ports[-1] < PORT_END < 32_768, "Linux gives these to outgoing connections"
    assert (ports[0] - PORT_MIN) % 14 == 0


def test_a_row_with_a_listener_is_passed_over_and_the_search_goes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    # This worker's own, so that nobody else takes them meanwhile.
    first, second = free_port(), free_port()
    monkeypatch.setattr(module, "PORT_MIN", first)
    monkeypatch.setattr(module, "PORT_END", second + 1)
    with socket.create_server(("127.0.0.1", first)):
        assert free_ports(1, begin=first)[0] in range(first + 1, second + 1)
        assert free_ports(2, begin=first - 1)[0] not in (first - 1, first)
    with socket.create_server(("127.0.0.1", second)):
        assert free_ports(1, begin=second)[0] in range(first, second)


def test_without_a_free_row_the_error_names_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_port()
    monkeypatch.setattr(module, "PORT_MIN", taken)
    monkeypatch.setattr(module, "PORT_END", taken + 1)
    with socket.create_server(("127.0.0.1", taken)):
        with pytest.raises(ConfigError, match=f"no 1 ports in a row are free on 127.0.0.1 from {taken} to"):
            free_ports(1)
