"""One log, accessed over Flight (docs/protocols.md, section 3) at a broker or at whichever node of a cluster leads.
Connects on first use.

`broker_edge.flight` knows the operations; this module adds the options of the source. Calls that can be repeated
without harm are retried `fetchOffset.numRetries` times while the broker is unreachable. Errors are reduced to four: an
answer with the protocol's JSON becomes a `RefusedError` (or `FencedError`), silence or a broken connection an
`UnavailableError`, unreadable credentials an `OptionError`.

A node that was deposed may not know that, and answer as of then. Its answers are not used: they show a lower epoch than
an earlier answer, or that the log ends before a place that is known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from broker_edge.errors import (
    BrokerError,
    ConfigError,
    HeadwaterError,
    NotLeaderError,
    OptionError,
    OutOfRangeError,
    RefusedError,
    UnavailableError,
)
from broker_edge.flight import FlightClient, JsonObject
from broker_edge.log_owners import LogEntry
from broker_edge.server_address import nodes_of
from broker_edge.tls import tls_reason
from sources.access import Access
from sources.answers import with_partitions
from sources.broker_errors import fenced, leaderless, left_alone, refused, unreachable

T = TypeVar("T")

BATCH_ROWS = 4_096
"""Rows of a record batch: one or two megabytes. Smaller batches need more calls. For larger ones, memory is returned to
the system and requested again for each batch, here and in the JVM, whose allocator keeps no blocks of more than 4
MiB."""

# A broker that does not answer this within a few seconds counts as unreachable.
_VERSION_TIMEOUT_SECONDS = 5.0
# Codes of a broker that may recover; an error without the protocol's JSON means that the connection broke.
_AWAY_CODES = ("unavailable", "stopped", "not_leader")
_ELECTION_RETRY_SECONDS = 0.25


class _DeposedError(HeadwaterError):
    """A node answers that led before, and does not know of a later leader."""


class LogServer:
    """The log behind one address, which may name the nodes of a cluster. Use it from one thread at a time, in one
    process.

    `is_patient`: whether a request waits while a cluster elects its leader, until the time limit of one call; otherwise
    it fails once each node has refused it.
    """

    def __init__(self, address: str, *, access: Access | None = None, is_patient: bool = False) -> None:
        self.address = address
        self.is_patient = is_patient
        self._nodes = nodes_of(address)
        # Why each node gave no answer, since the last one that did.
        self._reasons: dict[str, str] = {}
        # The log of the last answer about offsets, and its epoch, which only rises.
        self._newest = ("", 0)
        self._access = access or Access()
        self.entry = LogEntry(address, self._access.name, self._access.log_id)
        self._client: FlightClient | None = None
        # The log of the broker at the other end of this connection; the next connection may lead to another broker.
        self._log_id: str | None = None

    @property
    def is_cluster(self) -> bool:
        return len(self._nodes) > 1

    @property
    def place(self) -> str:
        """The address for tasks: the node that answered last stands first, because one before it may be frozen, and
        each task would wait for it."""
        used = None if self._client is None else self._client.server
        if used not in self._nodes:
            return self.address
        at = self._nodes.index(used)
        scheme, places = used.partition("://")[0], [one.partition("://")[2] for one in self._nodes]
        return f"{scheme}://{'/'.join(places[at:] + places[:at])}"

    @property
    def has_other_nodes(self) -> bool:
        """Whether a node has not been asked yet since the last answer."""
        return self.is_cluster and not self._reasons.keys() >= set(self._nodes)

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

        def ask(client: FlightClient) -> JsonObject:
            answer = client.offsets(
                partitions=partitions, filters=filters, pattern=pattern, time_us=time_us, epoch_before=epoch_before
            )
            return self._of_leader(with_partitions(answer, server=self.address))

        return self._asked(ask)

    def require_led(self, end: int, wanted: int, *, epoch: int, known_epoch: int | None) -> None:
        """Raises `UnavailableError` if a partition whose end is below a place that was read before shows that this node
        was deposed, and not that the log has lost its end. `epoch` is that of the answer, `known_epoch` that of the
        record before the place: without a later leader a cluster loses nothing that it has shown."""
        if self.is_cluster and epoch <= (known_epoch or 0):
            error = _DeposedError(f"its log ends at {end}, before {wanted}, which was read before")
            raise self._failed(error) from error

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
        finished: Mapping[int, tuple[int, int | None]] | None = None,
    ) -> JsonObject:
        """`finished` has by partition the offset to commit, and up to where no further record matches, if known."""
        offsets = {
            number: {"committed": place} if scanned is None else {"committed": place, "scanned": scanned}
            for number, (place, scanned) in (finished or {}).items()
        }
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
        hops = len(self._nodes)
        while True:
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
                    hops = 0
                    yield found
                self._reasons.clear()
                return
            except HeadwaterError as error:
                if self._client is not None:
                    self._client.follow(error)
                translated = self._failed(error)
                # Whoever has read records looks whether they are still those of this log.
                if not isinstance(error, NotLeaderError) or hops <= 0:
                    raise translated from error
                hops -= 1

    def let_go(self) -> None:
        """After an error: the next call opens a new connection."""
        self._log_id = None
        if self._client is not None:
            self._client.reset()

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
        """The answer to a request. Retries end with the time limit of one call, however many are left. Each node of a
        cluster is asked at least once."""
        left = self._access.num_retries if retries is None else retries
        if left:
            left = max(left, len(self._nodes) if self.is_cluster else 0)
        deadline = time.monotonic() + (timeout_seconds or self._access.request_timeout_ms / 1_000)
        while True:
            try:
                answer = question(self._connected())
            except HeadwaterError as error:
                translated = self._failed(error)
                may_wait = self.is_patient and self.is_cluster and retries is None
                is_last = time.monotonic() >= deadline or (left <= 0 and not may_wait)
                if is_last or not isinstance(translated, UnavailableError):
                    raise translated from error
                left -= 1
                time.sleep(self._access.retry_interval_ms / 1_000 if left >= 0 else _ELECTION_RETRY_SECONDS)
            else:
                self._reasons.clear()
                return answer

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

    def _failed(self, error: HeadwaterError) -> HeadwaterError:
        """The error of a call in the words of the source; the next call goes to where the leader may be."""
        node = self._nodes[0] if self._client is None else self._client.asked
        translated = self._translated(error)
        if self.is_cluster and isinstance(translated, UnavailableError):
            self._reasons[node] = translated.reason
            if isinstance(error, (OutOfRangeError, _DeposedError)) and self._client is not None:
                self._client.go_on()
            translated = leaderless(self._nodes, self._reasons)
        self.let_go()
        return translated

    def _of_leader(self, answer: JsonObject) -> JsonObject:
        if not self.is_cluster or not answer["partitions"]:
            return answer
        (log_id, newest), said = self._newest, str(answer["log_id"])
        epoch = max(int(row["epoch"]) for row in answer["partitions"].values())
        if said == log_id and epoch < newest:
            raise _DeposedError(f"it answers as of epoch {epoch}, and epoch {newest} has begun")
        self._newest = said, epoch
        return answer

    def _translated(self, error: HeadwaterError) -> HeadwaterError:
        if isinstance(error, ConfigError):
            return OptionError(str(error))
        if isinstance(error, BrokerError) and isinstance(error.__cause__, KeyError | TypeError | None):
            # The connection works, but the answer lacks something. Another attempt would get the same.
            return refused(self.address, "internal", {"message": str(error)})
        if error.code is None or error.detail is None:
            return unreachable(self.address, _short(error.__cause__ or error))
        if isinstance(error, RefusedError) and error.server:
            return error
        if isinstance(error, _DeposedError):
            return unreachable(self.address, str(error))
        if self.is_cluster and isinstance(error, OutOfRangeError) and error.wanted > error.high_watermark:
            # The place comes from an earlier answer, and a cluster loses nothing that it has shown.
            return unreachable(self.address, f"its log ends at {error.high_watermark}, before {error.wanted}")
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
