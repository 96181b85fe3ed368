"""State changes of one target: by a report, a receipt, a cancel, or a further attempt. Without tables. `timeouts` has
those by the clock.

The order follows from (attempt, offset of the report in its partition), never from a clock. A device's (boot, seq) only
removes repeats. Within an attempt the first terminal state stands, except that a late SUCCEEDED replaces TIMED_OUT.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from .action import Action, shortened
from .model import ERRORS, LATE_US, SECOND_US, DeviceState, Place, Publish, Report, Target, TargetState
from .replacing import replace, replace_by
from .routes import without_route

S = TargetState

PROGRESS = (S.PENDING, S.QUEUED, S.DELIVERED, S.ACCEPTED, S.IN_PROGRESS)
"""The open states in the order in which a target passes them; a later state implies the earlier ones."""

_STATES: Mapping[str, TargetState] = {state.value: state for state in S}

_RANK = {state: rank for rank, state in enumerate(PROGRESS)}

REPORTABLE = frozenset({S.ACCEPTED, S.IN_PROGRESS, S.SUCCEEDED, S.FAILED, S.REJECTED, S.CANCELLED})
"""The states that a device may report."""

COPIES_MAX = 16
"""Copies of a target that are remembered, the newest ones: a device may move any number of times."""


def is_repeat(target: Target, report: Report) -> bool:
    """Whether the target already reflects this status: same log position, or a lower or equal seq of the same boot."""
    same_boot = report.boot is not None and report.boot == target.boot
    if same_boot and report.seq is not None and target.seq is not None and report.seq <= target.seq:
        return True
    same_partition = (report.log_id, report.partition) == (target.report_log_id, target.report_partition)
    return same_partition and target.report_offset is not None and report.offset <= target.report_offset


def proof_of(target: Target, action: Action | None) -> str | None:
    """The version that this device must report to count as SUCCEEDED, or None if its SUCCEEDED is sufficient."""
    installs = target.mode in ("forced", "soft") or target.force_log_id is not None
    return action.target_version if action is not None and installs else None


def with_status(target: Target, report: Report, now_us: int, *, proof: str | None = None) -> Target:
    """The target after a status of the same attempt. Returns the same object if nothing changes."""
    if is_repeat(target, report):
        return target
    state = _STATES[report.state]
    claimed = target.claimed or state is S.SUCCEEDED
    message = report.message
    if proof is not None and claimed and report.version != proof and state in (S.SUCCEEDED, S.IN_PROGRESS, S.ACCEPTED):
        if report.version is not None and state is S.SUCCEEDED:
            state, message = S.FAILED, f"it reported success, but it runs version {report.version}, not {proof}"
        else:
            state, message = S.IN_PROGRESS, f"it reported success; it must still report version {proof}"
    elif proof is not None and target.claimed and report.version == proof:
        state = S.SUCCEEDED
    late = target.state is S.TIMED_OUT and state is S.SUCCEEDED
    if target.final and not late:
        return target
    if late:
        said = f": {message}" if message else ""
        message = f"succeeded after it had timed out{said}"
    elif target.state is S.CANCELLING and state is S.SUCCEEDED and message is None and target.message:
        # The bare reason of the cancel would say that it had an effect.
        message = f"succeeded before it could be stopped ({without_route(target.message)})"
    marks: dict[str, Any] = {
        "since_us": now_us,
        "updated_us": now_us,
        "report_log_id": report.log_id,
        "report_partition": report.partition,
        "report_offset": report.offset,
        "boot": report.boot,
        "seq": report.seq,
        "claimed": claimed and proof is not None,
        "late": late or target.late,
        "progress": report.progress if report.progress is not None else target.progress,
        "message": message if message is not None else without_route(target.message),
        "result": report.result if report.result is not None else target.result,
    }
    if state is S.IN_PROGRESS and target.begun_us is None:
        marks["begun_us"] = now_us
    if state in _RANK:
        return _advanced(target, state, report.at_us, marks)
    if state is S.CANCELLED and target.outbox == "cancel":
        # The device has answered before the broker has: nobody knows which logs have the cancel.
        marks["copies"] = left_behind(target, None, None)
    return finished(target, state, report.at_us, **marks)


def confirmed(target: Target, fact: DeviceState | None, proof: str | None, now_us: int) -> Target:
    """The target after the device, in any status, reported the version that proves its claimed success."""
    if not target.claimed or target.final or proof is None or fact is None or fact.version != proof:
        return target
    said = f"it runs version {proof}"
    return finished(target, S.SUCCEEDED, fact.last_seen_us, message=said, updated_us=now_us)


def settled_by_earlier(
    target: Target, report: Report, action: Action | None, fact: DeviceState | None, now_us: int
) -> Target:
    """The target after a SUCCEEDED of an attempt that had been given up.

    If the next attempt has not been sent, the goal has been reached, so the command is not sent again. Once it has been
    sent, its own answer counts, except for an update whose version the device proves: that settles an open attempt and
    one that ended in error, such as the refusal of a device that was still busy with the earlier attempt.
    """
    is_settled = target.final and target.state not in ERRORS
    if is_settled or TargetState(report.state) is not S.SUCCEEDED:
        return target
    installs = action is not None and action.is_ota and (action.ota.mode != "download_only" or target.forced)
    runs = report.version if report.version is not None or fact is None else fact.version
    if installs and action is not None and runs != action.target_version:
        return target
    if not installs and (not target.unsent or target.state is S.CANCELLING):
        return target
    copies = target.copies if target.unsent else left_behind(target, None, None, taken=True)
    # Its only copy has been carried out. Of several, the log of the report does not say which one was.
    its_own = [copy for copy in copies if copy.startswith(f"{report.attempt}/")]
    if its_own == [f"{report.attempt}/{report.log_id}"]:
        copies = tuple(copy for copy in copies if copy not in its_own)
    said = f": {report.message}" if report.message else ""
    return finished(
        target,
        S.SUCCEEDED,
        report.at_us,
        late=True,
        message=f"attempt {report.attempt} succeeded after it had been given up{said}",
        progress=report.progress,
        result=report.result,
        report_log_id=report.log_id,
        report_partition=report.partition,
        report_offset=report.offset,
        copies=copies,
        retry_us=None,
        since_us=now_us,
        updated_us=now_us,
    )


def runs_it_already(target: Target, action: Action, fact: DeviceState | None, now_us: int) -> Target:
    """The target whose next attempt has not been sent, if the device now reports the target version."""
    again = target.unsent and target.attempt > 1 and (action.ota.mode != "download_only" or target.forced)
    if not again or fact is None or fact.version != action.target_version:
        return target
    message = f"it runs version {fact.version} after an attempt that had been given up"
    times = {"since_us": now_us, "updated_us": now_us}
    return finished(target, S.SUCCEEDED, fact.last_seen_us, late=True, message=message, retry_us=None, **times)


def with_receipt(target: Target, report: Report, now_us: int) -> Target:
    """The target after the broker's receipt for its command: the record has reached the device. The receipt may name
    the copy that the device got before it moved, also after a status has said more."""
    moved = target if target.final else _advanced(target, S.DELIVERED, report.at_us)
    since_us = target.since_us if moved is target else now_us
    other = target.log_id is not None and report.log_id != target.log_id
    first = target.receipt_log_id is None
    if report.command_offset is not None and first and (other or (moved is not target and moved.offset is None)):
        # The receipt is in the log of the command. A device also acknowledges a second copy, which it drops.
        place: dict[str, Any] = {
            "partition": report.command_partition,
            "offset": report.command_offset,
            "log_id": report.log_id,
        }
        moved = replace(moved, **place, copies=_swapped(target, report.log_id))
    elif first and f"{target.attempt}/{report.log_id}" in target.copies:
        moved = replace(moved, copies=_swapped(target, report.log_id))
    if first and not (target.final and moved is target):
        moved = replace(moved, receipt_log_id=report.log_id)
    return target if moved is target else replace(moved, since_us=since_us, updated_us=now_us)


def _swapped(target: Target, log_id: str) -> tuple[str, ...]:
    """The copies of the target whose device took the one in this log: the other one stays behind. If nobody wants the
    command any more, the one that the device took still needs its cancel."""
    is_unwanted = target.state in (S.CANCELLING, S.CANCELLED, S.REMOVED)
    without = None if is_unwanted else log_id
    if target.log_id in (None, log_id) or (is_unwanted and target.log_id == target.cancel_log_id):
        return tuple(copy for copy in target.copies if copy != f"{target.attempt}/{without}")
    return with_copy(target, target.log_id, without=without)


def with_copy(target: Target, log_id: str, *, without: str | None) -> tuple[str, ...]:
    """The copies of the target when the command of this attempt stays behind in `log_id`, and not in the log
    `without`."""
    copy, other = f"{target.attempt}/{log_id}", f"{target.attempt}/{without}"
    return (*(kept for kept in target.copies if kept not in (copy, other)), copy)[-COPIES_MAX:]


def owing(
    target: Target, action: Action, *, forced: bool, now_us: int, log_id: str | None = None, message: str | None = None
) -> Target:
    """The target when its command becomes owed to the device. Everything that the command's bytes depend on is fixed
    here."""
    forced = forced or target.forced
    mode = None
    if action.is_ota:
        mode = "forced" if forced else action.ota.mode
    return replace(
        target,
        outbox="command",
        log_id=log_id,
        message=message,
        mode=mode,
        forced=forced,
        sent_us=now_us,
        since_us=now_us,
        updated_us=now_us,
        retry_us=None,
    )


def with_place(target: Target, publish: Publish, place: Place, now_us: int, first: str | None = None) -> Target:
    """The target when the log has the owed record. `first` is the log of the first broker."""
    if publish.kind == "withdraw":
        return _without_copy(target, publish)
    if not _is_owed(target, publish):
        return target
    if publish.kind == "cancel":
        copies = left_behind(target, place.log_id, first)
        marks: dict[str, Any] = {"cancel_log_id": place.log_id, "copies": copies, "updated_us": now_us}
        if target.leaving:
            return finished(target, S.REMOVED, now_us, message=target.message, **marks)
        return replace(target, outbox=None, since_us=now_us, **marks)
    if publish.kind == "force":
        # `mode` stays: the bytes of the command depend on it, and it may be sent again to another log.
        return replace(target, outbox=None, force_log_id=place.log_id or "", updated_us=now_us)
    sent_us = target.sent_us
    if sent_us is None or now_us - sent_us >= LATE_US:
        sent_us = now_us
    placed: dict[str, Any] = {
        "partition": place.partition,
        "offset": place.offset,
        "log_id": place.log_id or target.log_id,
    }
    placed |= {"sent_us": sent_us, "since_us": now_us, "updated_us": now_us}
    return replace(_advanced(target, S.QUEUED, now_us, placed), outbox=_still_owed(target))


def left_behind(
    target: Target, cancel_log_id: str | None, first: str | None, *, taken: bool = False
) -> tuple[str, ...]:
    """The copies of a target whose cancel is in this log: the command may wait for its device in another one, where it
    has no cancel behind it. `taken`: also if the device has taken it."""
    there = target.log_id or first
    settled = target.delivered_us is not None and not taken and _says_where(target)
    if settled or there is None or there in (cancel_log_id, target.cancel_log_id):
        return tuple(copy for copy in target.copies if copy != f"{target.attempt}/{cancel_log_id}")
    return with_copy(target, there, without=cancel_log_id)


def _says_where(target: Target) -> bool:
    """Whether `log_id` is where the device took the command, if it has it. While several logs have the command, only a
    receipt says that."""
    if not target.copies or target.receipt_log_id is not None:
        return True
    return not any(copy.startswith(f"{target.attempt}/") for copy in target.copies)


def _is_owed(target: Target, publish: Publish) -> bool:
    """Whether this is the record that the target waits for: the answer of a slow broker may come after other news."""
    there = publish.kind != "command" or publish.log_id == target.log_id
    return target.outbox == publish.kind and target.attempt == publish.attempt and there


def _without_copy(target: Target, publish: Publish) -> Target:
    kept = tuple(copy for copy in target.copies if copy != f"{publish.attempt}/{publish.log_id}")
    if kept == target.copies:
        return target
    is_its_own = target.state is S.TIMED_OUT and (publish.attempt, publish.log_id) == (target.attempt, target.log_id)
    # A retry of this target need not withdraw the command a second time.
    return replace(target, copies=kept, cancel_log_id=publish.log_id if is_its_own else target.cancel_log_id)


def unplaceable(target: Target, publish: Publish, reason: str, now_us: int) -> Target:
    """The target whose record the broker refuses permanently, because its id or params do not fit a topic or record."""
    kind = publish.kind
    if kind == "withdraw":
        return _without_copy(target, publish)
    if not _is_owed(target, publish):
        return target
    if kind == "command":
        return skipped(target, f"the broker refused its command: {reason}", now_us)
    # Timeouts decide about a record that was sent.
    message = f"the broker refused its {kind}: {reason}"
    return replace(target, outbox=None, since_us=now_us, updated_us=now_us, message=message)


def cancelled(target: Target, reason: str, now_us: int) -> Target:
    """The target after a cancel: ended at once if nothing can have been published, otherwise the device is asked to
    stop."""
    if target.state is S.CANCELLING and target.gives_way is not None:
        return replace(target, gives_way=None, updated_us=now_us, message=reason)  # Now for good.
    if target.final or target.state is S.CANCELLING:
        return target
    if target.unsent:
        return finished(target, S.CANCELLED, now_us, message=reason, updated_us=now_us)
    return replace(target, state=S.CANCELLING, outbox="cancel", since_us=now_us, updated_us=now_us, message=reason)


def removed(target: Target, reason: str, now_us: int) -> Target:
    """The target of a device that has left: removed at once if nothing can have been published, otherwise after its
    cancel."""
    if target.final or target.leaving:
        return target
    if target.unsent or (target.state is S.CANCELLING and target.outbox is None):
        return finished(target, S.REMOVED, now_us, message=reason, updated_us=now_us)
    return replace(cancelled(target, reason, now_us), leaving=True, message=reason, updated_us=now_us)


def skipped(target: Target, reason: str, now_us: int) -> Target:
    # The reason may quote user input, and is stored with each target.
    return finished(target, S.SKIPPED, now_us, message=shortened(reason), updated_us=now_us)


def forced(target: Target, reason: str, now_us: int) -> Target:
    """The target that a user forces: see docs/actions.md §4."""
    if target.final:
        return target
    if target.state is S.CANCELLING:
        if target.outbox == "cancel":
            return target  # Until the cancel is in the log, the device would still execute the command.
        message = f"{target.message}; ended without its answer, forced by {reason}"
        return finished(target, S.CANCELLED, now_us, message=message, updated_us=now_us)
    if target.forced:
        return target
    after = replace(target, forced=True, updated_us=now_us)
    return replace(after, outbox="force") if after.outbox is None and _is_milder(after) else after


def next_attempt(target: Target, *, pause_s: int, reason: str, now_us: int, first: str | None = None) -> Target:
    """The target before another attempt. The results of the previous one are in `action_events`. If the device has not
    answered it, its command counts as a copy, so that it is withdrawn. `first` is the log of the first broker."""
    # Any other state is an answer, or nothing was sent, or the cancel is in the log.
    copies = left_behind(target, None, first, taken=True) if target.state is S.TIMED_OUT else target.copies
    return Target(
        action_id=target.action_id,
        tenant=target.tenant,
        device_id=target.device_id,
        state=S.PENDING,
        created_us=target.created_us,
        since_us=now_us,
        updated_us=now_us,
        attempt=target.attempt + 1,
        wave=target.wave,
        forced=target.forced,
        given_up=target.given_up,
        erred=target.erred or target.state in ERRORS,
        copies=copies,
        retry_us=now_us + pause_s * SECOND_US,
        message=reason,
    )


def _is_milder(target: Target) -> bool:
    """Whether no log tells the device that it is forced."""
    return target.mode in ("soft", "download_only") and target.force_log_id is None


def _advanced(
    target: Target, state: TargetState, at_us: int, marks: Mapping[str, Any] = MappingProxyType({})
) -> Target:
    """The target at `state` or a later one, with the times of implied states, and `marks` set. Never goes back."""
    changes = _implied_times(target, _RANK[state], at_us)
    before = target.state
    if before is not S.CANCELLING and (changes or _RANK[state] > _RANK[before]):
        changes["state"] = state if _RANK[state] > _RANK[before] else before
        # The device has the command, or the log does, so it is no longer owed. A force record may still be owed.
        changes["outbox"] = _still_owed(target)
    changes.update(marks)
    return replace_by(target, changes) if changes else target


def _still_owed(target: Target) -> Literal["force"] | None:
    return "force" if target.forced and _is_milder(target) else None


def finished(target: Target, state: TargetState, at_us: int, **marks: Any) -> Target:
    """The target in this final state, with the times of the states that it implies."""
    times: dict[str, Any] = {}
    if state in (S.SUCCEEDED, S.FAILED):
        times = _implied_times(target, _RANK[S.IN_PROGRESS], at_us)
    elif state is S.REJECTED:
        times = _implied_times(target, _RANK[S.DELIVERED], at_us)
    if state in REPORTABLE and "copies" not in marks and not _says_where(target):
        marks["copies"] = left_behind(target, target.cancel_log_id, None)
    return replace(target, state=state, outbox=None, finished_us=at_us, **times, **marks)


def _implied_times(target: Target, rank: int, at_us: int) -> dict[str, Any]:
    times: dict[str, Any] = {}
    if target.queued_us is None and rank >= _RANK[S.QUEUED]:
        times["queued_us"] = at_us
    if target.delivered_us is None and rank >= _RANK[S.DELIVERED]:
        times["delivered_us"] = at_us
    if target.accepted_us is None and rank >= _RANK[S.ACCEPTED]:
        times["accepted_us"] = at_us
    if target.started_us is None and rank >= _RANK[S.IN_PROGRESS]:
        times["started_us"] = at_us
    return times
