"""What a step of the engine's clock does to the times that are measured by it. Pure.

Timeouts, soaks, retries and rates measure how long something has lasted. If the clock is set, the stored moments move
with it, so that nothing seems to have lasted a day because somebody set the clock. Moments that a user wrote (a
deadline, a window) are points in time and stay.
"""

from __future__ import annotations

from .model import SECOND_US, ActionState, Decision, EngineState, Target
from .replacing import replace

STEP_US = 30 * SECOND_US
"""A difference above this is a clock that was set; below it is one that is corrected slowly."""


def moved_clock(state: EngineState, by_us: int, now_us: int) -> Decision:
    """The rows of all that is open, for a clock that was set by `by_us` and now shows `now_us`. Apply it once."""
    return Decision(
        target_updates=tuple(
            replace(_moved(target, by_us), updated_us=now_us)
            for action_id, targets in sorted(state.targets.items())
            if not _is_over(state, action_id)
            for _, target in sorted(targets.items())
            if not target.final
        ),
        state_updates=tuple(
            replace(_moved_row(row, by_us), updated_us=now_us)
            for _, row in sorted(state.actions.items())
            if not row.phase.over
        ),
        waiting=tuple(replace(report, recorded_us=report.recorded_us + by_us) for report in state.waiting),
        devices=state.devices,
        logs=state.logs,
        moving=state.moving,
    )


def in_past(target: Target, now_us: int) -> Target:
    """The target of a stored row. If it was written by a clock that was ahead, its times move back to now: otherwise
    its timeouts would wait until the clock has been there again."""
    ahead_us = target.since_us - now_us
    return target if target.final or ahead_us <= STEP_US else _moved(target, -ahead_us)


def row_in_past(row: ActionState, now_us: int) -> ActionState:
    """The same for a row of `action_state`."""
    moments = [at for at in (row.gate_us, row.waits_us) if at is not None] + [int(at) * SECOND_US for at in row.sent]
    ahead_us = max(moments, default=now_us) - now_us
    return row if row.phase.over or ahead_us <= STEP_US else _moved_row(row, -ahead_us)


def _is_over(state: EngineState, action_id: str) -> bool:
    row = state.actions.get(action_id)
    return row is None or row.phase.over


def _moved(target: Target, by_us: int) -> Target:
    names = ("since_us", "sent_us", "begun_us", "retry_us")
    return replace(target, **{name: at + by_us for name in names if (at := getattr(target, name)) is not None})


def _moved_row(row: ActionState, by_us: int) -> ActionState:
    sent = {str(int(at) + by_us // SECOND_US): count for at, count in row.sent.items()}
    since = {name: at + by_us for name in ("gate_us", "waits_us") if (at := getattr(row, name)) is not None}
    return replace(row, sent=sent, **since)
