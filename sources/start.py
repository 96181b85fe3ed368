"""Where a query starts: resolves the options, and what the consumer group stored the first time, to positions.

The start is resolved once. Spark asks for it twice at the beginning and again when it replays the first batch, and does
not store it. Therefore a start that depends on the moment (`latest`, a time, even the log start) is stored at the
broker under the group's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_edge.errors import OptionError
from sources.broker_errors import unreachable
from sources.group import ReaderGroup
from sources.log_server import LogServer
from sources.loss import find_loss, pass_or_raise
from sources.offsets import Place, SourceOffset
from sources.options import Bound, SourceOptions
from sources.servers import unknown_log


def ask_offsets(
    log_id: str,
    server: LogServer,
    options: SourceOptions,
    *,
    time_us: int | None = None,
    epoch_before: Mapping[int, int] | None = None,
) -> dict[int, Mapping[str, Any]]:
    """The broker's answer for each partition that the options reach."""
    partitions = None if options.assign is None else list(options.assign.get(log_id, ()))
    if partitions == []:
        return {}
    answer = server.offsets(
        partitions=partitions,
        filters=options.filters,
        pattern=options.pattern,
        time_us=time_us,
        epoch_before=epoch_before,
    )
    if answer["log_id"] != log_id:
        raise unreachable(server.address, f"it holds log {answer['log_id']!s:.100} and not log {log_id}")
    return {int(number): row for number, row in answer["partitions"].items()}


def resolve(
    bound: Bound,
    options: SourceOptions,
    servers: Mapping[str, LogServer],
    group: ReaderGroup | None,
    *,
    is_complete: bool = True,
) -> SourceOffset:
    """A position in every partition of every log in `servers`, checked for loss.

    `is_complete` says that every broker answered. Only then is a log that an option names and nobody holds an error.
    """
    for named in (bound.places, options.assign or {}):
        for log_id in named:
            if is_complete and log_id not in servers:
                raise unknown_log(log_id, servers)
    starts = {log_id: _start(log_id, server, bound, options, group) for log_id, server in servers.items()}
    starts = {log_id: start for log_id, start in starts.items() if start.named or start.resolved}
    if options.must_find_time and starts and all(start.is_late for start in starts.values()):
        raise OptionError(
            f"startingTimestamp is after the newest record of {options.what}: to start with new records, "
            "set startingOffsetsByTimestampStrategy=latest"
        )
    logs = {}
    for log_id, start in starts.items():
        places = _kept_places(log_id, servers[log_id], start, group)
        logs[log_id] = _checked(log_id, servers[log_id], places, options)
    return SourceOffset(logs)


@dataclass(frozen=True, slots=True)
class _Start:
    """Where reading one log would start now, and what the group stored earlier."""

    named: Mapping[int, Place]
    resolved: Mapping[int, int]
    kept: Mapping[int, int]
    # The requested time is after every record, so it has no offset, and no offset was stored earlier.
    is_late: bool

    @property
    def is_kept(self) -> bool:
        return set(self.resolved) <= set(self.kept)


def _start(log_id: str, server: LogServer, bound: Bound, options: SourceOptions, group: ReaderGroup | None) -> _Start:
    rows = ask_offsets(log_id, server, options, time_us=bound.time_us)
    named = bound.places.get(log_id, {})
    for number in named:
        if number not in rows:
            raise OptionError(
                f"startingOffsets names partition {number} of log {log_id}, which cannot hold {options.what}"
            )
    resolved = {number: _resolved(bound, row) for number, row in rows.items() if number not in named}
    kept = group.initial(log_id, server) if group is not None and resolved else {}
    is_late = bound.kind == "time" and all(place >= int(rows[n]["high_watermark"]) for n, place in resolved.items())
    return _Start(named, resolved, kept, is_late and not set(resolved) <= set(kept))


def _kept_places(log_id: str, server: LogServer, start: _Start, group: ReaderGroup | None) -> dict[int, Place]:
    """Named positions unchanged; the others from the group, which stores them if it has not done so yet."""
    kept: Mapping[int, int] = start.resolved
    if group is not None and start.resolved:
        kept = start.kept if start.is_kept else group.keep_initial(log_id, server, start.resolved)
    return dict(start.named) | {number: Place(kept[number]) for number in start.resolved}


def _resolved(bound: Bound, row: Mapping[str, Any]) -> int:
    if bound.kind == "latest":
        return int(row["high_watermark"])
    if bound.kind == "time":
        return int(row["offset_for_time"])
    return int(row["log_start"])


def _checked(log_id: str, server: LogServer, places: Mapping[int, Place], options: SourceOptions) -> dict[int, Place]:
    """Fills in epochs, and moves lost positions if the options allow it."""
    rows = ask_offsets(log_id, server, options, epoch_before={number: place.next for number, place in places.items()})
    checked = {}
    for number, place in places.items():
        loss = find_loss(log_id, number, place, rows[number], server)
        if loss is not None:
            pass_or_raise(loss, options, server)
            checked[number] = Place(loss.resume_at)
        else:
            checked[number] = Place(place.next, rows[number].get("epoch_before"))
    return checked
