"""`headwater tail`: prints records with their offsets over Flight, as they arrive or up to the end of the log."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.errors import DeadlineError, HeadwaterError, RefusedError
from broker_edge.positions import parse_position, resolve
from headwater_cli._options import (
    DEFAULT_SERVER,
    FROM_HELP,
    CountOption,
    FiltersArgument,
    JsonOption,
    LimitOption,
    ServerOption,
    connect,
)
from headwater_cli._output import payload_json, payload_text, put_fields, put_json

if TYPE_CHECKING:
    import pyarrow as pa

    from broker_edge.client import Client
    from broker_edge.stream import RecordStream

# When this many batches wait for a slow terminal, the readers stop.
_QUEUE_BATCHES = 16
_BATCH_ROWS = 1_024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def tail(
    filters: FiltersArgument = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="POSITION", help=FROM_HELP),
    ] = "latest",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Continue with new records, or stop at the end of the log.")
    ] = True,
    count: CountOption = None,
    timeout: LimitOption = None,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
) -> None:
    """Print records: partition:offset, topic and payload. Only synced records are shown."""
    try:
        position = parse_position(start)
    except RefusedError as error:
        raise typer.BadParameter(str(error)) from error
    shown = 0
    deadline = None if timeout is None else time.monotonic() + timeout
    with connect(server, timeout or 30.0) as asking:
        starts = resolve(asking, position, filters)
        bounds = asking.offsets(partitions=starts).partitions
        if follow:
            batches = _follow(server, starts, filters, deadline)
        else:
            ends = {number: bounds[number].high_watermark for number in starts}
            batches = _bounded(asking, starts, ends, filters, deadline)
        try:
            for batch in batches:
                for row in batch.to_pylist() if batch is not None else ():
                    _show(row, bounds[row["partition"]].name, as_json=json)
                    shown += 1
                    if shown == count:
                        return
                if follow:
                    _require_time(deadline)
        except DeadlineError as error:
            if timeout is None:
                raise
            wanted = "" if count is None else f" of {count}"
            raise DeadlineError(f"{shown}{wanted} records within {timeout:g} s") from error


def _require_time(deadline: float | None) -> float | None:
    """The seconds that are left; None without a deadline."""
    left_s = None if deadline is None else deadline - time.monotonic()
    if left_s is not None and left_s <= 0:
        raise DeadlineError("the time is up")
    return left_s


def _bounded(
    client: Client,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    filters: list[str] | None,
    deadline: float | None,
) -> Iterator[pa.RecordBatch]:
    for number, start in starts.items():
        left_s, end = _require_time(deadline), max(ends[number], start)
        with client.fetch(number, start, end, filters=filters, batch_rows=_BATCH_ROWS, timeout_s=left_s) as stream:
            yield from stream


def _follow(
    server: str, starts: Mapping[int, int], filters: list[str] | None, deadline: float | None
) -> Iterator[pa.RecordBatch | None]:
    """Batches of all partitions as they arrive, and None at intervals, so that the caller can check the time."""
    found: queue.Queue[pa.RecordBatch | HeadwaterError] = queue.Queue(_QUEUE_BATCHES)
    stopping = threading.Event()

    def give(item: pa.RecordBatch | HeadwaterError) -> None:
        while not stopping.is_set():
            try:
                found.put(item, timeout=0.2)
                break
            except queue.Full:
                continue

    def read(stream: RecordStream) -> None:
        try:
            for batch in stream:
                give(batch)
        except HeadwaterError as error:
            give(error)

    from broker_edge.client import Client

    with Client(server) as client:
        streams = [client.tail(n, start, filters=filters, batch_rows=_BATCH_ROWS) for n, start in starts.items()]
        threads = [threading.Thread(target=read, args=[stream], daemon=True) for stream in streams]
        for thread in threads:
            thread.start()
        try:
            while True:
                left_s = 0.5 if deadline is None else min(max(deadline - time.monotonic(), 0.01), 0.5)
                try:
                    item = found.get(timeout=left_s)
                except queue.Empty:
                    yield None
                    continue
                if isinstance(item, HeadwaterError):
                    raise item
                yield item
        finally:
            stopping.set()
            for stream in streams:
                stream.close()
            for thread in threads:
                thread.join(5)


def _show(row: Mapping[str, Any], name: str, *, as_json: bool) -> None:
    if not as_json:
        put_fields(f"{name}:{row['offset']}", row["topic"], payload_text(row["value"]))
        return
    headers = [{"key": one["key"], **payload_json(one["value"])} for one in row["headers"] or ()]
    put_json(
        {
            "partition": row["partition"],
            "name": name,
            "offset": row["offset"],
            "epoch": row["epoch"],
            "ts": (row["timestamp"] - _EPOCH) // timedelta(microseconds=1),
            "topic": row["topic"],
            "key": payload_text(row["key"]),
            **payload_json(row["value"]),
            "headers": headers or None,
            "qos": row["qos"],
            "retain": row["retain"],
            "client_id": row["client_id"],
            "log_id": row["log_id"],
        }
    )


def register(app: typer.Typer) -> None:
    app.command()(tail)
