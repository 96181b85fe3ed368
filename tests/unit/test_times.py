"""Times as people write them, and positions that name one."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from broker_edge.errors import RefusedError
from broker_edge.positions import parse_position
from broker_edge.times import time_us

NOW_US = 1_800_000_000_000_000
AT = datetime(2027, 1, 15, 22, tzinfo=UTC)
AT_S = int(AT.timestamp())


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("now", NOW_US),
        ("-1h", NOW_US - 3_600_000_000),
        ("+2d", NOW_US + 172_800_000_000),
        ("-90", NOW_US - 90_000_000),
        ("-1.5m", NOW_US - 90_000_000),
        ("-0.25", NOW_US - 250_000),
        (str(AT_S), AT_S * 1_000_000),
        (f"{AT_S}123", AT_S * 1_000_000 + 123_000),
        (f"{AT_S}123456", AT_S * 1_000_000 + 123_456),
        ("100000000", 100_000_000_000_000),
        ("2027-01-15T22:00Z", AT_S * 1_000_000),
        ("2027-01-15 23:00+01:00", AT_S * 1_000_000),
        (" 2027-01-15T22:00:00.000001Z ", AT_S * 1_000_000 + 1),
    ],
)
def test_a_time_has_many_forms(text: str, us: int) -> None:
    assert time_us(text, now_us=NOW_US) == us


def test_nanoseconds_are_cut_to_microseconds() -> None:
    assert abs(time_us(f"{AT_S}123456789") - (AT_S * 1_000_000 + 123_456)) <= 1


def test_a_time_without_a_zone_is_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time_us("2027-01-16T07:00") == time_us("2027-01-16") + 7 * 3_600_000_000 == AT_S * 1_000_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "1002", "12345678", "1" * 20, "-1y", "--1h", "+", "-1e3", "2027-13-01", "-9999999999", "nan"],
)
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(RefusedError, match=r"is no time: write -1h for an hour ago, now, 2027-01-15T22:00\+01:00"):
        time_us(text)


def test_a_position_takes_the_same_times_and_says_them_in_microseconds() -> None:
    position = parse_position(str(AT_S))
    assert (position.text, position.time_us) == (f"{AT_S}000000", AT_S * 1_000_000)
    before = time_us("-1h")
    assert before <= (parse_position("-1h").time_us or 0) <= time_us("-1h")


@pytest.mark.parametrize("text", ["1002", "telemetry-0", "Telemetry-0:1", "earlyest", "telemetry-0:1,telemetry-0:2"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="is not a position: write"):
        parse_position(text)
