"""How far the next batch goes: the records that wait at the brokers, within the limits of the options.

A function of the query's position, the brokers' answers and the limits. It also decides whether a small batch should
wait (`minOffsetsPerTrigger`), based on the time that the caller passes in, and whether positions follow what the query
has passed (`passing`). `splits` does the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker_edge.errors import OffsetError, RefusedError, UnavailableError
from sources.broker_errors import unreachable, unusable
from sources.log_server import LogServer
from sources.loss import find_loss, pass_or_raise
from sources.offsets import Place, SourceOffset
from sources.options import SourceOptions
from sources.passing import Extent, is_far
from sources.scans import Scan, Scans
from sources.servers import Servers
from sources.start import ask_offsets

Heads = Mapping[str, Mapping[int, Place]]

# Ask brokers that reached their share a second time if at least this part of the limit is left over.
_LEFT_OVER_PART = 0.1

# How often a plan looks again because retention has removed what it asks for. The next plan goes on from there.
_LOOKS_MAX = 4


@dataclass(slots=True)
class _Waiting:
    """One log: where reading continues, and what waits there."""

    # Every partition with its position; new partitions join at their log start.
    places: dict[int, Place]
    # The partitions that had a position, and where reading continues there.
    begun: dict[int, Place] = field(default_factory=dict)
    extents: dict[int, Extent] = field(default_factory=dict)
    # Those whose position was lost.
    lost: set[int] = field(default_factory=set)
    # Those with waiting offsets, and the offset from which each is scanned.
    scan_from: dict[int, int] = field(default_factory=dict)
    backlog: int = 0
    heads: dict[int, Place] = field(default_factory=dict)


_LookAgain = Callable[[str, LogServer, _Waiting], _Waiting]


@dataclass(frozen=True, slots=True)
class _Planned:
    """One broker's answer."""

    ends: Mapping[int, Place]
    scans: Mapping[int, Scan]
    records: int
    # Whether a limit left matching records out.
    is_held_back: bool


_NOTHING = _Planned({}, {}, 0, is_held_back=False)


@dataclass(frozen=True, slots=True)
class NextBatch:
    """The end of the next batch, the high watermarks seen while planning, and the brokers that could not be asked."""

    end: SourceOffset
    heads: Heads
    records: int
    away: tuple[UnavailableError, ...]


def plan_batch(
    begin: SourceOffset,
    servers: Servers,
    reachable: Mapping[str, LogServer],
    options: SourceOptions,
    *,
    max_rows: int | None,
    targets: Heads | None,
    may_wait: bool,
    scans: Scans,
) -> NextBatch:
    """Plans from `begin`. With `targets` the end stays at or below them; with `may_wait` a batch that is too small
    stays empty.

    `scans` holds the results of earlier calls and is updated.
    """

    def look(log_id: str, server: LogServer, before: _Waiting | None = None) -> _Waiting:
        return _look(log_id, server, begin.logs.get(log_id, {}), options, targets, scans, before)

    waiting, away = servers.ask(reachable, look)
    brokers = {log_id: reachable[log_id] for log_id, one in waiting.items() if one.scan_from}
    planned, also_away = _plan_all(brokers, waiting, servers, options, max_rows, targets, look)
    logs = {log_id: dict(places) for log_id, places in begin.logs.items()}
    logs |= {log_id: one.places for log_id, one in waiting.items() if one.places}
    records = sum(one.records for one in planned.values())
    is_too_small = (
        may_wait
        and options.min_offsets_per_trigger is not None
        and records < options.min_offsets_per_trigger
        and not any(one.is_held_back for one in planned.values())
    )
    for log_id, one in planned.items():
        # The records that wait for more were not read, so what is known of the offsets before them stays.
        left = one.ends if is_too_small else ()
        scans.update({(log_id, number): scan for number, scan in one.scans.items() if number not in left})
    if is_too_small:
        planned, records = {}, 0
    passed = _passed(waiting, targets, scans)
    followed, away_by_now = servers.ask(
        {log_id: reachable[log_id] for log_id in passed},
        lambda log_id, server: _followed(log_id, server, waiting[log_id], passed[log_id], options),
    )
    for log_id, places in followed.items():
        logs[log_id] = {**logs[log_id], **places}
    for log_id, one in planned.items():
        logs[log_id] = {**logs[log_id], **one.ends}
    heads = {log_id: one.heads for log_id, one in waiting.items()}
    return NextBatch(SourceOffset(logs), heads, records, (*away, *also_away, *away_by_now))


def find_heads(servers: Servers, reachable: Mapping[str, LogServer], options: SourceOptions) -> Heads:
    """The current high watermarks. A broker that became unreachable is left out."""

    def ask(log_id: str, server: LogServer) -> dict[int, Place]:
        rows = ask_offsets(log_id, server, options)
        return {number: Place(int(row["high_watermark"])) for number, row in rows.items()}

    return servers.ask(reachable, ask)[0]


