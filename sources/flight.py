"""One broker, spoken to over Flight as docs/protocols.md, section 3, says. It connects on first use and never retries.

Every error leaves here as one of `sources.errors`: an answer with the protocol's JSON as `RefusedError` (or
`FencedError`), silence or a broken connection as `UnavailableError`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from sources.errors import FencedError, OptionError, RefusedError, SourceError, UnavailableError

JsonObject = dict[str, Any]

CALL_TIMEOUT_SECONDS = 15.0
"""A plan over a long log may scan; everything else answers in milliseconds."""

BATCH_ROWS = 16_384
"""Rows of a record batch. From 4 to 32 thousand the cost is the same; smaller ones cost calls, larger ones memory."""

_FAILURES = (pa.ArrowException, flight.FlightError, OSError, KeyError, IndexError)
# What gRPC says goes away by itself; with the protocol's JSON these carry a reason, without it the connection broke.
_AWAY_CODES = ("unavailable", "stopped")


class LogServer:
    """The log behind one address. Not shared between threads or processes."""

    def __init__(self, address: str, *, token: str | None = None) -> None:
        self.address = address
        self._token = token
        self._client: flight.FlightClient | None = None

    def version(self) -> JsonObject:
        return self._one("version", {})

    def log_id(self) -> str:
        return str(self.version()["log_id"])

    def offsets(
        self,
        *,
        partitions: Sequence[int] | None = None,
        filters: Sequence[str] | None = None,
        time_us: int | None = None,
        epoch_before: Mapping[int, int] | None = None,
    ) -> JsonObject:
        """Log id, and per partition log start, high watermark and what else was asked for."""
        before = None if epoch_before is None else {str(number): offset for number, offset in epoch_before.items()}
        body = {"partitions": partitions, "filters": filters, "time_us": time_us, "epoch_before": before}
        return self._one("offsets", body)

    def plan(
        self,
        begin: Mapping[int, int],
        *,
        filters: Sequence[str] | None,
        max_records: int | None,
        max_bytes: int | None,
    ) -> JsonObject:
        """How far each partition may be read within the limits; it moves only past matching records."""
        places = {str(number): offset for number, offset in begin.items()}
        return self._one(
            "plan", {"from": places, "filters": filters, "max_records": max_records, "max_bytes": max_bytes}
        )

    def committed(self, group: str) -> JsonObject:
        return self._one("committed", {"group": group})

    def commit(
        self,
        group: str,
        reader_epoch: int,
        *,
        initial: Mapping[int, int] | None = None,
        committed: Mapping[int, int] | None = None,
    ) -> JsonObject:
        body: JsonObject = {"group": group, "reader_epoch": reader_epoch}
        if initial:
            body["initial"] = {str(number): offset for number, offset in initial.items()}
        if committed:
            body["offsets"] = {str(number): {"committed": offset} for number, offset in committed.items()}
        return self._one("commit", body)

    def gap(self, *, group: str | None, partition: int, start: int, end: int, reason: str) -> None:
        """Records at the broker that a reader found `[start, end)` gone."""
        self._one("gap", {"group": group, "partition": partition, "start": start, "end": end, "reason": reason})

    def get(
        self, partition: int, start: int, end: int, *, filters: Sequence[str] | None, timeout_seconds: float
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The records of `[start, end)` that match, each batch with the offset after what it covers."""
        ticket: JsonObject = {"partition": partition, "start": start, "end": end, "batch_rows": BATCH_ROWS}
        if filters is not None:
            ticket["filters"] = list(filters)
        try:
            reader = self._connected().do_get(
                flight.Ticket(json.dumps(ticket).encode()), self._call_options(timeout_seconds)
            )
            while True:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
                yield chunk.data, int(json.loads(chunk.app_metadata.to_pybytes())["next"])
        except _FAILURES as error:
            raise self._translated(error) from error

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _one(self, action: str, body: JsonObject) -> JsonObject:
        text = json.dumps({name: value for name, value in body.items() if value is not None})
        try:
            answers = list(
                self._connected().do_action(
                    flight.Action(action, text.encode()), self._call_options(CALL_TIMEOUT_SECONDS)
                )
            )
        except _FAILURES as error:
            # A connection that broke is made anew by the next call.
            self.close()
            raise self._translated(error) from error
        if len(answers) != 1:
            raise RefusedError(self.address, "internal", {"message": f"{len(answers)} answers to action {action}"})
        answer = json.loads(answers[0].body.to_pybytes())
        if not isinstance(answer, dict):
            raise RefusedError(self.address, "internal", {"message": f"action {action} was not answered by an object"})
        return answer

    def _connected(self) -> flight.FlightClient:
        if self._client is None:
            self._client = flight.connect(self.address)
        return self._client

    def _call_options(self, timeout_seconds: float) -> flight.FlightCallOptions:
        headers = [] if self._token is None else [(b"authorization", b"Bearer " + read_token(self._token).encode())]
        return flight.FlightCallOptions(timeout=timeout_seconds, headers=headers)

    def _translated(self, error: BaseException) -> SourceError:
        detail = decode_detail(str(error))
        if detail is None:
            return UnavailableError(self.address, _short(error))
        code = str(detail["error"])
        if code in _AWAY_CODES:
            return UnavailableError(self.address, str(detail.get("message", code)))
        if code == "fenced":
            return FencedError(
                f"another query reads with consumer group {detail.get('group')} from {self.address} and took over "
                f"(reader epoch {detail.get('reader_epoch')}): stop one of them, or give this one its own consumerGroup"
            )
        return RefusedError(self.address, code, detail)


def decode_detail(text: str) -> JsonObject | None:
    """The protocol's JSON object in the text of a gRPC status, or None where the status is gRPC's own."""
    at = text.find("{")
    if at < 0:
        return None
    try:
        detail, _ = json.JSONDecoder().raw_decode(text[at:])
    except ValueError:
        return None
    return detail if isinstance(detail, dict) and "error" in detail else None


def read_token(reference: str) -> str:
    """Resolves `env:NAME` or `file:PATH` in the process that connects."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise OptionError(f"option token names the environment variable {name}, which is not set in this process")
        return value.strip()
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise OptionError(f"option token names the file {name}, which cannot be read: {error.strerror}") from error


def _short(error: BaseException) -> str:
    """gRPC's reason without its debug context."""
    text = re.split(r"\. (?:gRPC client debug context|Client context|Detail)", str(error))[0]
    text = text.rpartition("with message: ")[2]
    for marker in (
        "Connection refused",
        "Connection reset",
        "Socket closed",
        "Deadline Exceeded",
        "DNS resolution failed",
    ):
        if marker in text:
            return marker
    return text.strip() or type(error).__name__
