"""Answers of a broker that the source cannot use: one sentence at once, not the retries of an unreachable broker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import pyarrow.flight as flight
import pytest

from broker_edge.errors import RefusedError
from sources.broker_errors import refused, unreachable
from sources.log_server import LogServer


class OddServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every action with the same texts."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.answers: list[bytes] = []
        self.calls = 0

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        self.calls += 1
        return self.answers


@pytest.fixture
def odd() -> Iterator[OddServer]:
    server = OddServer()
    yield server
    server.shutdown()


@pytest.mark.parametrize(
    ("answers", "ask"),
    [
        ([b"{}"], lambda server: server.topics(["#"])),
        ([b"[]"], lambda server: server.topics(["#"])),
        ([], lambda server: server.topics(["#"])),
        ([b"[]"], lambda server: server.version()),
        ([b"{}", b"{}"], lambda server: server.committed("g")),
        ([], lambda server: server.offsets()),
    ],
)
def test_an_answer_that_lacks_something_ends_the_call(
    odd: OddServer, answers: list[bytes], ask: Callable[[LogServer], object]
) -> None:
    odd.answers = answers
    server = LogServer(f"grpc://127.0.0.1:{odd.port}")
    with pytest.raises(RefusedError) as error:
        ask(server)
    assert (error.value.code, odd.calls) == ("internal", 1)
    server.close()


def test_errors_of_the_source_keep_what_they_name_between_processes() -> None:
    """Spark pickles them from its workers to the driver."""
    away = pickle.loads(pickle.dumps(unreachable("grpc://edge-7:8815", "gone")))
    assert (away.server, away.reason) == ("grpc://edge-7:8815", "gone")
    no = pickle.loads(pickle.dumps(refused("grpc://edge-7:8815", "not_found", {"message": "no such group"})))
    assert (no.server, no.code, no.detail["message"]) == ("grpc://edge-7:8815", "not_found", "no such group")
