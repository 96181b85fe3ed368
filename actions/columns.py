"""Reads batches of the action tables into the engine's values, column by column. Opens no table.

`rows` does the same for single rows. A million rows as dictionaries take gigabytes and half a minute. Here equal texts
and times of a batch become one object, because most targets of an action have them in common, and an id becomes the
object that the caller already has for it (`same_id`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import Any

import pyarrow as pa

from actions.engine import Device, DeviceState, Target, TargetState
from actions.engine.replacing import maker
from actions.rows import TARGET_DEFAULTS, columns_of, shared_labels
from sinks.rows import values_of
from sinks.tables import DEFAULT_TENANT

DEVICE_COLUMNS = ("device_id", "tenant", "labels", "groups", "time_zone", "log", "retired_at")
"""The columns that `devices_in` reads."""


def targets_in(batch: pa.RecordBatch, same_id: Callable[[str], str]) -> Iterator[Target]:
    return starmap(maker(Target), zip(*_fields(batch, Target, same_id), strict=True))


def device_states_in(batch: pa.RecordBatch, same_id: Callable[[str], str]) -> Iterator[DeviceState]:
    return starmap(maker(DeviceState), zip(*_fields(batch, DeviceState, same_id), strict=True))


def _fields(batch: pa.RecordBatch, kind: Any, same_id: Callable[[str], str]) -> Iterator[Iterable[Any]]:
    """The values of each field of the class, in order."""
    pool: dict[Any, Any] = {}
    for name, column in columns_of(kind):
        found = values_of(batch, column)
        default = TARGET_DEFAULTS.get(name) if kind is Target else None
        if name == "device_id":
            yield map(same_id, found)
        elif name == "state":
            states = {text: TargetState(text) for text in set(found)}
            yield map(states.__getitem__, found)
        elif name == "copies":
            yield [tuple(one or ()) for one in found]
        elif default is not None:
            yield [default if one is None else one for one in found]
        else:
            yield _shared(found, pool)


def devices_in(batch: pa.RecordBatch) -> Iterator[tuple[Device, bool]]:
    """The device of each row that has an id, and whether it is retired. `rows.device_of` explains the columns."""
    pool: dict[Any, Any] = {}
    ids, tenants, labels, groups, zones, logs, retired = (values_of(batch, name) for name in DEVICE_COLUMNS)
    made = maker(Device)
    for id_, tenant, labelled, grouped, zone, log, since in zip(
        ids,
        _shared((one or DEFAULT_TENANT for one in tenants), pool),
        map(shared_labels, labels),
        _shared((tuple(text or "" for text in one or ()) for one in groups), pool),
        _shared(zones, pool),
        _shared((one or None for one in logs), pool),
        retired,
        strict=True,
    ):
        if id_:
            yield made(id_, tenant, labelled, grouped, zone, log), since is not None


def _shared(values: Iterable[Any], pool: dict[Any, Any]) -> Iterator[Any]:
    """The values, with one object for equal ones."""
    same = pool.setdefault
    return (same(one, one) for one in values)
