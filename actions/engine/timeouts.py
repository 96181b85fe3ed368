"""What the clock does to a target: timeouts of each state, and the deadline of the action. Without tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .action import Action, shortened
from .index import Index
from .lifecycle import finished, left_behind
from .model import SECOND_US, Limits, Target, TargetState

S = TargetState


def timed_out(
    target: Target, action: Action, limits: Limits, now_us: int, first: str | None = None, *, is_served: bool = True
) -> Target:
    """The target after a check of the clock: TIMED_OUT if its state has lasted too long or the deadline has passed.
    `is_served`: whether a broker serves the log to which its cancel is owed. `first` is the log of the first broker."""
    if target.final:
        return target
    if action.deadline_us is not None and now_us >= action.deadline_us:
        return _ended(target, f"the deadline passed while {target.state}", now_us, first)
    if target.gives_way is not None and target.state is S.CANCELLING:
        return target  # It gets another attempt instead, see `giving_way`.
    limits_ = _limits(target, action, limits)
    if target.outbox == "cancel" and not is_served:
        limits_ = [(target.since_us, _queued_s(action, limits), f"{target.message or S.CANCELLING}: no broker did")]
    for since_us, limit_s, what in limits_:
        if now_us - since_us >= limit_s * SECOND_US:
            return _ended(target, f"{what} within {limit_s} s", now_us, first)
    return target


def _ended(target: Target, message: str, now_us: int, first: str | None) -> Target:
    """The target whose time is up. A command that was sent, or is owed, counts as a copy, so that it is withdrawn: the
    log keeps it for weeks, and a device that comes back would carry it out. So does one whose cancel is still owed."""
    marks: dict[str, Any] = {"message": shortened(message), "updated_us": now_us}
    if not target.unsent:
        marks["copies"] = left_behind(target, None, first, taken=True)
    return finished(target, S.REMOVED if target.leaving else S.TIMED_OUT, now_us, **marks)


def due_ids(index: Index, action: Action, limits: Limits, now_us: int) -> set[str]:
    """The ids of all targets that `timed_out` may end now because of their timeouts, and a few others; ignores the
    deadline."""
    found: set[str] = set()
    for state in index.since.states():
        found.update(index.since.until(state, now_us - _shortest_s(state, action, limits) * SECOND_US))
    found.update(index.begun.until(S.IN_PROGRESS, _begun_before_us(action, limits, now_us)))
    return found


def due_among(targets: Iterable[Target], action: Action, limits: Limits, now_us: int) -> Iterator[str]:
    """The same for targets that are in no index yet."""
    since_us, begun_us = now_us - _soonest_s(action, limits) * SECOND_US, _begun_before_us(action, limits, now_us)
    for target in targets:
        is_near = target.since_us <= since_us or (target.begun_us is not None and target.begun_us <= begun_us)
        if is_near and not target.final:
            yield target.device_id


def _begun_before_us(action: Action, limits: Limits, now_us: int) -> int:
    """Those that began at this time or before may have been in progress for too long."""
    return now_us - (action.timeouts.in_progress_s or limits.in_progress_s) * SECOND_US


def first_due_us(index: Index, action: Action, limits: Limits) -> int | None:
    """When the first of all targets in flight times out if no report arrives; ignores the deadline."""
    ids = [*index.begun.first(S.IN_PROGRESS)]
    for state in index.since.states():
        ids += index.since.first(state)
    return min((times_out_us(index.of[id_], action, limits) for id_ in ids), default=None)


def _soonest_s(action: Action, limits: Limits) -> int:
    """The shortest time after its last news in which a target that has not begun can time out."""
    timeouts = action.timeouts
    delivered_s = timeouts.delivered_s or limits.delivered_s
    return min(_queued_s(action, limits), delivered_s, timeouts.step_s or limits.step_s)


def _shortest_s(state: TargetState, action: Action, limits: Limits) -> int:
    """The shortest time after its last news in which a target in this state can time out."""
    timeouts = action.timeouts
    if state is S.IN_PROGRESS:
        return min(timeouts.step_s or limits.step_s, timeouts.in_progress_s or limits.in_progress_s)
    if state in (S.DELIVERED, S.ACCEPTED):
        return timeouts.delivered_s or limits.delivered_s
    return _queued_s(action, limits)


def times_out_us(target: Target, action: Action, limits: Limits) -> int:
    """When `timed_out` ends a sent target if no report arrives; ignores the deadline."""
    moments = [since_us + limit_s * SECOND_US for since_us, limit_s, _ in _limits(target, action, limits)]
    return min(moments, default=target.since_us)


def _limits(target: Target, action: Action, limits: Limits) -> list[tuple[int, int, str]]:
    """(start, limit in seconds, what has not happened). Unsent commands have no timeout: they do not wait for the
    device."""
    timeouts, state = action.timeouts, target.state
    if target.unsent:
        return []
    if state is S.IN_PROGRESS:
        begun_us = target.begun_us if target.begun_us is not None else target.since_us
        step = (target.since_us, timeouts.step_s or limits.step_s, "no report of progress")
        return [step, (begun_us, timeouts.in_progress_s or limits.in_progress_s, "not finished")]
    if state in (S.DELIVERED, S.ACCEPTED):
        return [(target.since_us, timeouts.delivered_s or limits.delivered_s, "the device did not begin")]
    queued_s = _queued_s(action, limits)
    if state is not S.CANCELLING:
        return [(target.since_us, queued_s, "the device did not take the command")]
    # A cancel that is not in the log yet cannot have been answered; without it the device would execute the command.
    return [] if target.outbox == "cancel" else [(target.since_us, queued_s, "the device did not answer the cancel")]


def _queued_s(action: Action, limits: Limits) -> int:
    return action.timeouts.queued_s or limits.queued_s
