"""The audit of actions as rows: definitions, states, requests, targets, events, live and archived ones.

Every row that the tables have is among them once, whatever part of the action has moved to the archives. The rows of
`action_state` are read first, so what they count must then be found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actions.history import History
from broker_edge.errors import SinkError
from sinks.sql_text import literals
from sinks.tables import ACTION_EVENTS, ACTION_REQUESTS, ACTION_STATE, ACTION_TARGETS, ACTIONS, FieldTable

KINDS: Mapping[str, FieldTable] = {
    "action": ACTIONS,
    "state": ACTION_STATE,
    "request": ACTION_REQUESTS,
    "target": ACTION_TARGETS,
    "event": ACTION_EVENTS,
}
"""By kind of row: the table whose columns it has."""
_AT_ONCE = 100
"""Actions that are read together."""


def actions_between(history: History, since_us: int | None, until_us: int | None) -> list[str]:
    """The ids of actions that were inserted or begun in `[since, until)`, in this order of time."""
    asked = (
        ("actions", "SELECT action_id, created_at AS at FROM actions WHERE action_id IS NOT NULL"),
        ("action_state", "SELECT action_id, started_at AS at FROM action_state"),
    )
    first: dict[str, int] = {}
    for row in (row for one in asked for row in history.query(*one)):
        at_us = row["at"] or 0
        if at_us >= (since_us or 0) and (until_us is None or at_us < until_us):
            first[row["action_id"]] = min(at_us, first.get(row["action_id"], at_us))
    return sorted(first, key=lambda id_: (first[id_], id_))


class Export:
    """Iterate over it once: pairs of a kind and a row. Afterwards `written` has the number of rows of each kind."""

    def __init__(self, history: History, action_ids: Sequence[str]) -> None:
        self._history, self._ids = history, tuple(action_ids)
        self.written: Counter[str] = Counter()

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Raises SinkError at the end if an action has more targets than were found."""
        lacking = []
        for start in range(0, len(self._ids), _AT_ONCE):
            expected: Counter[str] = Counter()
            for kind, row in self._some(self._ids[start : start + _AT_ONCE]):
                self.written[kind] += 1
                if kind == "state":
                    expected[row["action_id"]] += row["targets"] or 0
                elif kind == "target":
                    expected[row["action_id"]] -= 1
                yield kind, row
            lacking += [f"{number} of action {id_}" for id_, number in expected.items() if number > 0]
        if lacking:
            raise SinkError(f"the tables lack targets that action_state counts: {', '.join(sorted(lacking)[:10])}")

    def _some(self, ids: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        where = f"action_id IN {literals(ids)}"
        for kind, name in (("state", "action_state"), ("action", "actions")):
            for row in self._history.query(name, f"SELECT * FROM {name} WHERE {where} ORDER BY action_id"):
                yield kind, row
        for row in self._history.requests(where):
            yield "request", row
        for row in self._history.each_target(where, "SELECT * FROM targets ORDER BY action_id, device_id"):
            yield "target", row
        for row in self._history.each_event(where, "SELECT * FROM events ORDER BY action_id, at, event_id"):
            yield "event", row
