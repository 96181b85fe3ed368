"""Expressions over what devices report: `version < 2.0.0 and seen < 7d and hardware = rev-b`. Compiles text to a
function of a row of `device_state` and a time. The grammar around a test is that of `expressions`.

    test = text | text "=" value | text "!=" value | text ["not"] "in" "(" value {"," value} ")"
         | "version" ("<" | "<=" | ">" | ">=") ["semver" | "pep440"] version
         | "seen" | "seen" ("<" | "<=" | ">" | ">=") period
    text = "version" | "product" | "hardware"          period = digits ("s" | "m" | "h" | "d" | "w")

A name alone tests whether the device has reported it. `seen < 7d`: its newest report is less than 7 days old. A
comparison with `<` and its kin never holds for a device that has not reported the fact.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from .expressions import ExpressionError, ExpressionParser, tokens_with
from .model import SECOND_US, DeviceState

if TYPE_CHECKING:
    from broker_edge.policy import VersionOrder

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_PERIOD = re.compile(r"([0-9]{1,9})([smhdw])")
_PERIOD_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_TEXTS: dict[str, Callable[[DeviceState], str | None]] = {
    "version": lambda fact: fact.version,
    "product": lambda fact: fact.product,
    "hardware": lambda fact: fact.hardware,
}

Subject = tuple[DeviceState | None, int]
"""What a device has reported, and the time."""
Test = Callable[[Subject], bool]


@dataclass(frozen=True, slots=True)
class ReportedTest:
    """`periods_us`: time alone may change the answer when the newest report becomes one of these ages."""

    holds: Test
    periods_us: tuple[int, ...]


@lru_cache(maxsize=256)
def compiled_reported(text: str) -> ReportedTest:
    """The compiled expression. Raises ExpressionError."""
    parser = _Parser(text)
    return ReportedTest(parser.parsed(), tuple(parser.periods_us))


class _Parser(ExpressionParser[Subject]):
    tokens = tokens_with("!=", "<=", ">=", "=", "<", ">", "(", ")", ",")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.periods_us: set[int] = set()

    def _test(self) -> Test:
        token, name = self._said(), self._word("version, product, hardware or seen")
        if name == "seen":
            return self._of_seen()
        if name not in _TEXTS:
            raise ExpressionError(f"has {token} where version, product, hardware or seen should be")
        compare = self._comparison()
        if compare is None:
            return self._of_text(_reported(_TEXTS[name]))
        if name != "version":
            raise ExpressionError(f"compares {name}, which has no order; use =, != or in")
        return self._of_version(compare)

    def _comparison(self) -> Callable[[int, int], bool] | None:
        for mark, compare in _COMPARISONS.items():
            if self._take("mark", mark):
                return compare
        return None

    def _of_version(self, compare: Callable[[int, int], bool]) -> Test:
        from broker_edge.policy import VersionOrder  # With cryptography, which other expressions do without.

        orders: tuple[VersionOrder, ...] = (VersionOrder.SEMVER, VersionOrder.PEP440)
        version = self._word("a version")
        token = self._peek()
        if version in list(VersionOrder) and token is not None and token[0] == "word":
            orders, version = (VersionOrder(version),), self._word("a version")
        if not any(order.has(version) for order in orders):
            raise ExpressionError(f"has {version!r} where a version should be, in the order {' or '.join(orders)}")
        reported = _reported(_TEXTS["version"])

        def holds(subject: Subject) -> bool:
            has = reported(subject)
            found = None if has is None else _compared(has, version, orders)
            return found is not None and compare(found, 0)

        return holds

    def _of_seen(self) -> Test:
        compare = self._comparison()
        if compare is None:
            if self._peek() in (("mark", "="), ("mark", "!="), ("key", "in"), ("key", "not")):
                raise ExpressionError(f"has {self._said()} behind seen; use <, <=, > or >= and a period such as 7d")
            return lambda subject: subject[0] is not None
        token, word = self._said(), self._word("a period")
        period = _PERIOD.fullmatch(word)
        if period is None:
            raise ExpressionError(f"has {token} where a period such as 90s, 30m, 12h, 7d or 4w should be")
        period_us = int(period[1]) * _PERIOD_S[period[2]] * SECOND_US
        self.periods_us.add(period_us)
        return lambda subject: subject[0] is not None and compare(subject[1] - subject[0].last_seen_us, period_us)


def _reported(text_of: Callable[[DeviceState], str | None]) -> Callable[[Subject], str | None]:
    return lambda subject: None if subject[0] is None else text_of(subject[0])


@lru_cache(maxsize=10_000)
def _compared(left: str, right: str, orders: tuple[VersionOrder, ...]) -> int | None:
    """Below 0: `left` is older. By the first order in which both are versions; None: there is no such order."""
    for order in orders:
        if order.has(left) and order.has(right):
            return order.is_before(right, left) - order.is_before(left, right)
    return None
