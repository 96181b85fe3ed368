"""Errors of the `headwater` source. Spark shows the message of the one that ends a query: one sentence to act on.

SourceError
├── OptionError         an option is unknown, malformed, missing, or not supported yet
├── OffsetError         an offset of the checkpoint cannot be understood
├── DataLossError       records that were asked for are gone
├── UnavailableError    a broker cannot be reached, or says that it cannot serve now; trying again may help
├── FencedError         a newer reader of the same consumer group has taken over
└── RefusedError        a broker understood the request and refused it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SourceError(Exception):
    """Base of every error that `sources` raises on purpose."""


class OptionError(SourceError):
    """An option of `format("headwater")` is wrong; nothing was read."""


class OffsetError(SourceError):
    """An offset is not in the form of docs: `{"v":1,"logs":{"<log id>":{"<partition>":[next, epoch]}}}`."""


class DataLossError(SourceError):
    """Records that were asked for are gone. With `failOnDataLoss=false` the reader reports the gap and goes on."""


class UnavailableError(SourceError):
    """The broker at `server` does not answer."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(
            f"cannot reach the broker at {server}: {reason}; check that it runs and that `servers` names "
            f"its Flight port"
        )
        self.server = server
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.server, self.reason)


class FencedError(SourceError):
    """Two queries read with one consumer group; the older one ends here."""


class RefusedError(SourceError):
    """The broker's own error: `code` and `detail` are those of the protocol."""

    def __init__(self, server: str, code: str, detail: Mapping[str, Any]) -> None:
        super().__init__(f"the broker at {server} refused: {detail.get('message', code)} ({code})")
        self.server = server
        self.code = code
        self.detail = dict(detail)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.server, self.code, self.detail)
