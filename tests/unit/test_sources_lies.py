"""A broker that sends other records than those that were asked for: none of them reaches a table.

A row keeps the log, partition and offset under which it came. With several brokers, one of them could otherwise write
rows in the name of another.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from support.flight_wire import SCHEMA

from broker_edge.access import BrokerAccess
from broker_edge.client import Client
from broker_edge.errors import BrokerError, HeadwaterError, OptionError, RefusedError, UnavailableError
from sinks.devices import DevicePublisher
from sources.access import Access, access_options
from sources.answers import PARTITIONS_MAX
from sources.fetch import fetch
from sources.log_server import LogServer
from sources.offsets import OffsetRange, SourceOffset
from sources.options import parse_options
from sources.servers import Servers
from sources.stream import StreamReader

MINE = "log-of-this-broker"
Sent = tuple[pa.RecordBatch, bytes | int]


class LyingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Sends what the test says, whatever it is asked."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.sent: Callable[[], Iterable[Sent]] = list
        self.schema = SCHEMA
        self.answers: dict[str, Any] = {"version": {"version": "1", "protocol": 1, "format": 1, "log_id": MINE}}

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterable[bytes]:
        answer = self.answers[action.type]
        return answer() if callable(answer) else [json.dumps(answer).encode()]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        def batches() -> Iterator[tuple[pa.RecordBatch, bytes]]:
            for batch, following in self.sent():
                yield batch, following if isinstance(following, bytes) else json.dumps({"next": following}).encode()

        return flight.GeneratorStream(self.schema, batches())


@pytest.fixture
def liar() -> Iterator[LyingServer]:
    server = LyingServer()
    yield server
    server.shutdown()


def records(offsets: Iterable[int | None], **other: Any) -> pa.RecordBatch:
    honest: dict[str, Any] = {
        "key": b"d1", "value": b"{}", "topic": "devices/d1/telemetry", "partition": 0, "timestampType": 1,
        "timestamp": 1_700_000_000_000_000, "headers": None, "log_id": MINE, "epoch": 1, "qos": 1, "retain": False,
        "client_id": "d1",
    }  # fmt: skip
    rows = [{**honest, "offset": offset, **other} for offset in offsets]
    times = pa.array([row["timestamp"] for row in rows], pa.int64()).cast(SCHEMA.field("timestamp").type)
    columns = [
        times if field.name == "timestamp" else pa.array([row[field.name] for row in rows], field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def with_column(name: str, values: pa.Array) -> pa.RecordBatch:
    batch = records(range(10))
    at = SCHEMA.get_field_index(name)
    return pa.RecordBatch.from_arrays([*batch.columns[:at], values, *batch.columns[at + 1 :]], schema=SCHEMA)


def read(liar: LyingServer, *, patience_ms: int = 300) -> list[int]:
    options = parse_options(
        {
            "servers": liar.address,
            "subscribe": "devices/+/telemetry",
            "includeHeaders": "true",
            "pollTimeoutMs": str(patience_ms),
        }
    )
    server = LogServer(liar.address)
    try:
        batches = list(fetch(OffsetRange(MINE, 0, 0, 10, 1), server, options))
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    finally:
        server.close()


def texts(*values: bytes) -> pa.Array:
    """Texts that need not be UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def beyond_its_buffer() -> pa.Array:
    """Texts of which one ends far behind the memory that holds them."""
    offsets = pa.array([0, 1 << 30, *range(2, 11)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 10, [None, offsets, pa.py_buffer(b"x" * 10)])


LIES: dict[str, tuple[str, list[Sent]]] = {
    "of another log": ("of another log", [(records(range(10), log_id="log-of-another-broker"), 10)]),
    "of another partition": ("of another partition", [(records(range(10), partition=7), 10)]),
    "behind the end": ("the offsets 1000 to 1009", [(records(range(1000, 1010)), 10)]),
    "behind next": ("the offsets 0 to 9", [(records(range(10)), 5)]),
    "one offset ten times": ("do not rise", [(records([5] * 10), 10)]),
    "falling": ("do not rise", [(records(range(9, -1, -1)), 10)]),
    "a batch twice": ("the offsets 0 to 7", [(records(range(8)), 8), (records(range(8)), 10)]),
    "going back": ("goes back to 0", [(records(range(5)), 5), (records([]), 0)]),
    "no offset": ("have no offset", [(records([None] * 10), 10)]),
    "no topic": ("have no topic", [(records(range(10), topic=None), 10)]),
    "after 9999": ("before 1970 or after 9999", [(records(range(10), timestamp=2**62), 10)]),
    "before 1970": ("before 1970 or after 9999", [(records(range(10), timestamp=-1), 10)]),
    "not UTF-8": ("not valid Arrow", [(with_column("topic", texts(*[b"\xff\xfe"] * 10)), 10)]),
    "other memory": ("not valid Arrow", [(with_column("topic", beyond_its_buffer()), 10)]),
    "more than all": ("goes on behind the end", [(records(range(10)), 10), (records([10]), 11)]),
    "no metadata": ("cannot be read", [(records(range(10)), b"")]),
    "a word as next": ("cannot be read", [(records(range(10)), b'{"next": "10"}')]),
    "infinity as next": ("cannot be read", [(records(range(10)), b'{"next": Infinity}')]),
}


@pytest.mark.parametrize("lie", LIES)
def test_records_that_nobody_has_asked_for_reach_no_table(liar: LyingServer, lie: str) -> None:
    reason, sent = LIES[lie]
    liar.sent = lambda: sent
    with pytest.raises((RefusedError, UnavailableError), match=reason) as told:
        read(liar)
    assert liar.address in str(told.value)


def test_control_the_same_records_in_order_are_read(liar: LyingServer) -> None:
    liar.sent = lambda: [(records(range(4)), 4), (records([]), 6), (records([7, 9]), 10)]
    assert read(liar) == [0, 1, 2, 3, 7, 9]


def test_an_answer_that_stands_still_is_given_up(liar: LyingServer) -> None:
    liar.sent = lambda: ((records([]), 0) for _ in itertools.count())
    with pytest.raises(UnavailableError, match="sends nothing behind offset 0"):
        read(liar)


def test_a_column_of_another_type_is_named(liar: LyingServer) -> None:
    liar.schema = pa.schema([field for field in SCHEMA if field.name != "epoch"])
    liar.sent = lambda: [(records(range(10)).select(liar.schema.names), 10)]
    with pytest.raises(OptionError, match="epoch"):
        read(liar)


def test_a_broker_with_a_named_log_takes_the_place_of_no_other(liar: LyingServer) -> None:
    """A broker says itself which log it holds."""
    victim = LyingServer()
    try:
        for server in (victim, liar):
            server.answers["version"] |= {"log_id": "log-of-the-victim"}
        brokers = [BrokerAccess(liar.address, log_id=MINE), BrokerAccess(victim.address)]
        servers = Servers(parse_options({**access_options(brokers), "subscribe": "a"}))
        found, (error,) = servers.reachable()
        assert {log_id: server.address for log_id, server in found.items()} == {"log-of-the-victim": victim.address}
        servers.close()
        assert f"says that it holds log log-of-the-victim, and the options name {MINE}" in str(error)
        victim.shutdown()
        publisher = DevicePublisher(brokers[0], timeout_s=5.0)
        with pytest.raises(BrokerError, match="says that it holds log log-of-the-victim"):
            publisher.log_id()
        publisher.close()
        liar.answers["version"] |= {"log_id": MINE}
        assert LogServer(liar.address, access=Access(log_id=MINE)).log_id() == MINE
    finally:
        victim.shutdown()


PLAN = {"end": 10, "scanned": 10, "high_watermark": 10, "records": 10, "bytes": 9, "epoch": 1, "log_start": 0}
OFFSETS = {"log_start": 0, "high_watermark": 10, "epoch": 1, "epoch_before": None, "name": "telemetry-0"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"end": 11},
        {"end": 2**70, "scanned": 2**70},
        {"scanned": 11},
        {"end": "ten"},
        {"epoch": {}},
        {"records": None},
        {"high_watermark": float("inf")},
        {"epoch": 1.5},
        {"epoch": True},
        {"epoch": 2**63},
        {"end": 5.5},
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_a_checkpoint_has_it(liar: LyingServer, wrong: dict[str, Any]) -> None:
    liar.answers |= {
        "offsets": {"log_id": MINE, "partitions": {"0": OFFSETS}},
        "plan": {"log_id": MINE, "partitions": {"0": {**PLAN, **wrong}}},
    }
    reader = StreamReader(parse_options({"servers": liar.address, "subscribe": "devices/+/telemetry"}))
    start = reader.initialOffset()
    with pytest.raises(RefusedError, match="answers what cannot be used") as told:
        reader.latestOffset(start, reader.getDefaultReadLimit())
    assert liar.address in str(told.value)
    liar.answers["plan"] = {"log_id": MINE, "partitions": {"0": PLAN}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert SourceOffset.from_json(end).logs[MINE][0].next == 10
    reader.stop()


@pytest.mark.parametrize(
    "partitions",
    [
        {"-1": OFFSETS},
        {" 7 ": OFFSETS},
        {"٣": OFFSETS},
        {str(2**31): OFFSETS},
        {"99999999999": OFFSETS},
        {"7": {**OFFSETS, "log_start": 2**63}},
        {"7": {**OFFSETS, "epoch_before": 1.5}},
        {"7": []},
        {str(number): OFFSETS for number in range(PARTITIONS_MAX + 1)},
    ],
    ids=["below 0", "spaces", "other digits", "over int32", "11 digits", "over int64", "epoch", "list", "too many"],
)
def test_a_partition_that_cannot_be_is_refused_before_a_checkpoint_has_it(
    liar: LyingServer, partitions: dict[str, Any]
) -> None:
    """The checkpoint could not be read any more, also without the broker that said it."""
    honest = {"0": OFFSETS}
    liar.answers |= {"plan": {"log_id": MINE, "partitions": {"0": PLAN}}}
    reader = StreamReader(parse_options({"servers": liar.address, "subscribe": "devices/+/telemetry"}))
    liar.answers["offsets"] = {"log_id": MINE, "partitions": honest | partitions}
    with pytest.raises(RefusedError, match="answers what cannot be used") as told:
        reader.initialOffset()
    assert liar.address in str(told.value)
    liar.answers["offsets"] = {"log_id": MINE, "partitions": honest}
    start = reader.initialOffset()
    liar.answers["offsets"] = {"log_id": MINE, "partitions": honest | partitions}
    with pytest.raises(RefusedError, match="answers what cannot be used"):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    liar.answers["offsets"] = {"log_id": MINE, "partitions": honest}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert SourceOffset.from_json(end).logs[MINE][0].next == 10
    reader.stop()


@pytest.mark.parametrize("initial", [1.5, True, "7", -1, 2**63])
def test_a_start_of_a_group_that_cannot_be_is_refused_before_a_checkpoint_has_it(
    liar: LyingServer, initial: object
) -> None:
    liar.answers |= {
        "offsets": {"log_id": MINE, "partitions": {"0": OFFSETS}},
        "committed": {"group": "g", "reader_epoch": 1, "partitions": {"0": {"initial": initial}}},
    }
    options = {"servers": liar.address, "subscribe": "devices/+/telemetry", "consumerGroup": "g"}
    reader = StreamReader(parse_options(options))
    with pytest.raises(RefusedError, match="answers what cannot be used"):
        reader.initialOffset()
    reader.stop()


@pytest.mark.parametrize("lie", ["other memory", "not UTF-8", "going back"])
def test_a_client_does_not_compute_with_what_is_not_there(liar: LyingServer, lie: str) -> None:
    liar.sent = lambda: LIES[lie][1]
    with Client(liar.address, retries=0) as client, pytest.raises(BrokerError, match="cannot be read"):
        client.fetch(0, 0, 10).to_table()


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"partitions": [1], "log_id": "x"}', b"[]"])
def test_an_answer_that_cannot_be_read_is_one_sentence(liar: LyingServer, body: bytes) -> None:
    liar.answers["offsets"] = lambda: [body]
    with Client(liar.address, retries=0) as client, pytest.raises(HeadwaterError, match=liar.address):
        client.offsets()


def test_results_without_end_do_not_fill_the_memory(liar: LyingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_edge._connection._ANSWER_BYTES_MAX", 1 << 20)
    liar.answers["topics"] = lambda: (b'{"topics": []}' + b" " * 10_000 for _ in itertools.count())
    with Client(liar.address, retries=0) as client, pytest.raises(BrokerError, match="more than 1,048,576 bytes"):
        client.topics()
