"""Splits: ranges are divided into tasks without loss, and a forwarded split reads the same as its task would."""

from __future__ import annotations

import pickle
import random

from hypothesis import given
from hypothesis import strategies as st
from support.flight_server import FlightServer
from support.source_driver import FILTER, Query, open_reader, read_rows

from sources.offsets import OffsetRange
from sources.options import SourceOptions, parse_options
from sources.splits import SPLIT_SCHEMA, TOGETHER_MAX, Split, plan_tasks, read_split

SEED = 20_261_121


def options(**more: str) -> SourceOptions:
    return parse_options({"servers": "grpc://a:1", "subscribe": "a/#", **more})


def offsets_of(found: list[OffsetRange]) -> set[tuple[str, int, int]]:
    return {(one.log_id, one.partition, offset) for one in found for offset in range(one.start, one.end)}


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    max_records=st.none() | st.integers(1, 400),
    min_partitions=st.none() | st.integers(1, 40),
)
def test_tasks_cover_every_offset_once(lengths: list[int], max_records: int | None, min_partitions: int | None) -> None:
    found = [OffsetRange(f"log-{n % 3}", n, 7, 7 + length, 2) for n, length in enumerate(lengths)]
    given_options = {"maxRecordsPerPartition": max_records, "minPartitions": min_partitions}
    chosen = options(**{name: str(value) for name, value in given_options.items() if value is not None})
    tasks = plan_tasks(found, {f"log-{n}": f"grpc://{n}" for n in range(3)}, chosen)
    pieces = [piece for task in tasks for piece in task.offsets]
    assert offsets_of(pieces) == offsets_of(found)
    assert sum(piece.end - piece.start for piece in pieces) == sum(lengths)
    assert all(task.address == f"grpc://{piece.log_id[-1]}" for task in tasks for piece in task.offsets)
    if max_records is not None:
        assert all(sum(piece.end - piece.start for piece in task.offsets) <= max_records for task in tasks)
    # The end of a range is checked by its epoch, in whichever piece it is.
    assert {(piece.partition, piece.end) for piece in pieces if piece.end_epoch == 2} == {
        (one.partition, one.end) for one in found
    }


def test_small_ranges_of_a_broker_share_a_task_and_large_ones_do_not() -> None:
    small = [OffsetRange("one", n, 0, 1_000) for n in range(16)] + [OffsetRange("two", 0, 0, 1_000)]
    addresses = {"one": "grpc://1", "two": "grpc://2"}
    assert [len(task.offsets) for task in plan_tasks(small, addresses, options())] == [16, 1]
    large = [OffsetRange("one", n, 0, TOGETHER_MAX) for n in range(4)]
    assert len(plan_tasks(large, addresses, options())) == 4
    assert len(plan_tasks(small, addresses, options(minPartitions="17"))) == 17


def test_the_number_of_tasks_does_not_depend_on_the_number_of_topics(flight_server: FlightServer) -> None:
    counts = []
    for topics in (1, 500):
        for number in range(500):
            flight_server.log.append(f"devices/d{number % topics}/telemetry", b"x")
        query = Query(flight_server)
        query.restart()
        counts.append(len(query.reader.partitions(*query.plan())))
    assert counts == [1, 1]


def test_a_split_reads_what_its_task_would_have_read(flight_server: FlightServer) -> None:
    chance = random.Random(SEED)
    for number in range(400):
        kind = chance.choice(["telemetry", "status"])
        flight_server.log.append(f"devices/d{number % 20}/{kind}", b"%d" % number)
    reader = open_reader(flight_server, includeHeaders="true", maxRecordsPerPartition="60")
    start = reader.initialOffset()
    query = Query(flight_server)
    _, end = query.plan()
    rows = read_rows(reader, start, end)

    base = {"servers": flight_server.location, "subscribe": FILTER, "includeHeaders": "true"}
    splitting = open_reader(flight_server, maxRecordsPerPartition="60", **{"yield": "splits"})
    handed_on = read_rows(splitting, start, end)
    assert len(handed_on) > 4
    assert list(handed_on[0]) == SPLIT_SCHEMA.names
    chosen = parse_options({**base, "yield": "splits"})
    copies = [pickle.loads(pickle.dumps(Split.of(row))) for row in handed_on]
    read = [row for split in copies for batch in read_split(split, chosen) for row in batch.to_pylist()]
    assert read == rows
    assert {row["topic"].rpartition("/")[2] for row in read} == {"telemetry"}
