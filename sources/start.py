"""Where a query begins: options, and what the consumer group kept from the first time, made into places.

The start is resolved once. Spark asks for it twice at the beginning and again when the first batch is replayed, and
stores it nowhere; so what depends on the moment (`latest`, a time, even the log start) is kept at the broker under
the group's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sources.errors import OptionError, RefusedError
from sources.flight import LogServer
from sources.group import ReaderGroup
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
    """What the broker says of each partition that the options reach."""
    partitions = None if options.assign is None else list(options.assign.get(log_id, ()))
    if partitions == []:
        return {}
    answer = server.offsets(partitions=partitions, filters=options.filters, time_us=time_us, epoch_before=epoch_before)
    if answer["log_id"] != log_id:
        raise RefusedError(server.address, "not_found", {"message": f"log {log_id} is not there any more"})
    return {int(number): row for number, row in answer["partitions"].items()}


def resolve(
    bound: Bound, options: SourceOptions, servers: Mapping[str, LogServer], group: ReaderGroup | None
) -> SourceOffset:
    """A place in every partition of every log in `servers`, checked for loss. Every broker must answer."""
    for named in (bound.places, options.assign or {}):
        for log_id in named:
            if log_id not in servers:
                raise unknown_log(log_id, dict(servers))
    logs = {}
    for log_id, server in servers.items():
        places = _places(log_id, server, bound, options, group)
        if places:
            logs[log_id] = _checked(log_id, server, places, options)
    return SourceOffset(logs)


def _places(
    log_id: str, server: LogServer, bound: Bound, options: SourceOptions, group: ReaderGroup | None
) -> dict[int, Place]:
    """Named places as they are; the others from the group, or resolved now and kept there."""
    rows = ask_offsets(log_id, server, options, time_us=bound.time_us)
    named = bound.places.get(log_id, {})
    for number in named:
        if number not in rows:
            raise OptionError(
                f"startingOffsets names partition {number} of log {log_id}, where {options.what} cannot be"
            )
    places = dict(named)
    open_rows = {number: row for number, row in rows.items() if number not in named}
    resolved = {number: _resolved(bound, row) for number, row in open_rows.items()}
    if group is not None and resolved:
        kept = group.initial(log_id, server)
        if not set(resolved) <= set(kept):
            kept = group.keep_initial(log_id, server, resolved)
        resolved = {number: kept[number] for number in resolved}
    places.update({number: Place(offset) for number, offset in resolved.items()})
    return places


def _resolved(bound: Bound, row: Mapping[str, Any]) -> int:
    if bound.kind == "latest":
        return int(row["high_watermark"])
    if bound.kind == "time":
        return int(row["offset_for_time"])
    return int(row["log_start"])


def _checked(log_id: str, server: LogServer, places: Mapping[int, Place], options: SourceOptions) -> dict[int, Place]:
    """Fills in epochs, and moves places that are lost where the options allow it."""
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
