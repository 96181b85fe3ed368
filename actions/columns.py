"""Reads batches of the action tables into the engine's values, column by column. Opens no table.

`rows` does the same for single rows. A million rows as dictionaries take gigabytes and half a minute. Here equal texts
and times of a batch become one object, because most targets of an action have them in common, and an id becomes the
object that the caller already has for it (`same_id`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any

import pyarrow as pa

from actions.engine import Device, DeviceState, Report, Target, TargetState
from actions.engine.replacing import maker
from actions.rows import TARGET_DEFAULTS, columns_of, shared_labels
from sinks.rows import values_of
from sinks.tables import DEFAULT_TENANT

log = logging.getLogger(__name__)

DEVICE_COLUMNS = ("device_id", "tenant", "labels", "groups", "time_zone", "log", "retired_at")
"""The columns that `devices_in` reads."""
_REPORT_TIMES = {"at_us": "at", "recorded_us": "recorded_at"}
_REPORT_DEFAULTS = {"action_id": "", "attempt": 0, "tenant": DEFAULT_TENANT}
_DIFFERENT = frozenset(("offset", "at_us", "seq", "message", "result", "command_offset"))
"""Fields in which hardly two reports are equal."""
_NEEDED = {name: name for name in ("log_id", "partition", "offset", "device_id", "state")} | _REPORT_TIMES
"""Fields of a report, with their columns, that are never null in a row of the status job."""
_SOURCES = frozenset(("status", "receipt"))
_ROWS_AT_ONCE = 10_000
INSERT = "insert"
"""The kind of a change that adds a row."""


def targets_in(batch: pa.RecordBatch, same_id: Callable[[str], str]) -> Iterator[Target]:
    return starmap(maker(Target), zip(*_fields(batch, Target, same_id), strict=True))


def device_states_in(batch: pa.RecordBatch, same_id: Callable[[str], str]) -> Iterator[DeviceState]:
    return starmap(maker(DeviceState), zip(*_fields(batch, DeviceState, same_id), strict=True))


def _fields(batch: pa.RecordBatch, kind: Any, same_id: Callable[[str], str]) -> Iterator[Iterable[Any]]:
    """The values of each field of the class, in order."""
    pool: dict[Any, Any] = {}
    for name, column in columns_of(kind):
        found = values_of(batch, column)
        default = TARGET_DEFAULTS.get(name) if kind is Target or name == "tenant" else None
        if name == "device_id":
            yield map(same_id, found)
        elif name == "state":
            states = {text: TargetState(text) for text in set(found)}
            yield map(states.__getitem__, found)
        elif name == "copies":
            yield [tuple(one or ()) for one in found]
        elif default is not None:
            filled = [default if one is None else one for one in found]
            yield _shared(filled, pool) if isinstance(default, str) else filled
        else:
            yield _shared(found, pool)


def devices_in(batch: pa.RecordBatch) -> Iterator[tuple[Device, bool]]:
    """The device of each row that has an id, and whether it is retired. `rows.device_of` explains the columns."""
    pool: dict[Any, Any] = {}
    ids, tenants, labels, groups, zones, logs, retired = (values_of(batch, name) for name in DEVICE_COLUMNS)
    made = maker(Device)
    for id_, tenant, labelled, grouped, zone, log, since in zip(
        ids,
        _shared([one or DEFAULT_TENANT for one in tenants], pool),
        map(shared_labels, labels),
        _shared([tuple(text or "" for text in one or ()) for one in groups], pool),
        _shared(zones, pool),
        _shared([one or None for one in logs], pool),
        retired,
        strict=True,
    ):
        if id_:
            yield made(id_, tenant, labelled, grouped, zone, log), since is not None


def reports_in(feeds: Iterable[pa.Table], same_id: Callable[[str], str]) -> dict[Report, int]:
    """The reports of devices and brokers among these changes of `action_events`, with the table version that added
    each. The status job writes complete rows, but others may have written to the table too."""
    found: dict[Report, int] = {}
    for batch in (one for feed in feeds for one in feed.to_batches(max_chunksize=_ROWS_AT_ONCE)):
        made = list(starmap(maker(Report), zip(*_report_fields(batch, same_id), strict=True)))
        versions = values_of(batch, "_commit_version")
        for place in _wrong(batch, made):
            versions[place] = None
        found.update({report: version for report, version in zip(made, versions, strict=True) if version is not None})
    return found


def _report_fields(batch: pa.RecordBatch, same_id: Callable[[str], str]) -> Iterator[Iterable[Any]]:
    pool: dict[Any, Any] = {}
    for field in dataclasses.fields(Report):
        name = field.name
        found = values_of(batch, _REPORT_TIMES.get(name, name))
        if name == "device_id":
            yield [None if id_ is None else same_id(id_) for id_ in found]
        elif name in _REPORT_DEFAULTS:
            yield _shared([one or _REPORT_DEFAULTS[name] for one in found], pool)
        elif name in _DIFFERENT:
            yield found
        else:
            yield _shared(found, pool)


def _wrong(batch: pa.RecordBatch, reports: Sequence[Report]) -> Iterator[int]:
    """The places of rows that are no reports: those of the engine, changes that add no row, and others after a
    warning."""
    sources, changes = values_of(batch, "source"), values_of(batch, "_change_type")
    is_whole = not any(batch.column(column).null_count for column in _NEEDED.values())
    if is_whole and _SOURCES.issuperset(sources) and {INSERT}.issuperset(changes):
        return
    ids = values_of(batch, "event_id")
    for number, (source, change, report) in enumerate(zip(sources, changes, reports, strict=True)):
        if source == "engine" or change != INSERT:
            yield number
            continue
        lacking = [column for name, column in _NEEDED.items() if getattr(report, name) is None]
        if source not in _SOURCES or lacking:
            what = f"no {lacking[0]}" if lacking else f"the source {source!r:.60}"
            log.warning("ignoring a row of the table action_events with %s: %r", what, ids[number])
            yield number


def _shared(values: list[Any], pool: dict[Any, Any]) -> list[Any]:
    """The values, with one object for equal ones."""
    if values.count(None) == len(values):
        return values
    same = pool.setdefault
    return [same(one, one) for one in values]
