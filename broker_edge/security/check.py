"""One check and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]
_ORDER: tuple[State, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Check:
    """`where` is a listener, a file with its line, or a setting. `remedy` is the command or setting that changes what
    was found; it is empty for `ok` alone."""

    state: State
    name: str
    where: str
    found: str
    remedy: str = ""


def worst(checks: Iterable[Check]) -> State:
    """The state of a broker with these checks."""
    return max((check.state for check in checks), key=_ORDER.index, default="ok")


def severe(is_beyond: bool) -> State:
    """`fail` for what another machine can use, `warn` for what only this one can."""
    return "fail" if is_beyond else "warn"
