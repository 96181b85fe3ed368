"""Finds the items that make a batch fail, by splitting the batch in halves until each bad item stands alone. Pure.

For problems that no parser foresees. Only errors of the content count: an item is not the cause of a lack of memory, a
full disk or a missing module, and those end the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

CONTENT_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError, OverflowError)
"""Exceptions of Arrow and Python for values that a column cannot store. Errors of I/O and memory have other classes."""

_SHOWN_MAX = 200

T = TypeVar("T")


def fitting(items: Sequence[T], check: Callable[[Sequence[T]], object]) -> tuple[list[T], list[tuple[T, str]]]:
    """The items that `check` accepts, in order, and the others, each with its own error message.

    `check` raises one of `CONTENT_ERRORS` for a bad item; any other error passes through.
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
    # The message may quote a part of the item that no column can store.
    line = line.encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"
