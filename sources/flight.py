"""One broker, spoken to over Flight as docs/protocols.md, section 3, says. It connects on first use.

Calls that may be repeated without harm are tried again, `fetchOffset.numRetries` times, while the broker is away. Every
error leaves here as one of `sources.errors`: an answer with the protocol's JSON as `RefusedError` (or `FencedError`),
silence or a broken connection as `UnavailableError`, credentials that cannot be read as `OptionError`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from broker_edge._connection import Connection
from broker_edge.errors import ConfigError, HeadwaterError
from sources.errors import FencedError, OptionError, RefusedError, SourceError, UnavailableError
from sources.options import Access

JsonObject = dict[str, Any]

BATCH_ROWS = 4_096
"""Rows of a record batch: a megabyte or two. Smaller ones cost calls; of larger ones each takes memory that was given
back meanwhile, here and in the JVM, whose allocator keeps no blocks of more than 4 MiB."""

# Who does not answer this in a few seconds is as good as away.
_VERSION_TIMEOUT_SECONDS = 5.0
# What says that the broker may be back later; without the protocol's JSON the connection broke.
_AWAY_CODES = ("unavailable", "stopped")


class LogServer:
    """The log behind one address. Used by one thread at a time, and by one process."""

    def __init__(self, address: str, *, access: Access | None = None) -> None:
        self.address = address
        self._access = access or Access()
        self._connection: Connection | None = None
        # Of the broker at the other end of the connection as it is; another one may answer to the next.
        self._log_id: str | None = None

    def version(self) -> JsonObject:
        return self._one("version", {}, timeout_seconds=_VERSION_TIMEOUT_SECONDS)

    def log_id(self) -> str:
        return str(self.version()["log_id"])

    def require_log(self, log_id: str) -> None:
        """Raises `UnavailableError` unless the broker holds this log; it is asked once a connection."""
        if self._log_id is None:
            self._log_id = self.log_id()
        if self._log_id != log_id:
            raise UnavailableError(self.address, f"it holds log {self._log_id} and not log {log_id}")

    def offsets(
        self,
        *,
        partitions: Sequence[int] | None = None,
        filters: Sequence[str] | None = None,
        pattern: str | None = None,
        time_us: int | None = None,
        epoch_before: Mapping[int, int] | None = None,
    ) -> JsonObject:
        """Log id, and per partition log start, high watermark and what else was asked for."""
        before = None if epoch_before is None else {str(number): offset for number, offset in epoch_before.items()}
        return self._one(
            "offsets",
            {
                "partitions": partitions,
                "filters": filters,
                "pattern": pattern,
                "time_us": time_us,
                "epoch_before": before,
            },
        )

    def topics(self, filters: Sequence[str]) -> list[JsonObject]:
        """The topics that match, with the offsets between which each partition has records of them; up to 1,000."""
        return list(self._one("topics", {"filters": list(filters)})["topics"])

    def plan(
        self,
        begin: Mapping[int, int],
        *,
        filters: Sequence[str] | None,
        pattern: str | None = None,
        max_records: int | None,
        max_bytes: int | None,
    ) -> JsonObject:
        """How far each partition may be read within the limits; it moves only past matching records."""
        places = {str(number): offset for number, offset in begin.items()}
        return self._one(
            "plan",
            {
                "from": places,
                "filters": filters,
                "pattern": pattern,
                "max_records": max_records,
                "max_bytes": max_bytes,
            },
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

    def gap(
        self,
        *,
        group: str | None,
        partition: int,
        start: int,
        end: int | None,
        reason: str,
        log_id: str | None = None,
    ) -> None:
        """Records at the broker that a reader goes without `[start, end)`: of the broker's log, or of `log_id`, whose
        end may not be known."""
        body: JsonObject = {"group": group, "partition": partition, "start": start, "end": end, "reason": reason}
        body["log_id"] = log_id
        self._one("gap", body, retries=0)

    def get(
        self,
        partition: int,
        start: int,
        end: int,
        *,
        filters: Sequence[str] | None,
        pattern: str | None = None,
        timeout_seconds: float,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The records of `[start, end)` that match, each batch with the offset after what it covers."""
        ticket: JsonObject = {"partition": partition, "start": start, "end": end, "batch_rows": BATCH_ROWS}
        if filters is not None:
            ticket["filters"] = list(filters)
        if pattern is not None:
            ticket["pattern"] = pattern
        try:
            connection = self._connected()
            reader = connection.get(ticket, timeout_s=timeout_seconds)
            while True:
                with connection.errors():
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        return
                    following = int(json.loads(chunk.app_metadata.to_pybytes())["next"])
                yield chunk.data, following
        except HeadwaterError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._log_id = None
        if connection is not None:
            connection.close()

    def _one(
        self, action: str, body: JsonObject, *, timeout_seconds: float | None = None, retries: int | None = None
    ) -> JsonObject:
        """The one answer to an action. Retries end with the time that one call may take, however many are left."""
        timeout_seconds = timeout_seconds or self._access.request_timeout_ms / 1_000
        left = self._access.num_retries if retries is None else retries
        deadline = time.monotonic() + timeout_seconds
        sent = {name: value for name, value in body.items() if value is not None}
        while True:
            try:
                answers = self._connected().change(action, sent, timeout_s=timeout_seconds)
                break
            except HeadwaterError as error:
                # A connection that broke is made anew by the next call.
                self.close()
                translated = self._translated(error)
                if left <= 0 or not isinstance(translated, UnavailableError) or time.monotonic() >= deadline:
                    raise translated from error
                left -= 1
                time.sleep(self._access.retry_interval_ms / 1_000)
        if len(answers) != 1:
            raise RefusedError(self.address, "internal", {"message": f"{len(answers)} answers to action {action}"})
        if not isinstance(answers[0], dict):
            raise RefusedError(self.address, "internal", {"message": f"action {action} was not answered by an object"})
        return answers[0]

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(
                self.address,
                timeout_s=self._access.request_timeout_ms / 1_000,
                retries=0,
                credentials=self._access.credentials,
                tls=self._access.tls if self._access.tls.is_given else None,
            )
        return self._connection

    def _translated(self, error: HeadwaterError) -> SourceError:
        if isinstance(error, ConfigError):
            return OptionError(str(error))
        if error.detail is None:
            return UnavailableError(self.address, _short(error.__cause__ or error))
        detail = dict(error.detail)
        code = str(detail["error"])
        if code in _AWAY_CODES:
            return UnavailableError(self.address, str(detail.get("message", code)))
        if code == "fenced":
            return FencedError(
                f"another query reads with consumer group {detail.get('group')} from {self.address} and took over "
                f"(reader epoch {detail.get('reader_epoch')}): stop one of them, or give this one its own consumerGroup"
            )
        return RefusedError(self.address, code, detail)


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