def _look(
    log_id: str,
    server: LogServer,
    known: Mapping[int, Place],
    options: SourceOptions,
    targets: Heads | None,
    scans: Scans,
    before: _Waiting | None,
) -> _Waiting:
    """What waits at one broker. Lost positions are moved here, or raise. Where this plan has looked `before`, it goes
    on from there: the losses that were found then are recorded."""
    # `resumed_at` belongs to the batch that ended there.
    begun = {number: replace(place, resumed_at=None) for number, place in known.items()}
    if before is not None:
        begun |= before.begun
    wanted = {number: place.next for number, place in begun.items()}
    rows = ask_offsets(log_id, server, options, epoch_before=wanted)
    for number in known:
        if number not in rows:
            raise OffsetError(
                f"the checkpoint reads partition {number} of log {log_id}, which cannot hold {options.what}: "
                "the subscription was changed; use a new checkpoint"
            )
    found = _Waiting(dict(known), lost=set() if before is None else set(before.lost))
    found.heads = {number: Place(int(row["high_watermark"])) for number, row in rows.items()}
    ends = None if targets is None else targets.get(log_id, {})
    for number, row in rows.items():
        if ends is not None and number not in ends:
            continue
        place = begun.get(number)
        if place is None:
            # It is read from the next batch on; in this batch its range is empty.
            found.places[number] = Place(int(row["log_start"]))
            continue
        extent = Extent.of(row)
        scan = scans.get((log_id, number))
        scan_from = _scanned(place, scan, extent.epoch)
        if place.next < extent.log_start <= scan_from:
            # Nothing of this query is lost. Reading begins where there are records.
            place = replace(place, resumed_at=scan_from)
        elif (loss := find_loss(log_id, number, place, row, server)) is not None:
            pass_or_raise(loss, options, server)
            found.lost.add(number)
            place = Place(loss.resume_at, resumed_at=loss.resume_at)
            scan_from = _scanned(place, scan, extent.epoch)
        found.begun[number], found.extents[number] = place, extent
        head = extent.high_watermark if ends is None else ends[number].next
        if scan_from < head:
            found.scan_from[number] = scan_from
            found.backlog += head - scan_from
    return found


def _scanned(place: Place, scan: Scan | None, epoch: int) -> int:
    """No record from this place up to there matches."""
    return scan.scanned if scan is not None and scan.next == place.next and scan.epoch == epoch else place.next


def _plan_all(
    brokers: Mapping[str, LogServer],
    waiting: dict[str, _Waiting],
    servers: Servers,
    options: SourceOptions,
    max_rows: int | None,
    targets: Heads | None,
    look: _LookAgain,
) -> tuple[dict[str, _Planned], list[UnavailableError]]:
    """Divides the limits among the brokers by their waiting records, then gives unused parts to brokers that have
    more. Where retention has removed what was to be planned, looks again, which updates `waiting`."""
    backlog = {log_id: waiting[log_id].backlog for log_id in brokers}
    rows = shares(backlog, max_rows)
    sizes = shares(backlog, options.max_bytes_per_trigger)
    # One record always fits, whatever its size.
    sizes = {log_id: size and max(1, size) for log_id, size in sizes.items()}

    def ask(log_id: str, server: LogServer) -> _Planned:
        ends = None if targets is None else targets[log_id]
        for _ in range(_LOOKS_MAX):
            one = waiting[log_id]
            try:
                return _plan(log_id, server, one, options, rows[log_id], sizes[log_id], ends)
            except RefusedError as error:
                if error.code != "out_of_range":
                    raise
                refusal = error
            waiting[log_id] = look(log_id, server, one)
            if waiting[log_id].scan_from == one.scan_from:
                # Nothing is gone that would explain it.
                raise refusal
        return _NOTHING

    first = {log_id: server for log_id, server in brokers.items() if rows[log_id] != 0}
    planned, away = servers.ask(first, ask)
    if max_rows is None or len(brokers) < 2:
        return planned, away
    left = max_rows - sum(one.records for one in planned.values())
    # Waiting records may match no filter and then wait forever; they must not reserve a share of the limit.
    more = {log_id: brokers[log_id] for log_id in brokers if log_id not in first or _is_held_back(planned, log_id)}
    if more and left >= max(1, max_rows * _LEFT_OVER_PART):
        extra = shares({log_id: backlog[log_id] for log_id in more}, left)
        rows = {log_id: (extra[log_id] or 0) + _records(planned, log_id) for log_id in more}
        more = {log_id: server for log_id, server in more.items() if rows[log_id]}
        again, also_away = servers.ask(more, ask)
        # What was planned for these may begin before what has been skipped since.
        others = {log_id: one for log_id, one in planned.items() if log_id not in more}
        planned, away = others | again, [*away, *also_away]
    return planned, away


def _is_held_back(planned: Mapping[str, _Planned], log_id: str) -> bool:
    return log_id in planned and planned[log_id].is_held_back


def _records(planned: Mapping[str, _Planned], log_id: str) -> int:
    return planned[log_id].records if log_id in planned else 0


