"""A broker whose answers have fields of other types: one sentence about this broker, and nothing for the others.

The action engine serves many brokers in one process. A value that is no number would end it in a later step, for all.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.flight as flight
import pytest

from actions.engine import Publish
from actions.outbound import Outbound
from broker_edge import Client, HeadwaterError
from broker_edge.admin import Admin
from broker_edge.errors import BrokerError
from broker_edge.values import Row
from sinks.devices import DevicePublisher

ROW = {"log_start": 0, "high_watermark": 9, "epoch": 1, "bytes": 9, "name": "telemetry-0", "class": "telemetry"}
PLAN = {"end": 1, "scanned": 2, "records": 1, "bytes": 9, "epoch": 1, "log_start": 0, "high_watermark": 9}
GROUP = {"initial": 0, "committed": 1, "scanned": None}
ANSWERS: dict[str, Any] = {
    "version": {"version": "1", "protocol": 1, "format": 1, "log_id": "of-this-broker"},
    "offsets": {"log_id": "of-this-broker", "partitions": {"0": ROW}},
    "plan": {"log_id": "of-this-broker", "partitions": {"0": PLAN}},
    "committed": {"group": "g", "reader_epoch": 1, "partitions": {"0": GROUP}},
    "topics": {"topics": [{"topic": "a", "class": "telemetry", "partition": 0, "name": "x", "first": 0, "next": 1}]},
    "put": {"partitions": [0], "offsets": [7], "duplicates": [False]},
}
WRONG: tuple[Any, ...] = (None, "x", -1, 1.5, True, [], {}, 2**63, float("inf"))


class OddServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.answers = json.loads(json.dumps(ANSWERS))

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        return [json.dumps(self.answers[action.type]).encode()]

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            writer.write(json.dumps(self.answers["put"]).encode())


@pytest.fixture
def odd() -> Iterator[OddServer]:
    server = OddServer()
    yield server
    server.shutdown()


CALLS: dict[str, Callable[[Client], object]] = {
    "version": lambda client: client.version(),
    "offsets": lambda client: client.offsets(),
    "plan": lambda client: client.plan({0: 0}),
    "committed": lambda client: client.committed("g"),
    "topics": lambda client: client.topics(),
    "put": lambda client: client.produce([Row("a", b"x")]),
}


def fields_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from fields_of(value[key], (*path, key))


def result_of(client: Client, name: str) -> object:
    try:
        return CALLS[name](client)
    except BrokerError as error:
        return error


@pytest.mark.parametrize("name", CALLS)
def test_a_field_of_another_type_is_told_and_not_passed_on(odd: OddServer, name: str) -> None:
    with Client(odd.address, retries=0) as client:
        honest, told = CALLS[name](client), list[str]()
        for path in fields_of(ANSWERS[name]):
            for wrong in WRONG:
                odd.answers = json.loads(json.dumps(ANSWERS))
                at = odd.answers[name]
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = wrong
                found = result_of(client, name)
                if isinstance(found, BrokerError):
                    told.append(str(found))
                    continue
                # Some values may be absent, a text is a text, and no partitions are none.
                assert wrong in (None, "x", {}, []) or path[0] == "duplicates", (path, wrong, found)
                assert type(found) is type(honest)
    assert len(told) > len(WRONG)
    assert all(odd.address in sentence for sentence in told)


@pytest.mark.parametrize(
    "wrong",
    [
        {"put": {"partitions": [0], "offsets": ["7"], "duplicates": [False]}},
        {"put": {"partitions": 0, "offsets": 7, "duplicates": False}},
        {"put": [[[[]]]]},
        {"version": {**ANSWERS["version"], "log_id": ["a", "list"]}},
        {"version": 5},
    ],
)
def test_a_broker_with_odd_answers_is_away_and_ends_no_engine(odd: OddServer, wrong: dict[str, Any]) -> None:
    odd.answers |= wrong
    publisher = DevicePublisher(odd.address, timeout_s=5.0)
    outbound = Outbound([publisher], wake=lambda: None)
    outbound.meet(5.0)
    outbound.send([Publish("a1", "d1", 1, "command", "devices/d1/actions", b"{}", "a1/d1/1")], seconds=5.0)
    outbound.settle(5.0)
    assert outbound.collected().places == {}
    with pytest.raises(HeadwaterError, match=odd.address):
        outbound.require_answer(5.0) if "version" in wrong else publisher.publish(
            [Row("devices/d1/actions", b"{}", idempotency_key="x")]
        )
    outbound.close()
    publisher.close()


def test_an_answer_of_admin_http_that_is_too_deep_is_one_sentence() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"[" * 200_000)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(BrokerError, match=address):
        Admin(address, timeout_s=20.0).whoami()
    thread.join()
    server.close()
