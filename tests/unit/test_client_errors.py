"""Each error of the protocol arrives as its own class with its numbers; an unreachable broker is waited for."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from support.flight_server import FlightServer, refusal
from support.memory_log import MemoryLog

from broker_edge import (
    BrokerError,
    Client,
    ConfigError,
    ConnectError,
    DataLossError,
    DeadlineError,
    FencedError,
    FullError,
    HeadwaterError,
    NotFoundError,
    OffsetRange,
    OutOfRangeError,
    RefusedError,
    Row,
    UnavailableError,
)
from broker_edge.flight import from_flight


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_offset_that_retention_removed_names_the_bounds(flight_server: FlightServer) -> None:
    for _ in range(10):
        flight_server.log.append("a", b"", partition=3)
    flight_server.log.expire(3, 6)
    with Client(flight_server.location) as client:
        for ask in (
            lambda: client.fetch(3, 2, 8).to_table(),
            lambda: client.plan({3: 2}),
            lambda: next(client.tail(3, 2)),
        ):
            with pytest.raises(OutOfRangeError) as caught:
                ask()
            error = caught.value
            assert (error.partition, error.log_start, error.high_watermark, error.wanted) == (3, 6, 10, 2)


def test_damage_names_the_offsets(flight_server: FlightServer) -> None:
    for _ in range(10):
        flight_server.log.append("a", b"", partition=3)
    flight_server.log.lose(3, 4, 7)
    with Client(flight_server.location) as client, pytest.raises(DataLossError) as caught:
        client.fetch(3, 0, 10).to_table()
    assert (caught.value.partition, caught.value.start, caught.value.end) == (3, 4, 7)


def test_an_older_reader_is_fenced(flight_server: FlightServer) -> None:
    with Client(flight_server.location) as client:
        client.commit("g", reader_epoch=2)
        for ask in (lambda: client.commit("g", reader_epoch=1), lambda: client.committed("g", reader_epoch=1)):
            with pytest.raises(FencedError) as caught:
                ask()
            assert (caught.value.group, caught.value.reader_epoch) == ("g", 2)


@pytest.mark.parametrize(
    ("code", "more", "kind"),
    [
        ("full", {"partition": 3}, FullError),
        ("stopped", {"partition": 3}, UnavailableError),
        ("invalid_argument", {"field": "filters"}, RefusedError),
        ("not_found", {}, NotFoundError),
        ("internal", {}, BrokerError),
        ("something_new", {}, BrokerError),
        ("out_of_range", {}, BrokerError),
    ],
)
def test_each_code_is_a_kind(
    flight_server: FlightServer, code: str, more: dict[str, object], kind: type[HeadwaterError]
) -> None:
    def refuse(name: str) -> None:
        raise refusal(code, "what happened {and} why", **more)

    flight_server.before = refuse
    with Client(flight_server.location) as client:
        for ask in (lambda: client.version(), lambda: client.produce([Row("a", b"")])):
            with pytest.raises(kind, match=r"what happened \{and\} why"):
                ask()


def test_nobody_at_the_address_is_one_sentence_that_names_it() -> None:
    location = f"grpc://127.0.0.1:{unused_port()}"
    with Client(location, retries=0) as client, pytest.raises(ConnectError) as caught:
        client.version()
    assert caught.value.server == location
    assert str(caught.value).startswith(f"cannot connect to {location}: is the broker running")
    assert "\n" not in str(caught.value)


def test_a_read_waits_for_a_broker_that_comes_back(flight_server: FlightServer) -> None:
    with Client(flight_server.location, retries=20) as client:
        client.version()
        flight_server.down()
        timer = threading.Timer(0.5, flight_server.up)
        timer.start()
        assert client.version().log_id == flight_server.log.log_id
        timer.join()


def test_a_tail_goes_on_after_a_restart_without_repeats(flight_server: FlightServer) -> None:
    for _ in range(3):
        flight_server.log.append("a", b"", partition=3)
    seen: list[int] = []
    with Client(flight_server.location, retries=20) as client, client.tail(3, 0) as stream:
        seen += next(stream).column("offset").to_pylist()
        flight_server.down()
        flight_server.log.new_epoch()
        flight_server.log.append("a", b"", partition=3)
        flight_server.up()
        seen += next(stream).column("offset").to_pylist()
    assert seen == [0, 1, 2, 3]


def test_a_stream_does_not_go_on_in_another_log() -> None:
    first = MemoryLog()
    other = MemoryLog()
    for log in (first, other):
        log.append("a", b"", partition=3)
    other.append("a", b"", partition=3)
    with FlightServer(first) as server, Client(server.location, retries=20) as client, client.tail(3, 0) as stream:
        next(stream)
        server.down()
        with FlightServer(other, port=server.port), pytest.raises(DataLossError, match=other.log_id):
            next(stream)


def test_a_stopped_partition_is_not_asked_again(flight_server: FlightServer) -> None:
    def refuse(name: str) -> None:
        raise refusal("stopped", "partition telemetry-0 is read-only after a failed sync", partition=3)

    flight_server.before = refuse
    with Client(flight_server.location) as client, pytest.raises(UnavailableError) as caught:
        client.version()
    assert caught.value.stopped
    assert flight_server.calls["version"] == 1


def test_a_silent_server_ends_in_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        with Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.5) as client:
            with pytest.raises((DeadlineError, ConnectError)):
                client.version()
        assert time.monotonic() - start < 10


def test_a_closed_client_says_so(flight_server: FlightServer) -> None:
    client = Client(flight_server.location)
    client.close()
    with pytest.raises(ConnectError, match="closed"):
        client.version()


@pytest.mark.parametrize("text", ["http://x:1", "grpc://", "grpc://h:port", "grpc://h:99999", "grpc://h:1/path"])
def test_a_bad_address_is_refused_before_anything_is_opened(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a server address"):
        Client(text)


@pytest.mark.parametrize("text", ["grpc://a:hunter2@h:1", "a:hunter2@h", "grpc://a:hunt/hunter2@h", "http://hunter2@h"])
def test_an_address_with_a_password_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigError, match="has a user or a password in it: write grpc://HOST:PORT") as refused:
        Client(text)
    assert "hunt" not in str(refused.value)


def test_addresses_may_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client("edge-7").server == "grpc://edge-7:8815"
    assert Client("[::1]:99").server == "grpc://[::1]:99"
    monkeypatch.setenv("HEADWATER_SERVER", "edge-8:1")
    assert Client().server == "grpc://edge-8:1"


def test_a_bad_range_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"\[5, 3\)"):
        OffsetRange(3, 5, 3)


def test_an_error_text_is_decoded_from_the_first_brace() -> None:
    text = 'Flight error: {"error": "full", "message": "no space"} gRPC client debug context: {grpc_status:8}'
    assert isinstance(from_flight(ValueError(text), server="s"), FullError)
    odd = from_flight(ValueError("a {brace} from elsewhere"), server="s")
    assert type(odd) is BrokerError
