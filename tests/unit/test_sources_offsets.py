"""Offsets as Spark stores them: one text for one set of positions, and the ranges between two of them."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_edge.errors import OffsetError
from sources.offsets import OffsetRange, Place, SourceOffset, ranges

places = st.builds(
    Place,
    st.integers(0, 2**53),
    st.none() | st.integers(0, 2**40),
    st.none() | st.integers(0, 2**53),
)
offsets = st.builds(
    SourceOffset,
    st.dictionaries(st.uuids().map(str), st.dictionaries(st.integers(0, 300), places, min_size=1), max_size=4),
    st.dictionaries(st.uuids().map(str), st.text(max_size=20), max_size=4),
)


@given(offsets)
def test_an_offset_survives_the_checkpoint(offset: SourceOffset) -> None:
    assert SourceOffset.from_json(json.loads(offset.text())) == offset


@given(offsets, st.randoms())
def test_one_set_of_places_has_one_text(offset: SourceOffset, random: Random) -> None:
    shuffled = {}
    for log_id in random.sample(sorted(offset.logs), len(offset.logs)):
        numbers = sorted(offset.logs[log_id])
        shuffled[log_id] = {n: offset.logs[log_id][n] for n in random.sample(numbers, len(numbers))}
    owners = {log_id: offset.owners[log_id] for log_id in random.sample(sorted(offset.owners), len(offset.owners))}
    assert SourceOffset(shuffled, owners).text() == offset.text()


def test_the_text_is_the_documented_one() -> None:
    offset = SourceOffset({"b": {10: Place(7, 2), 9: Place(0)}, "a": {3: Place(9, 4, 5)}})
    assert offset.text() == '{"v":1,"logs":{"a":{"3":[9,4,5]},"b":{"9":[0,null],"10":[7,2]}}}'
    owned = SourceOffset({"a": {3: Place(9, 4)}}, {"b": "grpc://b:1", "a": "north"})
    assert owned.text() == '{"v":2,"logs":{"a":{"3":[9,4]}},"owners":{"a":"north","b":"grpc://b:1"}}'


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "JSON object"),
        ({"v": 3, "logs": {}}, "version 3"),
        ({"v": True, "logs": {}}, "version True"),
        ({"v": 2, "logs": {}}, "fields v, logs, owners"),
        ({"v": 2, "logs": {}, "owners": []}, "`owners` is a JSON object of texts"),
        ({"v": 2, "logs": {}, "owners": {"a": 1}}, "`owners` is a JSON object of texts"),
        ({"logs": {}}, "version None"),
        ({"v": 1, "logs": {}, "x": 1}, "fields"),
        ({"v": 1, "logs": []}, "JSON object"),
        ({"v": 1, "logs": {"a": []}}, "JSON object"),
        ({"v": 1, "logs": {"a": {"x": [1, 1]}}}, "not a number"),
        ({"v": 1, "logs": {"a": {"3": [1]}}}, "[next, epoch]"),
        ({"v": 1, "logs": {"a": {"3": [1, 1, 1, 1]}}}, "[next, epoch]"),
        ({"v": 1, "logs": {"a": {"3": [None, 1]}}}, "does not consist of numbers"),
        ({"v": 1, "logs": {"a": {"3": [True, 1]}}}, "does not consist of numbers"),
        ({"v": 1, "logs": {"a": {"3": [1.5, 1]}}}, "does not consist of numbers"),
        ({"v": 1, "logs": {"a": {"3": [-1, 1]}}}, "negative"),
    ],
)
def test_what_is_not_an_offset_is_refused_in_words(value: object, says: str) -> None:
    with pytest.raises(OffsetError) as error:
        SourceOffset.from_json(value)
    assert says in str(error.value)


@given(st.integers(0, 1_000), st.integers(1, 1_000), st.integers(1, 50))
def test_split_ranges_cover_the_range_once(start: int, length: int, parts: int) -> None:
    whole = OffsetRange("a", 3, start, start + length, 7)
    pieces = whole.split(parts)
    assert len(pieces) == min(parts, length)
    assert [offset for piece in pieces for offset in range(piece.start, piece.end)] == list(
        range(start, start + length)
    )
    assert [piece.end_epoch for piece in pieces] == [None] * (len(pieces) - 1) + [7]


def test_a_batch_reads_what_moved_and_nothing_else() -> None:
    start = SourceOffset({"a": {3: Place(5, 1), 4: Place(2, 1)}})
    end = SourceOffset({"a": {3: Place(9, 2), 4: Place(2, 1)}})
    assert ranges(start, end) == [OffsetRange("a", 3, 5, 9, 2)]


def test_a_new_partition_enters_with_an_empty_range() -> None:
    start = SourceOffset({"a": {3: Place(5, 1)}})
    end = SourceOffset({"a": {3: Place(5, 1), 4: Place(7)}, "b": {3: Place(0)}})
    assert ranges(start, end) == []


def test_after_a_passed_loss_the_batch_begins_where_the_end_says() -> None:
    start = SourceOffset({"a": {3: Place(100, 1)}})
    end = SourceOffset({"a": {3: Place(95, 2, resumed_at=90)}})
    assert ranges(start, end) == [OffsetRange("a", 3, 90, 95, 2)]
    # The position does not change in later batches that do not move it.
    assert ranges(end, end) == []


def test_a_batch_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(OffsetError, match="ends at 9, before its start 10"):
        ranges(SourceOffset({"a": {3: Place(10)}}), SourceOffset({"a": {3: Place(9)}}))
