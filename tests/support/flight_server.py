"""A Flight server in memory that follows docs/protocols.md, section 3, for tests of clients that read or produce over
Flight.

`FlightServer` wraps a `MemoryLog` and can go down and come back on the same port. It checks no credentials and syncs
nothing. Where pyarrow's server cannot send the gRPC status of the protocol (OUT_OF_RANGE, FAILED_PRECONDITION, …), it
sends another one with the same JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from support.flight_wire import (
    BATCH_ROWS,
    BATCH_ROWS_MAX,
    SCHEMA,
    TOPICS_A_RESULT,
    JsonObject,
    group_json,
    json_object,
    next_offset,
    refusal,
    to_batch,
)
from support.memory_log import Group, MemoryLog, Partition, Pattern, Wanted, matches_any

__all__ = ["SCHEMA", "FlightServer", "refusal", "to_batch"]

# Small, so that clients that list groups get several pages.
GROUPS_A_PAGE = 2


class FlightServer:
    """`with FlightServer() as server: Client(server.location)`; `server.log` holds the records.

    `calls` counts requests by action or method name. `before(name)` runs at the start of each request and may raise
    `refusal(…)`.
    """

    def __init__(self, log: MemoryLog | None = None, *, port: int = 0) -> None:
        self.log = log or MemoryLog()
        self.port = port
        self.calls: dict[str, int] = {}
        self.before: Callable[[str], None] = lambda name: None
        self._service: _Service | None = None

    @property
    def location(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def up(self) -> FlightServer:
        """Starts to serve, on the same port as before if there was one."""
        if self._service is None:
            self._service = _Service(self, f"grpc://127.0.0.1:{self.port}")
            self.port = self._service.port
        return self

    def down(self) -> None:
        """Stops: calls in progress end, and the operating system refuses new ones."""
        service, self._service = self._service, None
        if service is not None:
            service.stopping.set()
            with self.log.changed:
                self.log.changed.notify_all()
            service.shutdown()

    def __enter__(self) -> FlightServer:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def called(self, name: str) -> None:
        with self.log.changed:
            self.calls[name] = self.calls.get(name, 0) + 1
        self.before(name)


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    """One run of the server: pyarrow's servers cannot be started twice."""

    def __init__(self, owner: FlightServer, location: str) -> None:
        super().__init__(location)
        self.owner = owner
        self.log = owner.log
        self.stopping = threading.Event()

    def partition(self, number: int) -> Partition:
        try:
            return self.log.partitions[int(number)]
        except (KeyError, ValueError) as error:
            raise refusal("not_found", f"there is no partition {number}") from error

    def in_range(self, place: Partition, wanted: int) -> None:
        if not place.log_start <= wanted <= place.high_watermark:
            raise refusal(
                "out_of_range",
                f"offset {wanted} of partition {place.name} is outside [{place.log_start}, {place.high_watermark}]",
                partition=place.number,
                log_start=place.log_start,
                high_watermark=place.high_watermark,
                wanted=wanted,
            )

    # Actions

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        handler = _ACTIONS.get(action.type)
        if handler is None:
            raise refusal("not_found", f"there is no action `{action.type}`")
        self.owner.called(action.type)
        body = action.body.to_pybytes() if action.body is not None else b"{}"
        with self.log.changed:
            answers = list(handler(self, body))
        return iter([flight.Result(json.dumps(one).encode()) for one in answers])

    def version(self, text: bytes) -> Iterator[JsonObject]:
        json_object(text, "version", (), ())
        yield {"version": "0.1.0", "protocol": 1, "format": 1, "log_id": self.log.log_id}

    def topics(self, text: bytes) -> Iterator[JsonObject]:
        filters = wanted(json_object(text, "topics", (), ("filters", "pattern")))
        rows = []
        for place in self.log.reachable(filters):
            bounds: dict[str, tuple[int, int]] = {}
            for record in place.records:
                if matches_any(filters, record.topic):
                    first, _ = bounds.get(record.topic, (record.offset, 0))
                    bounds[record.topic] = (first, record.offset + 1)
            for topic, (first, after) in sorted(bounds.items()):
                row = {"topic": topic, "class": place.class_name, "partition": place.number}
                rows.append({**row, "name": place.name, "first": first, "next": after})
        for start in range(0, max(len(rows), 1), TOPICS_A_RESULT):
            yield {"log_id": self.log.log_id, "topics": rows[start : start + TOPICS_A_RESULT]}

    def offsets(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "offsets", (), ("partitions", "filters", "pattern", "time_us", "epoch_before"))
        before = {int(number): offset for number, offset in (body.get("epoch_before") or {}).items()}
        numbers = body.get("partitions")
        places = self.log.reachable(wanted(body)) if numbers is None else [self.partition(number) for number in numbers]
        answer: JsonObject = {}
        for place in places:
            row = {
                "name": place.name,
                "class": place.class_name,
                "log_start": place.log_start,
                "high_watermark": place.high_watermark,
                "epoch": place.epoch,
                "bytes": sum(len(record.value) for record in place.records),
                "gaps": [{"start": start, "end": end, "reason": "damage"} for start, end in place.gaps()],
            }
            if body.get("time_us") is not None:
                row["offset_for_time"] = place.offset_for_time(body["time_us"])
            if place.number in before:
                row["epoch_before"] = place.epoch_before(before[place.number])
            answer[str(place.number)] = row
        yield {"log_id": self.log.log_id, "partitions": answer}

    def plan(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "plan", ("from",), ("filters", "pattern", "max_records", "max_bytes"))
        starts = {self.partition(number).number: offset for number, offset in body["from"].items()}
        for number, offset in starts.items():
            self.in_range(self.log.partitions[number], offset)
        planned = self.log.plan(starts, wanted(body), body.get("max_records"), body.get("max_bytes"))
        answer: JsonObject = {}
        for number, one in planned.items():
            place = self.log.partitions[number]
            answer[str(number)] = {
                "end": one.end,
                "scanned": one.scanned,
                "records": one.records,
                "bytes": one.bytes,
                "epoch": place.epoch_before(one.end),
                "log_start": place.log_start,
                "high_watermark": place.high_watermark,
            }
        yield {"log_id": self.log.log_id, "partitions": answer}

    def commit(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "commit", ("group", "reader_epoch"), ("initial", "offsets"))
        group = self.log.groups.setdefault(body["group"], Group(body["group"]))
        self._fence(group, body["reader_epoch"])
        group.reader_epoch = body["reader_epoch"]
        for number, offset in (body.get("initial") or {}).items():
            group.initial.setdefault(int(number), offset)
        for number, place in (body.get("offsets") or {}).items():
            if place["committed"] < group.committed.get(int(number), 0):
                group.scanned.pop(int(number), None)
            group.committed[int(number)] = place["committed"]
            if place.get("scanned") is not None:
                group.scanned[int(number)] = place["scanned"]
        yield group_json(group)

    def committed(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "committed", ("group",), ("reader_epoch",))
        group = self.log.groups.get(body["group"], Group(body["group"]))
        if body.get("reader_epoch") is not None:
            self._fence(group, body["reader_epoch"])
        yield group_json(group)

    def groups(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "groups", (), ("after", "limit"))
        names = sorted(name for name in self.log.groups if name > body.get("after", ""))
        page = names[: body.get("limit", GROUPS_A_PAGE)]
        following = page[-1] if len(page) < len(names) else None
        yield {"groups": [group_json(self.log.groups[name]) for name in page], "next": following}

    def reset_group(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "reset_group", ("group", "offsets"), ())
        group = self.log.groups.get(body["group"])
        if group is None:
            raise refusal("not_found", f"there is no consumer group {body['group']}")
        group.reader_epoch += 1
        for number, offset in body["offsets"].items():
            group.initial[int(number)] = group.committed[int(number)] = offset
            group.scanned.pop(int(number), None)
        yield group_json(group)

    def remove_group(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "remove_group", ("group",), ())
        if self.log.groups.pop(body["group"], None) is None:
            raise refusal("not_found", f"there is no consumer group {body['group']}")
        yield {}

    def gap(self, text: bytes) -> Iterator[JsonObject]:
        body = json_object(text, "gap", ("partition", "start", "reason"), ("group", "end", "log_id"))
        is_elsewhere = body.get("log_id") not in (None, self.log.log_id)
        name = None if is_elsewhere else self.partition(body["partition"]).name
        end = body.get("end")
        if (end is None and not is_elsewhere) or (end is not None and body["start"] >= end):
            raise refusal("invalid_argument", "the end of a gap must be above its start", field="end")
        record = {"group": None, "log_id": None, "end": None, **body, "name": name}
        self.log.append("$gaps", json.dumps(record).encode())
        yield {}

    @staticmethod
    def _fence(group: Group, reader_epoch: int) -> None:
        if reader_epoch < group.reader_epoch:
            raise refusal(
                "fenced",
                f"a newer reader of group {group.name} has epoch {group.reader_epoch}, this one {reader_epoch}",
                group=group.name,
                reader_epoch=group.reader_epoch,
            )

    # Reading

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        self.owner.called("ListFlights")
        for place in self.log.reachable(None):
            ticket = {"partition": place.number, "start": place.log_start, "end": place.high_watermark}
            text = json.dumps(ticket).encode()
            endpoint = flight.FlightEndpoint(flight.Ticket(text), [])
            descriptor = flight.FlightDescriptor.for_command(text)
            yield flight.FlightInfo(SCHEMA, descriptor, [endpoint], len(place.records), -1)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        self.owner.called("DoGet")
        body = json_object(
            ticket.ticket, "the ticket", ("partition", "start"), ("filters", "pattern", "end", "follow", "batch_rows")
        )
        if ("end" in body) == bool(body.get("follow")):
            raise refusal("invalid_argument", "the ticket needs exactly one of `end` and `follow`", field="end")
        rows = body.get("batch_rows", BATCH_ROWS)
        if not 1 <= rows <= BATCH_ROWS_MAX:
            raise refusal("invalid_argument", f"`batch_rows` {rows} is not in 1-{BATCH_ROWS_MAX}", field="batch_rows")
        with self.log.changed:
            place = self.partition(body["partition"])
            self.in_range(place, body["start"])
            if "end" in body:
                self.in_range(place, body["end"])
        if body.get("follow"):
            return flight.GeneratorStream(SCHEMA, self._follow(context, place, wanted(body), body["start"], rows))
        batches = self._bounded(place, wanted(body), body["start"], body["end"], rows)
        return flight.GeneratorStream(SCHEMA, batches)

    def _bounded(
        self, place: Partition, filters: Wanted, start: int, end: int, rows: int
    ) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        with self.log.changed:
            held = list(place.between(start, end))
        lost = start
        for record in held:
            if record.offset != lost:
                break
            lost += 1
        if lost < end:
            after = next((r.offset for r in held if r.offset > lost), end)
            message = f"offsets {lost}-{after} of partition {place.name} are lost"
            raise refusal("data_loss", message, partition=place.number, start=lost, end=after)
        found = [record for record in held if matches_any(filters, record.topic)]
        for first in range(0, max(len(found), 1), rows):
            part = found[first : first + rows]
            is_last = first + rows >= len(found)
            yield to_batch(part, place.number, self.log.log_id), next_offset(end if is_last else part[-1].offset + 1)

    def _follow(
        self, context: Any, place: Partition, filters: Wanted, start: int, rows: int
    ) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        position = start
        while not self.stopping.is_set() and not context.is_cancelled():
            with self.log.changed:
                if place.high_watermark == position:
                    self.log.changed.wait(timeout=1.0)
                self.in_range(place, position)
                end = min(place.high_watermark, position + rows)
                found = [r for r in place.between(position, end) if matches_any(filters, r.topic)]
            position = end
            yield to_batch(found, place.number, self.log.log_id), next_offset(position)
        raise refusal("unavailable", "the broker is stopping", partition=place.number)

    # Producing

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self.owner.called("DoPut")
        body = json_object(descriptor.command, "the descriptor", ("op",), ())
        if body["op"] != "produce":
            raise refusal("invalid_argument", f"`op` is `{body['op']}`; it must be `produce`", field="op")
        for chunk in reader:
            writer.write(pa.py_buffer(json.dumps(self._produce(chunk.data)).encode()))

    def _produce(self, batch: pa.RecordBatch) -> JsonObject:
        rows = batch.to_pylist()
        for row in rows:
            topic = row.get("topic") or ""
            if not topic or topic.startswith("$") or "+" in topic or "#" in topic:
                raise refusal("invalid_argument", f"nobody may produce to the topic `{topic}`", field="topic")
        answer: JsonObject = {"partitions": [], "offsets": [], "duplicates": []}
        with self.log.changed:
            for row in rows:
                place, is_repeat = self._append(row)
                answer["partitions"].append(place[0])
                answer["offsets"].append(place[1])
                answer["duplicates"].append(is_repeat)
        return answer

    def _append(self, row: JsonObject) -> tuple[tuple[int, int], bool]:
        idempotency_key = row.get("idempotency_key")
        headers = [(one["key"], one["value"]) for one in row.get("headers") or []]
        if idempotency_key:
            known = self.log.place_of_key(row["topic"], idempotency_key)
            if known is not None:
                return known, True
            headers.append(("headwater.idempotency-key", idempotency_key.encode()))
        qos = row.get("qos")
        place = self.log.append(
            row["topic"],
            row["value"],
            key=row.get("key"),
            headers=headers,
            qos=1 if qos is None else qos,
            retain=bool(row.get("retain")),
        )
        return place, False


def wanted(body: JsonObject) -> Wanted:
    """The filters or the pattern of a request."""
    pattern, filters = body.get("pattern"), body.get("filters")
    if pattern is not None and filters is not None:
        raise refusal("invalid_argument", "give either filters or a pattern, not both", field="pattern")
    return filters if pattern is None else Pattern(pattern)


_ACTIONS: dict[str, Callable[[_Service, bytes], Iterator[JsonObject]]] = {
    "version": _Service.version,
    "topics": _Service.topics,
    "offsets": _Service.offsets,
    "plan": _Service.plan,
    "commit": _Service.commit,
    "committed": _Service.committed,
    "groups": _Service.groups,
    "reset_group": _Service.reset_group,
    "remove_group": _Service.remove_group,
    "gap": _Service.gap,
}
