"""The client of a broker's Flight service: topics and offsets, reading, producing, consumer groups.

Synchronous; threads may share a client, processes may not. Reads are retried while the broker is unreachable. Calls
that change something are tried once; idempotency keys make `produce` repeatable. It does not use MQTT.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from broker_edge._arrow import pa
from broker_edge.credentials import Credentials
from broker_edge.errors import BrokerError, ConfigError, RefusedError
from broker_edge.flight import FlightClient
from broker_edge.server_address import DEFAULT_SERVER, is_tls
from broker_edge.stream import RecordStream
from broker_edge.tls import Tls, TlsFiles, TlsReferences
from broker_edge.values import (
    Commit,
    Group,
    Offsets,
    Place,
    Plan,
    Row,
    Topic,
    Version,
    group_from_json,
    offsets_from_json,
    places_from_json,
    plan_from_json,
    text,
    topic_from_json,
    version_from_json,
)

# A batch of rows gets one answer and one sync. The broker's own limit on a Flight message is larger.
_PRODUCE_ROWS = 4_096
_PRODUCE_BYTES = 4 * 1024 * 1024

_PRODUCE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("idempotency_key", pa.string()),
    ]
)


class Client:
    """A client of the broker at `server` (`grpc://host:port`; default: HEADWATER_SERVER, otherwise port 8815 on this
    host). Several addresses, or one such as `grpc://host:port/host:port`, are the nodes of one cluster: calls that
    change nothing go on at its leader, also after another node has taken over, and a stream goes on at its next offset.
    A call that changes something raises NotLeaderError or ConnectError, and the next call goes to another node.

    `timeout_s` limits each call including its retries. Streams are limited only if `fetch` or `tail` say so, but a dead
    peer is detected after 30 s. The first call opens the connection. Every method raises `HeadwaterError`. Without
    `credentials` they come from HEADWATER_USER with HEADWATER_PASSWORD_FROM, or from HEADWATER_TOKEN_FROM; the latter
    two say where the secret is (`file:PATH`, `env:NAME`).

    Over TLS (`grpc+tls://host:port`), `tls_ca` is the PEM file of the authority that signed the broker's certificate,
    and `tls_cert` and `tls_key` are those of the client's own certificate. Defaults: HEADWATER_TLS_CA,
    HEADWATER_TLS_CERT and HEADWATER_TLS_KEY. `tls` is for certificates that are given otherwise, as by reference.

    >>> with Client("grpc://edge-7:8815") as client:
    ...     for topic in client.topics("devices/+/telemetry"):
    ...         print(topic.topic, topic.first, topic.next)
    """

    def __init__(
        self,
        server: str | Sequence[str] | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        credentials: Credentials | None = None,
        tls_ca: Path | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        tls: Tls | None = None,
    ) -> None:
        address = server or os.environ.get("HEADWATER_SERVER") or DEFAULT_SERVER
        shown = credentials or Credentials.from_environment()
        files: Tls = TlsFiles(ca=tls_ca, cert=tls_cert, key=tls_key)
        if files.is_given and tls is not None:
            raise ConfigError("give certificates as files or as tls, not both")
        if tls is not None:
            files = tls
        elif not files.is_given and is_tls(address if isinstance(address, str) else next(iter(address), "")):
            files = TlsReferences.from_environment()
        self._flight = FlightClient(address, timeout_s=timeout_s, retries=retries, credentials=shown, tls=files)

    @property
    def server(self) -> str:
        """The complete address; of several, the one in use."""
        return self._flight.server

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. A closed client cannot be reopened."""
        self._flight.close()

    # Information

    def version(self, *, timeout_s: float | None = None) -> Version:
        """Version, protocol, disk format and log id of the broker."""
        answer = self._flight.version(timeout_s=timeout_s)
        with self._flight.decoding():
            return version_from_json(answer)

    def topics(self, filters: str | Sequence[str] | None = None, *, timeout_s: float | None = None) -> list[Topic]:
        """The topics that match any of the MQTT filters (default: all except the broker's own state)."""
        rows = self._flight.topics(filters=filters, timeout_s=timeout_s)
        with self._flight.decoding():
            return [topic_from_json(row) for row in rows]

    def offsets(
        self,
        *,
        partitions: Iterable[int] | None = None,
        filters: str | Sequence[str] | None = None,
        time_us: int | None = None,
        epoch_before: Mapping[int, int] | None = None,
        timeout_s: float | None = None,
    ) -> Offsets:
        """The bounds of `partitions`, or of all partitions that the filters can reach.

        `time_us` adds the first offset at or after that time; `epoch_before` maps partitions to an offset and adds the
        epoch of the record before it.
        """
        answer = self._flight.offsets(
            partitions=None if partitions is None else sorted(partitions),
            filters=filters,
            time_us=time_us,
            epoch_before=epoch_before,
            timeout_s=timeout_s,
        )
        with self._flight.decoding():
            return offsets_from_json(answer)

    def backup(self, name: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Makes the broker copy its log to `name` in its `log.backup_dir`; returns what was copied.

        Waits until the backup is complete. It contains the records below the high watermarks at its start.
        """
        return self._flight.backup(name, timeout_s=timeout_s)

    def plan(
        self,
        starts: Mapping[int, int],
        *,
        filters: str | Sequence[str] | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> Plan:
        """How far to read from `starts` (partition to offset). The limits count matching records over all partitions.

        Raises OutOfRangeError if a start is gone or does not exist yet.
        """
        answer = self._flight.plan(
            starts, filters=filters, max_records=max_records, max_bytes=max_bytes, timeout_s=timeout_s
        )
        with self._flight.decoding():
            return plan_from_json(answer, starts)

    # Reading

    def fetch(
        self,
        partition: int,
        start: int,
        end: int,
        *,
        filters: str | Sequence[str] | None = None,
        batch_rows: int | None = None,
        timeout_s: float | None = None,
    ) -> RecordStream:
        """The matching records `[start, end)` of a partition: iterate over batches, or call `.to_table()`.

        The first batch raises OutOfRangeError if part of the range is gone or above the high watermark, and
        DataLossError if it is damaged. `timeout_s` limits the stream of one connection (default: no limit).
        """
        return RecordStream(
            self._flight, partition, start, end, filters=filters, batch_rows=batch_rows, timeout_s=timeout_s
        )

    def tail(
        self,
        partition: int,
        start: int,
        *,
        filters: str | Sequence[str] | None = None,
        batch_rows: int | None = None,
        idle: bool = False,
    ) -> RecordStream:
        """The matching records of a partition from `start` on, and then each new one, without end.

        With `idle=True` it yields empty batches about once a second while no record matches, so that the caller can
        check the time; `next_offset` moves with them.
        """
        return RecordStream(self._flight, partition, start, filters=filters, batch_rows=batch_rows, idle=idle)

    # Producing

    def produce(
        self, rows: Iterable[Row] | pa.Table | pa.RecordBatch, *, timeout_s: float | None = None
    ) -> list[Place]:
        """Appends rows and returns their positions in the same order, after the sync.

        A table has the columns of docs/protocols.md (DoPut). Rows are sent in batches. If one batch is refused, earlier
        batches have already been appended, so give rows an `idempotency_key` to be able to send everything again.
        """
        batches = _batches(rows)
        if not batches:
            return []
        answers = self._flight.put(batches[0].schema, batches, timeout_s=timeout_s)
        places: list[Place] = []
        for batch, answer in zip(batches, answers, strict=True):
            with self._flight.decoding():
                places += places_from_json(answer, batch.num_rows)
        return places

    # Consumer groups

    def commit(
        self,
        group: str,
        *,
        reader_epoch: int,
        initial: Mapping[int, int] | None = None,
        offsets: Mapping[int, Commit] | None = None,
        timeout_s: float | None = None,
    ) -> Group:
        """Records what a group has finished; `initial` is stored only for partitions that have none yet.

        Raises FencedError if a reader with a higher epoch has taken over. Repeating a commit is harmless.
        """
        answer = self._flight.commit(
            group,
            reader_epoch,
            initial=initial,
            offsets=None if offsets is None else {number: _commit_json(one) for number, one in offsets.items()},
            timeout_s=timeout_s,
        )
        with self._flight.decoding():
            return group_from_json(answer)

    def committed(self, group: str, *, reader_epoch: int | None = None, timeout_s: float | None = None) -> Group:
        """What a group has finished. With `reader_epoch`, raises FencedError if a newer reader has taken over."""
        answer = self._flight.committed(group, reader_epoch=reader_epoch, timeout_s=timeout_s)
        with self._flight.decoding():
            return group_from_json(answer)

    def groups(self, *, timeout_s: float | None = None) -> list[Group]:
        """The consumer groups that this user may use: its own and those granted by the ACL."""
        groups: list[Group] = []
        after: str | None = None
        while True:
            # A broker without pages returns all groups at once and never announces another page.
            answer = self._flight.groups(after=after, timeout_s=timeout_s)
            with self._flight.decoding():
                groups += [group_from_json(one) for one in answer["groups"]]
                following = None if answer.get("next") is None else text(answer["next"])
            if following is None:
                return groups
            if after is not None and following <= after:
                raise BrokerError(f"{self.server} returned the same page of consumer groups again")
            after = following

    def reset_group(self, group: str, offsets: Mapping[int, int], *, timeout_s: float | None = None) -> Group:
        """Moves a consumer group: in these partitions, by number, it begins at the given offsets, and holds records
        from there on.

        A reader of the group that runs is fenced: its next commit raises FencedError. A Spark query continues from its
        checkpoint; only one with a new checkpoint begins where the group is. Raises NotFoundError if there is no such
        group, OutOfRangeError for an offset above the high watermark.
        """
        answer = self._flight.reset_group(group, offsets, timeout_s=timeout_s)
        with self._flight.decoding():
            return group_from_json(answer)

    def remove_group(self, group: str, *, timeout_s: float | None = None) -> None:
        """Removes a consumer group and its offsets, so that retention no longer waits for it.

        Raises NotFoundError if there is none. A reader that is still running creates the group again with its next
        commit.
        """
        self._flight.remove_group(group, timeout_s=timeout_s)

    def gap(
        self,
        partition: int,
        start: int,
        end: int,
        *,
        reason: str,
        group: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Records in `$gaps` that a reader skipped the offsets `[start, end)`."""
        self._flight.gap(partition, start, end, reason=reason, group=group, timeout_s=timeout_s)


def _commit_json(one: Commit) -> dict[str, int]:
    return {"committed": one.committed} if one.scanned is None else {"committed": one.committed, "scanned": one.scanned}


def _batches(rows: Iterable[Row] | pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return [batch for batch in rows.to_batches(max_chunksize=_PRODUCE_ROWS) if batch.num_rows]
    batches: list[pa.RecordBatch] = []
    part: list[Row] = []
    size_bytes = 0
    for row in rows:
        if not isinstance(row, Row):
            raise RefusedError(f"produce takes Row values or an Arrow table, not {type(row).__name__}")
        if part and (len(part) == _PRODUCE_ROWS or size_bytes + len(row.value) > _PRODUCE_BYTES):
            batches.append(_row_batch(part))
            part, size_bytes = [], 0
        part.append(row)
        size_bytes += len(row.value)
    return [*batches, _row_batch(part)] if part else batches


def _row_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = {
        "topic": [row.topic for row in rows],
        "value": [row.value for row in rows],
        "key": [row.key for row in rows],
        "headers": [[{"key": k, "value": v} for k, v in row.headers] or None for row in rows],
        "qos": [row.qos for row in rows],
        "retain": [row.retain for row in rows],
        "idempotency_key": [row.idempotency_key for row in rows],
    }
    try:
        return pa.RecordBatch.from_pydict(columns, schema=_PRODUCE_SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RefusedError(f"a row has a field of the wrong type: {error}") from error
