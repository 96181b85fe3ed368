"""The text format of Prometheus as `headwater top` reads it."""

from __future__ import annotations

import math

import pytest

from broker_edge.scrape import Scrape

TEXT = """\
# HELP a_total A.
# TYPE a_total counter
a_total{x="1",y="b c"} 5
a_total{x="2",y="d\\"e\\\\f\\ng"} 7 1700000000000
b NaN
c{} 4
this is no sample
d{x="1"} many
"""


def parsed(text: str, at_s: float = 0.0) -> Scrape:
    return Scrape.parse(text, at_s=at_s)


def test_samples_are_found_by_their_labels() -> None:
    scrape = parsed(TEXT)
    assert scrape.value("a_total") == 12
    assert scrape.value("a_total", x="1") == 5
    assert scrape.value("a_total", y='d"e\\f\ng') == 7
    assert scrape.value("a_total", x="3") is None
    assert scrape.values_of("a_total", "x") == {"1": 5, "2": 7}
    assert math.isnan(scrape.value("b") or 0.0)
    assert scrape.value("c") == 4
    assert scrape.samples.keys() == {"a_total", "b", "c"}


def test_a_rate_needs_two_looks_and_a_counter_that_rose() -> None:
    before, now = parsed("a_total 4", 10.0), parsed("a_total 9", 12.0)
    assert now.per_second(before, "a_total") == 2.5
    assert before.per_second(now, "a_total") is None, "the broker was restarted"
    assert now.per_second(now, "a_total") is None
    assert now.per_second(parsed(""), "a_total") is None


def histogram(*counts: int) -> Scrape:
    return parsed(
        "\n".join(f'h_bucket{{le="{le}"}} {count}' for le, count in zip(("1", "2", "4", "+Inf"), counts, strict=True))
    )


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((10, 10, 10, 10), 0.5, 0.5),
        ((0, 10, 10, 10), 0.5, 1.5),
        ((0, 5, 10, 10), 0.99, 3.96),
        ((0, 0, 0, 10), 0.5, 4.0),
        ((0, 0, 0, 0), 0.5, None),
    ],
)
def test_a_quantile_is_that_of_histogram_quantile(counts: tuple[int, ...], share: float, value: float | None) -> None:
    found = histogram(*(3 + count for count in counts)).quantile(histogram(3, 3, 3, 3), "h", share)
    assert found == (None if value is None else pytest.approx(value))


def test_a_histogram_that_began_anew_has_no_quantile() -> None:
    assert histogram(1, 1, 1, 1).quantile(histogram(5, 5, 5, 5), "h", 0.5) is None
    assert histogram(1, 1, 1, 1).quantile(parsed(""), "h", 0.5) is None
