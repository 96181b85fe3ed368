"""Filters of batch queries: they narrow what is read, and never exclude a row that passes."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from support.flight_server import FlightServer, refusal
from support.memory_log import MemoryLog

from sources.batch import FilteringBatchReader
from sources.options import parse_options
from sources.pushdown import filter_matches, narrow

SEED = 20_261_121
START = datetime(2026, 11, 21, tzinfo=UTC)
RECORDS = 300


def fill(log: MemoryLog) -> None:
    """A clock that is set back once, as on real edge boxes."""
    chance = random.Random(SEED)
    for number in range(RECORDS):
        moment = START + timedelta(seconds=number if number < 200 else number - 150)
        name = f"devices/d{chance.randrange(12)}/{chance.choice(['telemetry', 'status'])}"
        log.append(name, b"%d" % number, timestamp_us=int(moment.timestamp()) * 1_000_000)


def reader(server: FlightServer, **options: str) -> FilteringBatchReader:
    return FilteringBatchReader(parse_options({"servers": server.location, "subscribe": "devices/#", **options}))


def read(one: FilteringBatchReader) -> list[dict[str, Any]]:
    return [row for task in one.partitions() for batch in one.read(task) for row in batch.to_pylist()]


def passes(row: dict[str, Any], one: Filter) -> bool:
    if isinstance(one, Not):
        return not passes(row, one.child)
    value = row[one.attribute[0]]
    match one:
        case EqualTo():
            return bool(value == one.value)
        case In():
            return value in one.value
        case GreaterThan():
            return bool(value > one.value)
        case GreaterThanOrEqual():
            return bool(value >= one.value)
        case LessThan():
            return bool(value < one.value)
        case LessThanOrEqual():
            return bool(value <= one.value)
        case StringStartsWith():
            return bool(value.startswith(one.value))
        case _:
            raise AssertionError(one)


TOPICS = st.sampled_from([f"devices/d{n}/{kind}" for n in (0, 3, 99) for kind in ("telemetry", "status")])
PLACES = st.integers(-5, 200)
TIMES = st.integers(-10, 400).map(lambda seconds: START + timedelta(seconds=seconds))
COMPARISONS = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
FILTERS = st.one_of(
    st.builds(lambda topic: EqualTo(("topic",), topic), TOPICS),
    st.builds(lambda topics: In(("topic",), tuple(topics)), st.lists(TOPICS, min_size=1)),
    st.builds(lambda kind, value: kind(("offset",), value), COMPARISONS, PLACES),
    st.builds(lambda kind, value: kind(("timestamp",), value), COMPARISONS, TIMES),
    st.builds(lambda number: EqualTo(("partition",), number), st.integers(2, 5)),
    st.just(StringStartsWith(("topic",), "devices/d1")),
    st.builds(lambda topic: Not(EqualTo(("topic",), topic)), TOPICS),
)


@settings(max_examples=40)
@given(filters=st.lists(FILTERS, max_size=4), back=st.sampled_from([{}, {"maxClockSetBack": "150s"}]))
def test_no_row_that_passes_is_left_out(
    shared_server: FlightServer, filters: list[Filter], back: dict[str, str]
) -> None:
    expected = [row for row in read(reader(shared_server)) if all(passes(row, one) for one in filters)]
    narrowed = reader(shared_server, **back)
    assert narrowed.pushFilters(filters) == filters, "Spark applies all of them again"
    found = [row for row in read(narrowed) if all(passes(row, one) for one in filters)]
    assert found == expected


@pytest.fixture(scope="module")
def shared_server() -> Any:
    with FlightServer() as server:
        fill(server.log)
        yield server


@pytest.mark.parametrize(
    ("filters", "rows_max"),
    [
        ([EqualTo(("topic",), "devices/d3/telemetry")], 40),
        ([EqualTo(("topic",), "devices/nobody/telemetry")], 0),
        ([EqualTo(("topic",), "elsewhere")], 0),
        ([GreaterThanOrEqual(("offset",), 100), LessThan(("offset",), 110)], 20),
        ([GreaterThan(("timestamp",), START + timedelta(seconds=195))], 105),
        ([In(("partition",), (3,))], 200),
        ([EqualTo(("log_id",), "another")], 0),
    ],
)
def test_what_is_read_is_less(shared_server: FlightServer, filters: list[Filter], rows_max: int) -> None:
    everything = len(read(reader(shared_server)))
    narrowed = reader(shared_server)
    narrowed.pushFilters(filters)
    assert len(read(narrowed)) <= rows_max < everything


WITHOUT_ZONE = START.replace(tzinfo=None)
WITHIN = [
    GreaterThanOrEqual(("timestamp",), START + timedelta(seconds=100)),
    LessThan(("timestamp",), START + timedelta(seconds=120)),
]


def planned(one: FilteringBatchReader) -> int:
    """The number of offsets that tasks will read."""
    return sum(part.end - part.start for task in one.partitions() for part in task.offsets)


@pytest.mark.parametrize(("back", "offsets_max"), [(None, 150), ("30s", 51), ("0", 21)])
def test_an_upper_bound_of_time_cuts_what_is_planned_where_the_clock_is_known(
    flight_server: FlightServer, back: str | None, offsets_max: int
) -> None:
    """One record per second, and a clock that was never set back; one second more than stated is read."""
    for number in range(250):
        at = START + timedelta(seconds=number)
        flight_server.log.append("devices/d1/telemetry", b"x", timestamp_us=int(at.timestamp()) * 1_000_000)
    narrowed = reader(flight_server, **({} if back is None else {"maxClockSetBack": back}))
    narrowed.pushFilters(WITHIN)
    assert planned(narrowed) == offsets_max
    assert len([row for row in read(narrowed) if all(passes(row, one) for one in WITHIN)]) == 20


def test_a_clock_that_was_set_back_by_as_much_as_said_hides_no_row(shared_server: FlightServer) -> None:
    """It was set back by 150 s: a smaller stated value loses rows, a larger one does not."""
    everything = [row for row in read(reader(shared_server)) if all(passes(row, one) for one in WITHIN)]
    found = {}
    for back in ("150s", "1h", "0ms"):
        narrowed = reader(shared_server, maxClockSetBack=back)
        narrowed.pushFilters(WITHIN)
        found[back] = [row for row in read(narrowed) if all(passes(row, one) for one in WITHIN)]
    assert found["150s"] == found["1h"] == everything
    assert len(found["0ms"]) < len(everything), "negative control: a wrong promise loses rows"


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([LessThan(("timestamp",), START)], (None, 0)),
        ([LessThanOrEqual(("timestamp",), START)], (None, 1)),
        ([EqualTo(("timestamp",), START)], (0, 1)),
        ([In(("timestamp",), (START + timedelta(seconds=2), START))], (0, 2_000_001)),
        ([LessThan(("timestamp",), START + timedelta(seconds=2)), LessThan(("timestamp",), START)], (None, 0)),
        ([LessThan(("timestamp",), WITHOUT_ZONE)], (None, None)),
        ([In(("timestamp",), (START, WITHOUT_ZONE))], (None, None)),
    ],
)
def test_times_that_may_pass_are_taken_from_filters(
    filters: list[Filter], bounds: tuple[int | None, int | None]
) -> None:
    found = narrow(filters)
    base = int(START.timestamp()) * 1_000_000
    assert (found.time_from_us, found.time_to_us) == tuple(None if one is None else base + one for one in bounds)


def test_an_upper_bound_of_time_does_not_cut_where_the_clock_went_back(shared_server: FlightServer) -> None:
    assert narrow([LessThan(("timestamp",), START)]).clip is not None
    filters = [LessThan(("timestamp",), START + timedelta(seconds=60))]
    narrowed = reader(shared_server)
    narrowed.pushFilters(filters)
    offsets = [row["value"] for row in read(narrowed) if passes(row, filters[0])]
    assert len(offsets) == 70, "60 before the clock went back and 10 after"


def test_named_offsets_of_another_partition_still_count(shared_server: FlightServer) -> None:
    log_id = shared_server.log.log_id
    narrowed = reader(shared_server, startingOffsets=json.dumps({log_id: {"1": 0}}))
    narrowed.pushFilters([EqualTo(("topic",), "devices/d3/telemetry")])
    assert {row["topic"] for row in read(narrowed)} == {"devices/d3/telemetry"}


def test_who_may_not_list_topics_reads_them_all_the_same(flight_server: FlightServer) -> None:
    fill(flight_server.log)

    def refuse(name: str) -> None:
        if name == "topics":
            raise refusal("permission_denied", "no")

    flight_server.before = refuse
    narrowed = reader(flight_server)
    narrowed.pushFilters([EqualTo(("topic",), "devices/d3/telemetry")])
    assert {row["topic"] for row in read(narrowed)} == {"devices/d3/telemetry"}


def test_filters_match_by_the_rules_of_mqtt() -> None:
    assert filter_matches("a/+/c", "a/b/c")
    assert filter_matches("a/#", "a")
    assert not filter_matches("+", "a/b")
    assert not filter_matches("#", "$gaps")
    assert filter_matches("$gaps", "$gaps")
