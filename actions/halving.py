"""Which items of a batch make it unfit: the batch is halved until each of them stands alone. Pure.

For what no parser foresees. Only what is wrong with the content counts; memory that is short, a disk that is full and
a module that is missing are not the fault of an item, and end the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

CONTENT_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError, OverflowError)
"""What Arrow and Python raise for values that a column cannot hold. Those of I/O and memory have other classes."""

_SHOWN_MAX = 200

T = TypeVar("T")


def fitting(items: Sequence[T], check: Callable[[Sequence[T]], object]) -> tuple[list[T], list[tuple[T, str]]]:
    """Those that `check` takes, in their order, and the others with what it said of them alone.

    `check` raises one of `CONTENT_ERRORS` where an item is unfit; any other error passes through.
    """
    if not items:
        return [], []
    try:
        check(items)
    except CONTENT_ERRORS as error:
        if len(items) == 1:
            return [], [(items[0], said(error))]
        middle = len(items) // 2
        kept, refused = fitting(items[:middle], check)
        more_kept, more_refused = fitting(items[middle:], check)
        return kept + more_kept, refused + more_refused
    return list(items), []


def said(error: BaseException) -> str:
    """The error in one short line."""
    line = " ".join(str(error).split()) or type(error).__name__
    # What it quotes of the item may be what no column can hold.
    line = line.encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"
