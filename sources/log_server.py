"""One broker, accessed over Flight (docs/protocols.md, section 3). Connects on first use.

`broker_edge.flight` knows the operations; this module adds the options of the source. Calls that can be repeated
without harm are retried `fetchOffset.numRetries` times while the broker is unreachable. Errors are reduced to four: an
answer with the protocol's JSON becomes a `RefusedError` (or `FencedError`), silence or a broken connection an
`UnavailableError`, unreadable credentials an `OptionError`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from broker_edge.errors import BrokerError, ConfigError, HeadwaterError, OptionError, UnavailableError
from broker_edge.flight import FlightClient, JsonObject
from broker_edge.log_owners import LogEntry
from broker_edge.tls import tls_reason
from sources.access import Access
from sources.answers import with_partitions
from sources.broker_errors import fenced, left_alone, refused, unreachable

T = TypeVar("T")

BATCH_ROWS = 4_096
"""Rows of a record batch: one or two megabytes. Smaller batches need more calls. For larger ones, memory is returned to
the system and requested again for each batch, here and in the JVM, whose allocator keeps no blocks of more than 4
MiB."""

# A broker that does not answer this within a few seconds counts as unreachable.
_VERSION_TIMEOUT_SECONDS = 5.0
# Codes of a broker that may recover; an error without the protocol's JSON means that the connection broke.
_AWAY_CODES = ("unavailable", "stopped")


class LogServer:
    """The log behind one address. Use it from one thread at a time, in one process."""

    def __init__(self, address: str, *, access: Access | None = None) -> None:
        self.address = address
        self._access = access or Access()
        self.entry = LogEntry(address, self._access.name, self._access.log_id)
        self._client: FlightClient | None = None
        # The log of the broker at the other end of this connection; the next connection may lead to another broker.
        self._log_id: str | None = None

    def version(self) -> JsonObject:
        return self._asked(
            lambda client: client.version(timeout_s=_VERSION_TIMEOUT_SECONDS), timeout_seconds=_VERSION_TIMEOUT_SECONDS
        )

    def log_id(self) -> str:
        """The log that the broker says it holds. Raises `UnavailableError` if the options name another one."""
        said, named = str(self.version()["log_id"]), self._access.log_id
        if named is not None and said != named:
            raise left_alone(self.address, f"it says that it holds log {said:.100}, and the options name {named}")
        return said

    def require_log(self, log_id: str) -> None:
        """Raises `UnavailableError` unless the broker holds this log. The broker is asked once per connection."""
        if self._log_id is None:
            self._log_id = self.log_id()
        if self._log_id != log_id:
            raise unreachable(self.address, f"it holds log {self._log_id} and not log {log_id}")

    def offsets(
        self,
        *,
        partitions: Sequence[int] | None = None,
        filters: Sequence[str] | None = None,
        pattern: str | None = None,
        time_us: int | None = None,
        epoch_before: Mapping[int, int] | None = None,
    ) -> JsonObject:
        """Log id, and per partition log start, high watermark and the other requested values."""
        answer = self._asked(
            lambda client: client.offsets(
                partitions=partitions, filters=filters, pattern=pattern, time_us=time_us, epoch_before=epoch_before
            )
        )
        return with_partitions(answer, server=self.address)

    def topics(self, filters: Sequence[str]) -> list[JsonObject]:
        """Up to 1,000 matching topics, with the offsets between which each partition has records of them."""
        return self._asked(lambda client: client.topics(filters=filters))

    def plan(
        self,
        begin: Mapping[int, int],
        *,
        filters: Sequence[str] | None,
        pattern: str | None = None,
        max_records: int | None,
        max_bytes: int | None,
    ) -> JsonObject:
        """How far each partition may be read within the limits. Only moves past matching records."""
        answer = self._asked(
            lambda client: client.plan(
                begin, filters=filters, pattern=pattern, max_records=max_records, max_bytes=max_bytes
            )
        )
        return with_partitions(answer, server=self.address)

    def committed(self, group: str) -> JsonObject:
        return with_partitions(self._asked(lambda client: client.committed(group)), server=self.address)

    def commit(
        self,
        group: str,
        reader_epoch: int,
        *,
        initial: Mapping[int, int] | None = None,
        committed: Mapping[int, int] | None = None,
    ) -> JsonObject:
        offsets = {number: {"committed": offset} for number, offset in (committed or {}).items()}
        answer = self._asked(
            lambda client: client.commit(group, reader_epoch, initial=initial or None, offsets=offsets or None)
        )
        return with_partitions(answer, server=self.address)

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
        """Records at the broker that a reader skips `[start, end)`: of the broker's log, or of `log_id`, whose end may
        be unknown."""
        self._asked(
            lambda client: client.gap(partition, start, end, reason=reason, group=group, log_id=log_id), retries=0
        )

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
        """The matching records of `[start, end)`, each batch with the offset after its range."""
        try:
            reader = self._connected().get(
                partition,
                start,
                end,
                filters=filters,
                pattern=pattern,
                batch_rows=BATCH_ROWS,
                timeout_s=timeout_seconds,
            )
            while (found := reader.read()) is not None:
                yield found
        except HeadwaterError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        client, self._client = self._client, None
        self._log_id = None
        if client is not None:
            client.close()

    def _asked(
        self,
        question: Callable[[FlightClient], T],
        *,
        timeout_seconds: float | None = None,
        retries: int | None = None,
    ) -> T:
        """The answer to a request. Retries end with the time limit of one call, however many are left."""
        left = self._access.num_retries if retries is None else retries
        deadline = time.monotonic() + (timeout_seconds or self._access.request_timeout_ms / 1_000)
        while True:
            try:
                return question(self._connected())
            except HeadwaterError as error:
                # The next call opens a new connection.
                self.close()
                translated = self._translated(error)
                if left <= 0 or not isinstance(translated, UnavailableError) or time.monotonic() >= deadline:
                    raise translated from error
                left -= 1
                time.sleep(self._access.retry_interval_ms / 1_000)

    def _connected(self) -> FlightClient:
        if self._client is None:
            self._client = FlightClient(
                self.address,
                timeout_s=self._access.request_timeout_ms / 1_000,
                retries=0,
                credentials=self._access.credentials,
                tls=self._access.tls if self._access.tls.is_given else None,
            )
        return self._client

    def _translated(self, error: HeadwaterError) -> HeadwaterError:
        if isinstance(error, ConfigError):
            return OptionError(str(error))
        if isinstance(error, BrokerError) and isinstance(error.__cause__, KeyError | TypeError | None):
            # The connection works, but the answer lacks something. Another attempt would get the same.
            return refused(self.address, "internal", {"message": str(error)})
        if error.code is None or error.detail is None:
            return unreachable(self.address, _short(error.__cause__ or error))
        if error.code in _AWAY_CODES:
            return unreachable(self.address, str(error.detail.get("message", error.code)))
        if error.code == "fenced":
            return fenced(self.address, error.detail)
        return refused(self.address, error.code, error.detail)


def _short(error: BaseException) -> str:
    """gRPC's reason without its debug context; for TLS what it means."""
    meaning = tls_reason(str(error), has_certificate=False)
    if meaning is not None:
        return meaning
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
