"""What to say about an action that the engine has not processed, or that does not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from broker_edge.errors import NotFoundError, RefusedError
from broker_edge.escape import moment

if TYPE_CHECKING:
    from actions.fleet_desk import FleetDesk

_NEWEST = 1_000
"""Among how many of the newest actions a similar id is looked for."""


def unprocessed(desk: FleetDesk, action_id: str, when: str) -> str:
    """A sentence about an action without a row in `action_state`."""
    said = f"no action engine has processed action {action_id} {when}"
    row = desk.stored(action_id)
    if row is None:
        return f"{said}, and there is no such action{_similar(desk, action_id)}"
    since = (
        "it is in the table actions" if row["created_at"] is None else f"it was inserted at {_at(row['created_at'])}"
    )
    return f"{said}; {since}: is the job `actions` running?"


def require_action(desk: FleetDesk, action_id: str, where: object) -> None:
    """Raises NotFoundError if neither `actions` nor `action_state` has it: nobody would see that its request, such as a
    cancel with a typo in the id, is refused."""
    if desk.stored(action_id) is None and desk.action(action_id) is None:
        similar = _similar(desk, action_id)
        raise NotFoundError(f"there is no action {action_id} under {where}, so nothing was requested{similar}")


def require_free(desk: FleetDesk, action_id: str) -> None:
    """Raises RefusedError if the id is taken: of two rows the engine carries out the first one only, and `--wait` would
    show the result of that one."""
    if desk.stored(action_id) is not None or desk.action(action_id) is not None:
        raise RefusedError(f"the action was not inserted: there is an action {action_id} already; give another --id")


def _similar(desk: FleetDesk, action_id: str) -> str:
    rows = desk.query("actions", f"SELECT action_id FROM actions ORDER BY created_at DESC LIMIT {_NEWEST}")
    near = get_close_matches(action_id, [row["action_id"] for row in rows], n=1)
    return f": did you mean {near[0]}?" if near else ""


def _at(at_us: int) -> str:
    return moment(at_us, "milliseconds")
