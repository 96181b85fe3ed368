"""Reads what is stored about actions: everything, or only what late reports about ended actions concern."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

from actions.engine import Action, ActionState, Target
from actions.rows import action_of, state_of
from sinks.sql_text import literal, literals

ASKED_MAX = 1_000
"""Maximum number of actions, or targets, in one statement. DataFusion recurses over them: 100,000 crashed the
process."""
_SHARE = 10


class Rows(Protocol):
    """The rows that a statement finds in one table, one after another: a million of them as dictionaries need
    gigabytes."""

    def __call__(self, name: str, sql: str) -> Iterator[Mapping[str, Any]]: ...


class Loading:
    """`targets` reads the targets of a table whose rows meet a condition."""

    def __init__(self, rows: Rows, targets: Callable[[str, str], Collection[Target]]) -> None:
        self._rows, self._targets = rows, targets

    def there(self, action_ids: frozenset[str]) -> frozenset[str]:
        """The ids without those that no table contains. Only checked if there are many: devices may report on any
        number of actions that do not exist."""
        if len(action_ids) <= ASKED_MAX:
            return action_ids
        known: set[str] = set()
        for name in ("actions", "action_state", "action_targets"):
            known.update(row["action_id"] for row in self._rows(name, f"SELECT DISTINCT action_id FROM {name}"))
        return action_ids & known

    def definitions(self, action_ids: Collection[str]) -> list[Action]:
        """All rows of `actions` with these ids."""
        return [action_of(row, commit_version=0) for row in self._of("actions", action_ids)]

    def states(self, action_ids: Collection[str]) -> tuple[ActionState, ...]:
        return tuple(state_of(row) for row in self._of("action_state", action_ids))

    def targets(self, states: Collection[ActionState], action_ids: Collection[str]) -> tuple[Target, ...]:
        """All targets of these actions, of which `states` are the rows."""
        found = [target for where in _those(action_ids) for target in self._targets("action_targets", where)]
        archived = [row.action_id for row in states if row.archived_us is not None]
        if not archived:
            return tuple(found)
        there = {target.key for target in found}
        old = (target for where in _those(archived) for target in self._targets("action_targets_archive", where))
        return (*found, *(target for target in old if target.key not in there))

    def some_targets(self, states: Collection[ActionState], asked: Mapping[str, Collection[str]]) -> tuple[Target, ...]:
        """The targets of these devices, by action."""
        found = [target for where in _pairs(asked) for target in self._targets("action_targets", where)]
        there = {target.key for target in found}
        archived = {
            row.action_id: {id_ for id_ in asked[row.action_id] if (row.action_id, id_) not in there}
            for row in states
            if row.archived_us is not None
        }
        old = (target for where in _pairs(archived) for target in self._targets("action_targets_archive", where))
        return (*found, *old)

    def said(self, states: Collection[ActionState], action_ids: Collection[str]) -> frozenset[str]:
        """The ids of the events of the engine about these actions."""
        ended = [row.action_id for row in states if row.ended_us is not None]
        asked = [("action_events", action_ids), ("action_events_archive", ended)]
        return frozenset(
            row["event_id"]
            for name, ids in asked
            for where in _those(ids)
            for row in self._events(name, where)
            if row["event_id"] is not None
        )

    def some_said(self, asked: Mapping[str, Collection[str]]) -> frozenset[str]:
        """The same about these devices. An archived event is no event that a repeated tick could say again."""
        found = (row["event_id"] for where in _pairs(asked) for row in self._events("action_events", where))
        return frozenset(event_id for event_id in found if event_id is not None)

    def _of(self, name: str, action_ids: Collection[str]) -> Iterator[Mapping[str, Any]]:
        for where in _those(action_ids):
            yield from self._rows(name, f"SELECT * FROM {name} WHERE {where}")

    def _events(self, name: str, where: str) -> Iterator[Mapping[str, Any]]:
        return self._rows(name, f"SELECT event_id FROM {name} WHERE source = 'engine' AND {where}")


def _those(action_ids: Collection[str]) -> Iterator[str]:
    """Conditions that select the rows of these actions."""
    ids = sorted(action_ids)
    for start in range(0, len(ids), ASKED_MAX):
        yield f"action_id IN {literals(ids[start : start + ASKED_MAX])}"


def _pairs(asked: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Conditions that select the rows of these devices, by action."""
    pairs = sorted((action_id, device_id) for action_id, ids in asked.items() for device_id in ids)
    for start in range(0, len(pairs), ASKED_MAX):
        by_action: dict[str, list[str]] = {}
        for action_id, device_id in pairs[start : start + ASKED_MAX]:
            by_action.setdefault(action_id, []).append(device_id)
        # The list of actions first: by its smallest and largest id, files of other actions are skipped.
        each = (f"(action_id = {literal(id_)} AND device_id IN {literals(ids)})" for id_, ids in by_action.items())
        yield f"action_id IN {literals(list(by_action))} AND ({' OR '.join(each)})"


def is_much(asked: int, targets: int) -> bool:
    """Whether reading all targets of an action is faster than looking up this number of them."""
    return asked > ASKED_MAX and asked * _SHARE >= targets
