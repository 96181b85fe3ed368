"""The row of `action_state` derived from an action's targets: counts, phase, and a sentence for users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from .action import Action
from .index import Kind
from .model import TERMINAL, ActionPhase, ActionState, TargetState
from .selection import describe

_SAID = {
    TargetState.SUCCEEDED: "succeeded",
    TargetState.FAILED: "failed",
    TargetState.REJECTED: "rejected it",
    TargetState.TIMED_OUT: "timed out",
    TargetState.CANCELLED: "cancelled",
    TargetState.SKIPPED: "skipped",
    TargetState.REMOVED: "removed",
}

_NOBODY = "selects nobody"


def said_of_nobody(action: Action, unknown: int) -> str:
    """Why an action ended without selecting a device."""
    if unknown and unknown == len(set(action.selector.device_ids or ())):
        return f"{_NOBODY}: none of the {unknown} listed ids is in the table devices; nothing was sent"
    return f"{_NOBODY}: no device of tenant {action.tenant} matches {describe(action)}; nothing was sent"


def summarized(row: ActionState, kinds: Mapping[Kind, int], now_us: int, *, lasting: bool = False) -> ActionState:
    """`row` updated from the counts of its targets. Keeps `updated_us` if nothing changed.

    A `lasting` action does not end with its last target, because devices may still join.
    """
    if row.phase is ActionPhase.REFUSED:
        return row
    total, found = 0, Counter[str]()
    for kind, count in kinds.items():
        found[kind.state.value] += count
        total += count
    counts = dict(sorted(found.items()))
    open_ = sum(counts.get(state, 0) for state in _OPEN)
    nobody = not open_ and row.stopped is None and row.message.startswith(_NOBODY)
    ends = not open_ and not lasting
    message = sentence(total, open_, counts)
    after = replace(
        row,
        phase=_phase(row, ends=ends),
        targets=total,
        open=open_,
        counts=counts,
        message=row.message if nobody else _prefix(row, ends=ends) + message,
        held=None if ends else row.held,
        ended_us=(row.ended_us if row.ended_us is not None else now_us) if ends else None,
    )
    return row if after == row else replace(after, updated_us=now_us)


_OPEN = tuple(state.value for state in TargetState if state not in TERMINAL)


def _phase(row: ActionState, *, ends: bool) -> ActionPhase:
    if ends:
        return ActionPhase.ENDED
    if row.stopped is not None:
        return ActionPhase.STOPPING
    return ActionPhase.RUNNING if row.phase is ActionPhase.ENDED else row.phase


def _prefix(row: ActionState, *, ends: bool) -> str:
    held = f"{row.held}; " if row.held is not None and not ends else ""
    return held + _prefix_of_phase(row)


def _prefix_of_phase(row: ActionState) -> str:
    if row.stopped is not None:
        return f"{row.stopped}; "
    if row.phase is ActionPhase.PAUSED:
        return "paused; "
    if row.phase is ActionPhase.WAITING_APPROVAL:
        return f"wave {row.wave + 2} of {row.waves} waits for approval; "
    return f"wave {row.wave + 1} of {row.waves}; " if row.waves > 1 and row.phase is ActionPhase.RUNNING else ""


def sentence(total: int, open_: int, counts: Mapping[str, int]) -> str:
    """What has become of the targets, by state, for users."""
    parts = [f"{counts[state]} {said}" for state, said in _SAID.items() if state in counts]
    if open_ or not total:
        done = total - open_
        return f"{done} of {total} devices are done" + (f": {', '.join(parts)}" if parts else "")
    return f"of {total} devices " + ", ".join(parts)
