"""How one target moves: by a report of its device, by the receipt of its command, by a cancel, by time. No tables here.

Order comes from (attempt, place of the report in its partition) and never from a clock. A device's (boot, seq) only
removes repeats. Within an attempt the first terminal state stands, but a late SUCCEEDED replaces TIMED_OUT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .model import SECOND_US, Action, Limits, Report, Target, TargetState

S = TargetState

PROGRESS = (S.PENDING, S.QUEUED, S.DELIVERED, S.ACCEPTED, S.IN_PROGRESS)
"""The open states in the order in which a target passes them; a later one implies the earlier ones."""

_RANK = {state: rank for rank, state in enumerate(PROGRESS)}

REPORTABLE = frozenset({S.ACCEPTED, S.IN_PROGRESS, S.SUCCEEDED, S.FAILED, S.REJECTED, S.CANCELLED})
"""What a device may report."""


def is_repeat(target: Target, report: Report) -> bool:
    """Whether what this status says is already in the target: same place, or a lower or equal seq of the same boot."""
    same_boot = report.boot is not None and report.boot == target.boot
    if same_boot and report.seq is not None and target.seq is not None and report.seq <= target.seq:
        return True
    same_partition = (report.log_id, report.partition) == (target.report_log_id, target.report_partition)
    return same_partition and target.report_offset is not None and report.offset <= target.report_offset


def with_status(target: Target, report: Report, now_us: int) -> Target:
    """The target after a status of the same attempt. Returns the very same object when it changes nothing."""
    if is_repeat(target, report):
        return target
    state = TargetState(report.state)
    late = target.state is S.TIMED_OUT and state is S.SUCCEEDED
    if target.final and not late:
        return target
    marked = replace(
        target,
        since_us=now_us,
        updated_us=now_us,
        report_log_id=report.log_id,
        report_partition=report.partition,
        report_offset=report.offset,
        boot=report.boot,
        seq=report.seq,
        progress=report.progress if report.progress is not None else target.progress,
        message=report.message if report.message is not None else target.message,
        result=report.result if report.result is not None else target.result,
    )
    if state in _RANK:
        return _advanced(marked, state, report.at_us)
    done = _finished(marked, state, report.at_us, message=marked.message)
    if late:
        said = f": {report.message}" if report.message else ""
        done = replace(done, late=True, message=f"succeeded after it had timed out{said}")
    return done


def with_receipt(target: Target, report: Report, now_us: int) -> Target:
    """The target after the broker's receipt for its command: the record has reached the device."""
    if target.final:
        return target
    moved = _advanced(target, S.DELIVERED, report.at_us)
    if moved.offset is None and report.command_offset is not None:
        moved = replace(moved, partition=report.command_partition, offset=report.command_offset)
    if moved is target:
        return target
    return replace(moved, since_us=now_us, updated_us=now_us)


def with_place(target: Target, kind: str, partition: int, offset: int, now_us: int) -> Target:
    """The target once the log has the record that was owed."""
    if target.outbox != kind:
        return target
    if kind == "cancel":
        return replace(target, outbox=None, updated_us=now_us)
    placed = replace(target, partition=partition, offset=offset, since_us=now_us, updated_us=now_us)
    return _advanced(placed, S.QUEUED, now_us)


def cancelled(target: Target, reason: str, now_us: int) -> Target:
    """The target after a cancel: ended at once if nothing can have been published, else the device is asked."""
    if target.final or target.state is S.CANCELLING:
        return target
    if target.state is S.PENDING and target.outbox is None:
        return _finished(replace(target, updated_us=now_us), S.CANCELLED, now_us, message=reason)
    return replace(target, state=S.CANCELLING, outbox="cancel", since_us=now_us, updated_us=now_us, message=reason)


def timed_out(target: Target, action: Action, limits: Limits, now_us: int) -> Target:
    """The target after a look at the clock: TIMED_OUT when its state has lasted too long or the deadline has passed."""
    if target.final:
        return target
    limit_s, what = _limit(target.state, action, limits)
    if action.deadline_us is not None and now_us >= action.deadline_us:
        message = f"the deadline passed while {target.state}"
    elif now_us - target.since_us >= limit_s * SECOND_US:
        message = f"{what} within {limit_s} s"
    else:
        return target
    return _finished(replace(target, updated_us=now_us), S.TIMED_OUT, now_us, message=message)


def _limit(state: TargetState, action: Action, limits: Limits) -> tuple[int, str]:
    timeouts = action.timeouts
    if state is S.IN_PROGRESS:
        return timeouts.in_progress_s or limits.in_progress_s, "no report of progress"
    if state in (S.DELIVERED, S.ACCEPTED):
        return timeouts.delivered_s or limits.delivered_s, "the device did not begin"
    queued_s = timeouts.queued_s or limits.queued_s
    if state is S.CANCELLING:
        return queued_s, "the device did not answer the cancel"
    return queued_s, "the device did not take the command"


def _advanced(target: Target, state: TargetState, at_us: int) -> Target:
    """At least at `state`, with the times of the states that it implies. Never goes back."""
    times = _implied_times(target, _RANK[state], at_us)
    if target.state is S.CANCELLING:
        return replace(target, **times) if times else target
    if _RANK[state] <= _RANK[target.state] and not times:
        return target
    higher = state if _RANK[state] > _RANK[target.state] else target.state
    # The device has the command, or the log does: nothing is owed any more.
    return replace(target, state=higher, outbox=None, **times)


def _finished(target: Target, state: TargetState, at_us: int, *, message: str | None) -> Target:
    times: dict[str, Any] = {}
    if state in (S.SUCCEEDED, S.FAILED):
        times = _implied_times(target, _RANK[S.IN_PROGRESS], at_us)
    elif state is S.REJECTED:
        times = _implied_times(target, _RANK[S.DELIVERED], at_us)
    return replace(target, state=state, outbox=None, finished_us=at_us, message=message, **times)


def _implied_times(target: Target, rank: int, at_us: int) -> dict[str, Any]:
    columns = ("created_us", "queued_us", "delivered_us", "accepted_us", "started_us")
    return {column: at_us for column in columns[1 : rank + 1] if getattr(target, column) is None}
