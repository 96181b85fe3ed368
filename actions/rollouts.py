"""Applies a rollout file: inserts its action once, and says in what another file with the same id differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actions.engine import Limits
from actions.fleet_desk import FleetDesk, Order
from actions.rollout_file import Rollout
from broker_edge.errors import RefusedError
from sinks.rows import arrow_of, rows_of
from sinks.tables import ACTIONS

_JSON = ("params", "waves")


def apply(desk: FleetDesk, rollout: Rollout, *, limits: Limits | None = None) -> bool:
    """Inserts the action and returns True, or False if it is there with the same content.

    Raises RefusedError if the id has another content, because an action never changes once it is inserted, and if the
    engine would refuse the action: its id would be used up. `limits` say whose signatures count (`FleetDesk.refusal`).
    """
    stored = desk.stored(rollout.action_id)
    if stored is None:
        wrong = desk.refusal(rollout.order, action_id=rollout.action_id, limits=limits)
        if wrong is not None:
            raise RefusedError(f"action {rollout.action_id} was not inserted: {wrong}")
        desk.order(rollout.order, action_id=rollout.action_id)
        return True
    other = differing(desk.resolved(rollout.order), stored)
    if other:
        raise RefusedError(
            f"action {rollout.action_id} exists with other values of {', '.join(other)}, and an action does not change "
            "once it is inserted: write a new id, and cancel the old action if it must stop"
        )
    return False


def differing(order: Order, stored: Mapping[str, Any]) -> list[str]:
    """The columns in which a stored row of `actions` differs from the order."""
    # Through Arrow, so that both have the types and the precision of the table.
    (wanted,) = rows_of(arrow_of([order.row() | {"action_id": ""}], ACTIONS))
    return [name for name in order.row() if _plain(name, wanted[name]) != _plain(name, stored.get(name))]


def _plain(name: str, value: Any) -> Any:
    if name in _JSON and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
