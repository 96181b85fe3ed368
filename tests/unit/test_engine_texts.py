"""The small languages of an action: label expressions and maintenance windows."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.engine.expressions import ExpressionError
from actions.engine.labels import compiled
from actions.engine.windows import WindowError, is_open

LABELS = {"site": "roof", "fw": "1.2", "old": ""}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("site = roof", True),
        ("site != roof", False),
        ("color != red", True),
        ("old and site", True),
        ("not color", True),
        ("site = cellar or fw = 1.2", True),
        ("site = cellar or fw = 1.2 and color", False),
        ("(site = cellar or fw = 1.2) and not color", True),
        ('fw in ("1.2", 1.3)', True),
        ("fw not in (1.2)", False),
        ("color not in (red)", True),
        ("'site'='roof'", True),
        ("not not old", True),
    ],
)
def test_expression_selects_by_labels(text: str, holds: bool) -> None:
    assert compiled(text)(LABELS) is holds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has its end where a label should be"),
        ("site =", "has its end where a value should be"),
        ("site = roof old", "has 'old' where it should end"),
        ("(site", "has its end where ')' should be"),
        ("fw in 1.2", "has '1.2' where '(' should be"),
        ("site & old", "has '&', which must be quoted"),
        ("(" * 100 + "a" + ")" * 100, "is nested deeper than 32"),
        ("a" * 5_000, "the limit is 4096"),
    ],
)
def test_wrong_expression_says_where(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compiled(text)
    assert said in str(error.value)


@given(st.text(alphabet="ab=!(),not in\"' ", max_size=30))
def test_any_text_is_an_expression_or_an_error_in_words(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert compiled(text)({"a": "b"}) in (True, False)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("window", "zone", "moment", "is_in"),
    [
        ("22:00-06:00", None, "2027-01-15T23:00", True),
        ("22:00-06:00", None, "2027-01-15T05:59", True),
        ("22:00-06:00", None, "2027-01-15T06:00", False),
        ("Fri 22:00-06:00", None, "2027-01-16T05:00", True),  # A Saturday, in the night that began on Friday.
        ("Fri 22:00-06:00", None, "2027-01-15T05:00", False),
        ("Sun 23:00-01:00", None, "2027-01-18T00:30", True),  # Across the end of the week.
        ("Fri-Mon 10:00-11:00", None, "2027-01-17T10:30", True),
        ("Mon 00:00-24:00, Fri 08:00-09:00", None, "2027-01-15T08:30", True),
        ("Fri 00:00-24:00", "Asia/Tokyo", "2027-01-15T16:00", False),  # Saturday there.
        ("Fri 00:00-24:00", "Mars/Olympus", "2027-01-15T16:00", True),  # Unknown: UTC.
        ("02:00-03:00", "Europe/Berlin", "2027-07-01T00:30", True),  # Summer time.
    ],
)
def test_window_follows_the_local_week(window: str, zone: str | None, moment: str, is_in: bool) -> None:
    assert is_open(window, zone, at(moment)) is is_in


@pytest.mark.parametrize("text", ["", "noon", "25:00-26:00", "10:00-10:00", "Fre 10:00-11:00", "10:61-11:00"])
def test_wrong_window_is_refused(text: str) -> None:
    with pytest.raises(WindowError):
        is_open(text, None, 0)