def shares(backlog: Mapping[str, int], limit: int | None) -> dict[str, int | None]:
    """Splits a limit in proportion to the waiting records. The remainder of the rounding goes to the largest ones."""
    if limit is None:
        return dict.fromkeys(backlog)
    total = max(1, sum(backlog.values()))
    found = {log_id: limit * count // total for log_id, count in backlog.items()}
    left = limit - sum(found.values())
    for log_id in sorted(backlog, key=lambda one: (-backlog[one], one))[:left]:
        found[log_id] += 1
    return dict(found)


def _plan(
    log_id: str,
    server: LogServer,
    waiting: _Waiting,
    options: SourceOptions,
    max_rows: int | None,
    max_bytes: int | None,
    targets: Mapping[int, Place] | None,
) -> _Planned:
    """The ends that the broker plans within the limits. Only partitions with matching records move."""
    if not waiting.scan_from:
        return _NOTHING
    answer = server.plan(
        waiting.scan_from,
        filters=options.filters,
        pattern=options.pattern,
        max_records=max_rows,
        max_bytes=max_bytes,
    )
    if answer["log_id"] != log_id:
        raise unreachable(server.address, f"it holds log {answer['log_id']} and not log {log_id}")
    ends: dict[int, Place] = {}
    scans: dict[int, Scan] = {}
    beyond: dict[int, int] = {}
    records, is_held_back = 0, False
    for number, scan_from in waiting.scan_from.items():
        row = answer["partitions"][str(number)]
        if not int(row["end"]) <= int(row["scanned"]) <= int(row["high_watermark"]):
            what = (
                f"the end {row['end']} of its plan of partition {number}, scanned up to {row['scanned']}, is not there"
            )
            raise unusable(server.address, f"{what}: the partition ends at {row['high_watermark']}")
        epoch = waiting.extents[number].epoch
        if (row["epoch"] or 0) > epoch:
            # The log may have been cut and written again since it was looked at. The next plan looks again.
            continue
        place = waiting.begun[number]
        if place.next < int(row["log_start"]):
            # Retention has passed the position since, and nothing of this query is lost, as in `_look`.
            place = waiting.begun[number] = replace(place, resumed_at=scan_from)
        records += int(row["records"])
        is_held_back = is_held_back or int(row["scanned"]) < int(row["high_watermark"])
        end = Place(int(row["end"]), row["epoch"], place.resumed_at)
        if end.next <= scan_from:
            scans[number] = Scan(place.next, int(row["scanned"]), epoch)
            continue
        scans[number] = Scan(end.next, int(row["scanned"]), epoch)
        target = None if targets is None else targets[number]
        if target is not None and end.next > target.next:
            beyond[number] = target.next
        elif end != waiting.places[number]:
            ends[number] = end
    if beyond:
        # As it is now: the log may have been cut and written again since the run began.
        rows = ask_offsets(log_id, server, options, epoch_before=beyond)
        for number, last in beyond.items():
            ends[number] = Place(last, rows[number].get("epoch_before"), waiting.begun[number].resumed_at)
    return _Planned(ends, scans, records, is_held_back)


def _passed(waiting: Mapping[str, _Waiting], targets: Heads | None, scans: Scans) -> dict[str, dict[int, int]]:
    """Up to where positions follow: all of them when one is far behind or was lost, else none."""
    ends: dict[str, dict[int, int]] = {}
    is_due = False
    for log_id, one in waiting.items():
        for number, place in one.begun.items():
            extent = one.extents[number]
            end = _scanned(place, scans.get((log_id, number)), extent.epoch)
            if targets is not None:
                end = min(end, targets[log_id][number].next)
            # Where retention has passed the position, also behind the end of a run.
            end = max(end, place.resumed_at or 0)
            is_lost = number in one.lost
            if is_lost or end > place.next:
                ends.setdefault(log_id, {})[number] = end
            is_due = is_due or is_lost or is_far(place.next, end, extent)
    return ends if is_due else {}


def _followed(
    log_id: str, server: LogServer, waiting: _Waiting, ends: Mapping[int, int], options: SourceOptions
) -> dict[int, Place]:
    """The positions at `ends`, from which the next batch reads on."""
    rows = ask_offsets(log_id, server, options, epoch_before=ends)
    followed = {}
    for number, end in ends.items():
        begun, extent = waiting.begun[number], waiting.extents[number]
        row = rows.get(number)
        if row is None or int(row["epoch"]) != extent.epoch:
            # In another epoch the log may have been cut since, and the next plan looks again.
            continue
        # Of damaged records nobody knows the topic: the batch reads up to them, and finds the loss.
        first = end if not _is_damaged(row, begun.next, end) else begun.resumed_at
        epoch = row.get("epoch_before")
        followed[number] = Place(end, extent.epoch if epoch is None else epoch, first)
    return followed


def _is_damaged(row: Mapping[str, Any], first: int, end: int) -> bool:
    """Whether `[first, end)` may have damage, as far as the broker knows."""
    if "gaps" not in row or row.get("gaps_left_out"):
        return True
    return any(gap["reason"] == "damage" and int(gap["start"]) < end and first < int(gap["end"]) for gap in row["gaps"])
