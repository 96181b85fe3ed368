"""Reads partitions of a log over Flight for the checker: unmodified rows, without retries or checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

COLUMNS = ("offset", "epoch", "timestamp", "topic", "key", "client_id", "qos", "retain", "value", "log_id")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a partition as the broker reports them: the offsets [log_start, high_watermark) are readable."""

    number: int
    name: str
    log_start: int
    high_watermark: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Row:
    """One record of the canonical schema (without headers)."""

    offset: int
    epoch: int
    timestamp_us: int
    topic: str
    key: bytes
    client_id: str
    qos: int
    retain: bool
    value: bytes
    log_id: str


class OutOfRangeError(Exception):
    """Retention has moved the log start past the requested offset."""


class LostOffsetsError(Exception):
    """The broker reports the offsets [start, end) as lost."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(f"offsets {start} to {end} are lost")
        self.start = start
        self.end = end


class LogReader:
    """A Flight connection to one broker."""

    def __init__(self, address: tuple[str, int], *, timeout_s: float = 30.0) -> None:
        self._client = flight.FlightClient(f"grpc://{address[0]}:{address[1]}")
        self._options = flight.FlightCallOptions(timeout=timeout_s)

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def bounds(self, *, partitions: Sequence[int] | None = None) -> dict[str, Bounds]:
        """Bounds by partition name; every class except `internal`, unless `partitions` are given."""
        body: dict[str, Any] = {} if partitions is None else {"partitions": list(partitions)}
        (answer,) = self._client.do_action(flight.Action("offsets", json.dumps(body).encode()), self._options)
        described = json.loads(answer.body.to_pybytes())["partitions"]
        return {
            one["name"]: Bounds(int(number), one["name"], one["log_start"], one["high_watermark"], one["epoch"])
            for number, one in described.items()
        }

    def rows(self, bounds: Bounds, start: int, end: int) -> Iterator[Row]:
        """The records [start, end), in the order of arrival. Raises OutOfRangeError and LostOffsetsError."""
        if start >= end:
            return
        ticket = json.dumps({"partition": bounds.number, "start": start, "end": end})
        try:
            for chunk in self._client.do_get(flight.Ticket(ticket.encode()), self._options):
                yield from _rows(chunk.data)
        except (pa.ArrowException, flight.FlightError) as error:
            text = str(error)
            if '"out_of_range"' in text:
                raise OutOfRangeError(text) from error
            if '"data_loss"' in text:
                detail, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
                raise LostOffsetsError(detail["start"], detail["end"]) from error
            raise


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    columns: list[list[Any]] = []
    for name in COLUMNS:
        column = batch.column(name)
        columns.append((column.cast("int64") if name == "timestamp" else column).to_pylist())
    return (Row(*values) for values in zip(*columns, strict=True))
