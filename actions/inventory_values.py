"""Values of the inventory: which devices, what changes, what a change did; and the limit on mass removal.

Works on rows of `devices` as dictionaries; opens no table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actions.engine.expressions import ExpressionError
from actions.engine.labels import compiled
from actions.inventory_csv import Wanted
from broker_edge.errors import RefusedError, SettingsError
from sinks.rows import Row

REMOVE_MAX_PERCENT = 10.0
_TOLD_MAX = 5

Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a change does, as ids in order. `missing` are devices in use that the file does not name."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    """Retired devices that are in use again."""
    unchanged: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    version: int | None = None
    """The version of the table with the change; None if nothing was written."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The devices that meet every criterion. A device that never reported is silent for any time."""

    ids: Sequence[str] = ()
    expression: str | None = None
    groups: Sequence[str] = ()
    """Members of any of these groups."""
    seen_within_s: float | None = None
    silent_for_s: float | None = None
    retired: bool = False
    """Whether retired devices are meant too."""

    @property
    def is_timed(self) -> bool:
        """Whether it depends on when the devices were last seen."""
        return self.seen_within_s is not None or self.silent_for_s is not None


@dataclass(frozen=True, slots=True)
class Change:
    """What `set` changes: what `wanted` says (its id is not used), and groups to add and to remove."""

    wanted: Wanted
    add_groups: Sequence[str] = ()
    remove_groups: Sequence[str] = ()


def matching(
    rows: Iterable[dict[str, Any]], selection: Selection, seen_us: Mapping[str, int], now_us: int
) -> list[dict[str, Any]]:
    """The selected rows, by id. Raises SettingsError if the label expression is wrong."""
    try:
        holds = (lambda labels: True) if selection.expression is None else compiled(selection.expression)
    except ExpressionError as error:
        raise SettingsError(f"the label expression {error}") from error
    ids, groups = frozenset(selection.ids), frozenset(selection.groups)

    def is_selected(row: Row) -> bool:
        silent_s = (now_us - seen_us.get(row["device_id"], 0)) / 1e6
        return (
            (selection.retired or is_used(row))
            and (not ids or row["device_id"] in ids)
            and holds(row["labels"] or {})
            and (not groups or not groups.isdisjoint(row["groups"] or ()))
            and (selection.seen_within_s is None or silent_s <= selection.seen_within_s)
            and (selection.silent_for_s is None or silent_s >= selection.silent_for_s)
        )

    return sorted(filter(is_selected, rows), key=lambda row: str(row["device_id"]))


def is_used(row: Row) -> bool:
    return row["retired_at"] is None


def shown(row: Row) -> str:
    names = ("tenant", "labels", "groups", "time_zone", "log", "retired_at")
    return json.dumps({name: row[name] for name in names if row[name]}, ensure_ascii=False)


def listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _TOLD_MAX} more" if len(ids) > _TOLD_MAX else ""
    return f"{', '.join(ids[:_TOLD_MAX])}{more}"


def refuse_mass_removal(ids: Sequence[str], used: int, max_percent: float, why: str) -> None:
    if len(ids) * 100 <= max_percent * used:
        return
    percent = len(ids) * 100 / used
    raise RefusedError(
        f"{len(ids)} of {used} devices in use ({percent:.3g} %) {why} would be retired, above the limit of "
        f"{max_percent:g} %: {listed(ids)}; nothing was changed. If it is meant, allow it with --remove-max "
        f"{math.ceil(percent)}"
    )
