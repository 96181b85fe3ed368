"""The operations of a broker's Flight service, in the JSON of docs/protocols.md, section 3.

`FlightClient` is the only Flight client of headwater: `broker_edge.Client` adds types and its own retries to it, the
Spark source its options. It keeps no state between calls, and all its errors are those of `broker_edge.errors`. Threads
may share it, processes may not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from broker_edge._arrow import flight, pa
from broker_edge._connection import Connection, from_flight
from broker_edge.credentials import Credentials
from broker_edge.errors import BrokerError, HeadwaterError
from broker_edge.tls import Tls

__all__ = ["FlightClient", "JsonObject", "RecordReader", "from_flight"]

JsonObject = dict[str, Any]


class RecordReader:
    """An open stream of record batches in the canonical schema."""

    def __init__(self, connection: Connection, reader: flight.FlightStreamReader) -> None:
        self._connection = connection
        self._reader = reader

    @property
    def schema(self) -> pa.Schema:
        """The schema that the broker declares."""
        with self._connection.errors():
            return self._reader.schema

    def read(self) -> tuple[pa.RecordBatch, int] | None:
        """The next batch and the offset after its range; None at the end of the stream."""
        with self._connection.errors():
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return None
        with self._connection.decoding():
            if chunk.app_metadata is None:
                raise TypeError("a batch without app_metadata")
            following = json.loads(chunk.app_metadata.to_pybytes())["next"]
            if type(following) is not int:
                raise TypeError(f"next is {following!r:.60}")
            return chunk.data, following

    def cancel(self) -> None:
        """Ends the stream; a thread waiting in `read` gets an error."""
        self._reader.cancel()


class FlightClient:
    """Connects to the broker at `server` with the first call; see `parse_server` for the forms of an address.

    `timeout_s` limits a call including its retries. Calls that change nothing are retried while the broker is
    unreachable, up to `retries` times with growing pauses. The others are tried once, because without an answer it is
    unknown whether the change happened. Arguments that are None are left out of the request.

    Several addresses are those of one cluster: `Connection` says how its leader is followed.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._connection = Connection(server, timeout_s=timeout_s, retries=retries, credentials=credentials, tls=tls)

    @property
    def server(self) -> str:
        """The complete address; of several, the one in use."""
        return self._connection.server

    @property
    def asked(self) -> str:
        """The address that the last call went to."""
        return self._connection.asked

    def close(self) -> None:
        """Closes the connection. A closed client cannot be reopened."""
        self._connection.close()

    def pause(self, error: HeadwaterError, failures: int) -> bool:
        """Waits before the next attempt to read a stream; returns False if there must not be one."""
        return self._connection.pause(error, failures)

    def follow(self, error: HeadwaterError) -> None:
        """After an error of a stream, the next call goes to where the leader may be; after one of a call it does so by
        itself."""
        self._connection.follow(error)

    def go_on(self) -> None:
        """The next call goes to the next of several addresses."""
        self._connection.go_on()

    def reset(self) -> None:
        """The next call opens a new connection."""
        self._connection.reset()

    def decoding(self) -> AbstractContextManager[None]:
        """`with client.decoding():` turns a missing or wrong field of an answer into a BrokerError."""
        return self._connection.decoding()

    # Information

    def version(self, *, timeout_s: float | None = None) -> JsonObject:
        """Version, protocol, disk format and log id of the broker."""
        return self._read("version", {}, timeout_s)

    def topics(self, *, filters: str | Sequence[str] | None = None, timeout_s: float | None = None) -> list[JsonObject]:
        """The topics that match any of the MQTT filters, with the offsets between which they have records."""
        body = _body(filters=_listed(filters))
        answers = self._connection.read("topics", body, timeout_s=timeout_s)
        if not answers:
            # A reader would take this for a log without these topics.
            raise BrokerError(f"{self.server} answered no result to action topics")
        with self._connection.decoding():
            return [row for answer in answers for row in answer["topics"]]

    def offsets(
        self,
        *,
        partitions: Sequence[int] | None = None,
        filters: str | Sequence[str] | None = None,
        pattern: str | None = None,
        time_us: int | None = None,
        epoch_before: Mapping[int, int] | None = None,
        timeout_s: float | None = None,
    ) -> JsonObject:
        """Log id, and per partition log start, high watermark and the other requested values."""
        body = _body(
            partitions=partitions,
            filters=_listed(filters),
            pattern=pattern,
            time_us=time_us,
            epoch_before=_by_text(epoch_before),
        )
        return self._read("offsets", body, timeout_s)

    def plan(
        self,
        starts: Mapping[int, int],
        *,
        filters: str | Sequence[str] | None = None,
        pattern: str | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> JsonObject:
        """How far each partition may be read from `starts` within the limits, which count matching records."""
        body = _body(filters=_listed(filters), pattern=pattern, max_records=max_records, max_bytes=max_bytes) | {
            "from": _by_text(starts)
        }
        return self._read("plan", body, timeout_s)

    # Records

    def get(
        self,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        filters: str | Sequence[str] | None = None,
        pattern: str | None = None,
        batch_rows: int | None = None,
        timeout_s: float | None = None,
    ) -> RecordReader:
        """Opens a stream of the matching records `[start, end)`; without `end` it follows the partition.

        Errors of the request may also be raised by the first read. `timeout_s` limits the whole stream.
        """
        ticket = _body(
            partition=partition,
            start=start,
            end=end,
            follow=True if end is None else None,
            filters=_listed(filters),
            pattern=pattern,
            batch_rows=batch_rows,
        )
        return RecordReader(self._connection, self._connection.get(ticket, timeout_s=timeout_s))

    def put(
        self, schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, timeout_s: float | None = None
    ) -> list[JsonObject]:
        """Appends batches of rows, waiting for each answer; returns one answer per batch, sent after its sync."""
        return self._connection.put(schema, batches, timeout_s=timeout_s)

    # Consumer groups

    def commit(
        self,
        group: str,
        reader_epoch: int,
        *,
        initial: Mapping[int, int] | None = None,
        offsets: Mapping[int, Mapping[str, int]] | None = None,
        timeout_s: float | None = None,
    ) -> JsonObject:
        """Records what a group has finished: per partition `committed`, and `scanned` if it is known."""
        finished = None if offsets is None else {str(n): dict(one) for n, one in sorted(offsets.items())}
        body = _body(group=group, reader_epoch=reader_epoch, initial=_by_text(initial), offsets=finished)
        return self._change("commit", body, timeout_s)

    def committed(self, group: str, *, reader_epoch: int | None = None, timeout_s: float | None = None) -> JsonObject:
        """What a group has finished; with `reader_epoch`, an error if a newer reader has taken over."""
        return self._read("committed", _body(group=group, reader_epoch=reader_epoch), timeout_s)

    def groups(self, *, after: str | None = None, timeout_s: float | None = None) -> JsonObject:
        """One page of the consumer groups that this user may use; `next` is the `after` of the next page."""
        return self._read("groups", _body(after=after), timeout_s)

    def reset_group(self, group: str, offsets: Mapping[int, int], *, timeout_s: float | None = None) -> JsonObject:
        """Moves a group to these offsets, by partition, and fences its readers."""
        return self._change("reset_group", {"group": group, "offsets": _by_text(offsets)}, timeout_s)

    def remove_group(self, group: str, *, timeout_s: float | None = None) -> None:
        """Removes a consumer group and its offsets."""
        self._connection.change("remove_group", {"group": group}, timeout_s=timeout_s)

    def gap(
        self,
        partition: int,
        start: int,
        end: int | None,
        *,
        reason: str,
        group: str | None = None,
        log_id: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Records in `$gaps` that a reader continues without `[start, end)`, of the broker's log or of `log_id`."""
        body = _body(group=group, partition=partition, start=start, end=end, reason=reason, log_id=log_id)
        self._connection.change("gap", body, timeout_s=timeout_s)

    # Administration

    def backup(self, name: str, *, timeout_s: float | None = None) -> JsonObject:
        """Makes the broker copy its log to `name` in its `log.backup_dir`; waits until the copy is complete.

        Tried again like a read: what is there already is not copied twice."""
        return self._read("backup", {"name": name}, timeout_s)

    def _read(self, action: str, body: JsonObject, timeout_s: float | None) -> JsonObject:
        return self._one(action, self._connection.read(action, body, timeout_s=timeout_s))

    def _change(self, action: str, body: JsonObject, timeout_s: float | None) -> JsonObject:
        return self._one(action, self._connection.change(action, body, timeout_s=timeout_s))

    def _one(self, action: str, answers: list[JsonObject]) -> JsonObject:
        if len(answers) != 1 or not isinstance(answers[0], dict):
            what = f"{len(answers)} results where one was expected" if len(answers) != 1 else "no object"
            raise BrokerError(f"{self.server} answered {what} to action {action}")
        return answers[0]


def _body(**fields: object) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _listed(filters: str | Sequence[str] | None) -> list[str] | None:
    if filters is None:
        return None
    return [filters] if isinstance(filters, str) else list(filters)


def _by_text(offsets: Mapping[int, int] | None) -> dict[str, int] | None:
    return None if offsets is None else {str(partition): offset for partition, offset in sorted(offsets.items())}
