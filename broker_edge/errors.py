"""What can go wrong, by what the caller can do about it, and the one place where Flight errors become these.

HeadwaterError
├── ConfigError        a setting is wrong: change it where the message points
├── StartError         the broker cannot start: free the port, the folder or the file that the message names
├── ConnectError       nobody answers at that address: start the broker, or correct the address
├── DeadlineError      no answer in time: ask again, or allow more time
├── UnavailableError   the broker answers but cannot serve this partition now
├── RefusedError       the request is wrong, or not allowed: change it
│   └── NotFoundError      what it names does not exist
├── OutOfRangeError    the offset is gone or not there yet: choose one within the bounds it carries
├── FencedError        a newer reader of the group took over: stop
├── FullError          the disk of the broker is full: free space, then send again
├── DataLossError      offsets that should be readable are damaged: skip the gap, or restore
└── BrokerError        the broker failed inside: look into its log

Nothing here retries, logs or talks to a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight


class HeadwaterError(Exception):
    """The base of all. `str()` is one sentence: what, where, what to do."""

    detail: Mapping[str, Any] | None = None
    """The broker's own words, where the error is the broker's (docs/protocols.md, section 3, Errors)."""


class ConfigError(HeadwaterError):
    """A setting is wrong."""


class StartError(HeadwaterError):
    """A broker inside this process cannot start, or does not run."""


class ConnectError(HeadwaterError):
    """Nobody answers at `server`."""

    def __init__(self, message: str, *, server: str = "") -> None:
        super().__init__(message)
        self.server = server


class DeadlineError(HeadwaterError):
    """No answer within the time that the caller allowed. A write may have happened or not."""


class UnavailableError(HeadwaterError):
    """The broker cannot serve now. `stopped`: the partition takes no more records until the broker is restarted."""

    def __init__(self, message: str, *, partition: int | None = None, stopped: bool = False) -> None:
        super().__init__(message)
        self.partition = partition
        self.stopped = stopped


class RefusedError(HeadwaterError):
    """The request is wrong or not allowed; `field` names the part of it, where one is to blame."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NotFoundError(RefusedError):
    """The partition, group or action does not exist."""


class OutOfRangeError(HeadwaterError):
    """Offset `wanted` is outside [`log_start`, `high_watermark`] of `partition`."""

    def __init__(self, message: str, *, partition: int, log_start: int, high_watermark: int, wanted: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.log_start = log_start
        self.high_watermark = high_watermark
        self.wanted = wanted


class FencedError(HeadwaterError):
    """A newer reader of `group` took over; `reader_epoch` is the newest."""

    def __init__(self, message: str, *, group: str, reader_epoch: int) -> None:
        super().__init__(message)
        self.group = group
        self.reader_epoch = reader_epoch


class FullError(HeadwaterError):
    """No space is left for `partition`. Nothing of the batch was appended."""

    def __init__(self, message: str, *, partition: int | None = None) -> None:
        super().__init__(message)
        self.partition = partition


class DataLossError(HeadwaterError):
    """Offsets [`start`, `end`) of `partition` cannot be read and will not come back."""

    def __init__(self, message: str, *, partition: int, start: int, end: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.start = start
        self.end = end


class BrokerError(HeadwaterError):
    """The broker failed inside, or answered something that this client does not understand."""


def from_flight(error: Exception, *, server: str) -> HeadwaterError:
    """The error that a Flight call to `server` ended with, decoded (docs/protocols.md, section 3, Errors)."""
    detail = _detail(str(error))
    if detail is not None:
        try:
            found = _from_detail(detail, server)
        except (KeyError, TypeError, ValueError):
            found = BrokerError(f"{server} sent an error that cannot be read: {json.dumps(detail)}")
        found.detail = detail
        return found
    text = _first_line(str(error))
    match error:
        case flight.FlightUnavailableError():
            advice = "is the broker running, and is this its Flight address (port 8815 by default)?"
            return ConnectError(f"cannot connect to {server}: {advice} ({text.rsplit(': ', 1)[-1]})", server=server)
        case flight.FlightTimedOutError():
            return DeadlineError(f"{server} did not answer in time; ask again or allow more time")
        case flight.FlightUnauthenticatedError() | flight.FlightUnauthorizedError():
            return RefusedError(f"{server} refuses these credentials: {text}")
        case flight.FlightCancelledError():
            return DeadlineError(f"the call to {server} was cancelled")
        case pa.ArrowNotImplementedError():
            return BrokerError(f"{server} does not offer this: is it a headwater broker of this version? ({text})")
        case _:
            return BrokerError(f"{server} failed: {text}")


def _from_detail(detail: Mapping[str, Any], server: str) -> HeadwaterError:
    message = f"{detail['message']} ({server})"
    match detail["error"]:
        case "out_of_range":
            return OutOfRangeError(
                message,
                partition=int(detail["partition"]),
                log_start=int(detail["log_start"]),
                high_watermark=int(detail["high_watermark"]),
                wanted=int(detail["wanted"]),
            )
        case "unauthenticated" | "permission_denied" | "exhausted":
            return RefusedError(message)
        case "invalid_argument":
            return RefusedError(message, field=detail.get("field"))
        case "not_found":
            return NotFoundError(message)
        case "fenced":
            return FencedError(message, group=str(detail["group"]), reader_epoch=int(detail["reader_epoch"]))
        case "full":
            return FullError(message, partition=detail.get("partition"))
        case "stopped" | "unavailable":
            stopped = detail["error"] == "stopped"
            return UnavailableError(message, partition=detail.get("partition"), stopped=stopped)
        case "data_loss":
            place = {name: int(detail[name]) for name in ("partition", "start", "end")}
            return DataLossError(message, **place)
        case _:
            return BrokerError(message)


def _detail(text: str) -> Mapping[str, Any] | None:
    """The JSON object that begins at the first `{`; None when there is none or it is not one of ours."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "error" in found and "message" in found else None


def _first_line(text: str) -> str:
    """The first line without what the transport adds for its own developers."""
    line = text.partition("\n")[0]
    return line.partition(". Detail:")[0].partition(". gRPC client debug context")[0].strip()
