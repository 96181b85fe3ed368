"""The row of `action_state` that follows from an action's targets: counts, phase, and one sentence for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from .model import Action, ActionPhase, ActionState, Target, TargetState
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


def said_of_nobody(action: Action, unknown: int) -> str:
    """Why an action ended before it began."""
    if unknown and unknown == len(set(action.selector.device_ids or ())):
        return f"selects nobody: none of the {unknown} listed ids is in the table devices; nothing was sent"
    return f"selects nobody: no device of tenant {action.tenant} matches {describe(action)}; nothing was sent"


def summarized(row: ActionState, targets: Collection[Target], now_us: int) -> ActionState:
    """`row` brought up to date with the targets. Keeps `updated_us` when nothing changed."""
    if row.phase is ActionPhase.REFUSED:
        return row
    counts = dict(sorted(Counter(target.state.value for target in targets).items()))
    open_ = sum(1 for target in targets if not target.final)
    nobody = all(target.state is TargetState.SKIPPED for target in targets)
    phase = ActionPhase.RUNNING if open_ else ActionPhase.ENDED
    after = replace(
        row,
        phase=phase,
        targets=len(targets),
        open=open_,
        counts=counts,
        message=row.message if nobody else _sentence(len(targets), open_, counts),
        ended_us=None if open_ else (row.ended_us if row.ended_us is not None else now_us),
    )
    return row if after == row else replace(after, updated_us=now_us)


def _sentence(total: int, open_: int, counts: dict[str, int]) -> str:
    parts = [f"{counts[state]} {said}" for state, said in _SAID.items() if state in counts]
    if open_:
        done = total - open_
        return f"{done} of {total} devices are done" + (f": {', '.join(parts)}" if parts else "")
    return f"of {total} devices " + ", ".join(parts)
