"""Requests of users during an action: pause, resume, cancel, force, retry, approve, remove. Each is answered once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from .action import Action, Request, shortened
from .admission import can_be_a_level, kept_away, remove_held
from .clock import STEP_US
from .lifecycle import cancelled, forced, next_attempt
from .model import ERRORS, SECOND_US, ActionPhase, ActionState, Target, TargetState
from .selection import select
from .work import Work

_RETRIED_BY_NAME = ERRORS | {TargetState.CANCELLED, TargetState.SKIPPED, TargetState.REMOVED}
"""States that a retry of a named device accepts; a retry of all devices only accepts errors."""


class _Refused(Exception):
    """Why a request is refused."""


def answer_requests(work: Work, requests: Collection[Request]) -> None:
    """Executes requests in order; a request that cannot be executed is answered with the reason."""
    for request in sorted(requests, key=lambda row: (row.at_us, row.request_id)):
        row = work.row(request.action_id)
        if row is None or row.tenant != request.tenant:
            if work.now_us - request.at_us >= work.limits.wait_unmatched_s * SECOND_US:
                work.answer(request, "REFUSED", f"refused: there is no action {request.action_id}")
            continue
        if request.request_id in row.requests_done:
            continue
        try:
            work.answer(request, "DONE", f"{request.kind}: {_carry_out(work, request, row)}")
        except _Refused as error:
            work.answer(request, "REFUSED", f"refused: {error}")
        row = work.row(request.action_id) or row
        work.put_row(replace(row, requests_done=(*row.requests_done, request.request_id)))


def _carry_out(work: Work, request: Request, row: ActionState) -> str:
    steps: Mapping[str, Callable[[Work, Request, ActionState, Action], str]] = {
        "cancel": _cancel,
        "pause": _pause,
        "resume": _resume,
        "force": _force,
        "retry": _retry,
        "approve": _approve,
        "remove": _remove,
    }
    if request.kind not in steps:
        raise _Refused(f"unknown kind {request.kind!r}; the kinds are {', '.join(steps)}")
    action = work.actions.get(request.action_id)
    if action is None:
        raise _Refused(f"the row of action {request.action_id} no longer exists in the table actions")
    if row.phase is ActionPhase.REFUSED:
        raise _Refused("the action itself was refused, nothing was sent")
    return steps[request.kind](work, request, row, action)


def _chosen(work: Work, request: Request) -> list[Target]:
    if request.device_id is None:
        return list(work.targets(request.action_id))
    target = work.target(request.action_id, request.device_id)
    if target is None:
        raise _Refused(f"device {request.device_id} is not a target of this action")
    return [target]


def _cancel(work: Work, request: Request, row: ActionState, action: Action) -> str:
    reason = f"cancelled by {request.who}"
    counts = {"ended at once": 0, "asked to stop": 0, "already ended": 0}
    for target in _chosen(work, request):
        after = kept_away(cancelled(target, reason, work.now_us), work.now_us)
        if target.final:
            counts["already ended"] += 1
        else:
            counts["ended at once" if after.final else "asked to stop"] += 1
        work.called_off.add(target.key)
        work.put(target, after)
    if request.device_id is None and not row.phase.over:
        work.stop(row, reason)
    return ", ".join(f"{n} {what}" for what, n in counts.items())


def _pause(work: Work, request: Request, row: ActionState, action: Action) -> str:
    _of_all(request)
    if row.phase not in (ActionPhase.RUNNING, ActionPhase.WAITING_APPROVAL):
        raise _Refused(f"the action is {row.phase}")
    work.put_row(replace(row, phase=ActionPhase.PAUSED))
    return "nothing more is sent until it is resumed"


def _resume(work: Work, request: Request, row: ActionState, action: Action) -> str:
    _of_all(request)
    if row.phase is not ActionPhase.PAUSED:
        raise _Refused(f"the action is {row.phase}, not {ActionPhase.PAUSED}")
    work.put_row(replace(row, phase=ActionPhase.RUNNING))
    return "the action continues"


def _force(work: Work, request: Request, row: ActionState, action: Action) -> str:
    if row.phase.over:
        raise _Refused(f"the action has ended: {row.message}")
    moved = 0
    for target in _chosen(work, request):
        moved += work.put(target, forced(target, request.who, work.now_us))
    if request.device_id is None:
        work.put_row(replace(row, forced=True))
    return f"{moved} devices"


def _retry(work: Work, request: Request, row: ActionState, action: Action) -> str:
    if row.stopped is not None:
        raise _Refused(f"the action was stopped ({row.stopped}): insert a new one")
    if action.deadline_us is not None and work.now_us >= action.deadline_us:
        raise _Refused("the deadline of the action has passed")
    wanted = ERRORS if request.device_id is None else _RETRIED_BY_NAME
    chosen = [target for target in _chosen(work, request) if target.state in wanted]
    if not chosen:
        raise _Refused("no device ended in error" if request.device_id is None else "this device did not end in error")
    reachable = [target for target in chosen if _unreachable(work, target, action) is None]
    if not reachable:
        raise _Refused(f"{_unreachable(work, chosen[0], action)}: no command can reach it")
    for target in reachable:
        reason = f"attempt {target.attempt} ended {target.state}; retried by {request.who}"
        work.put(target, next_attempt(target, pause_s=0, reason=reason, now_us=work.now_us, first=work.logs.first))
    left = len(chosen) - len(reachable)
    said = f"; left as they ended, because no command can reach them: {left}" if left else ""
    return f"{len(reachable)} devices get a new attempt{said}"


def _unreachable(work: Work, target: Target, action: Action) -> str | None:
    """Why a new attempt of this target could never be sent. Without this check it would stay PENDING for ever, and a
    broker would refuse the batch that contains its record."""
    if not can_be_a_level(target.device_id):
        return f"the id of device {target.device_id} cannot be a level of the topic devices/<id>/actions"
    device = work.devices.get(target.device_id)
    if device is None or device.tenant != target.tenant:
        return f"device {target.device_id} is not in the table devices"
    if action.rollout.dynamic and not select(action, {target.device_id: device}).selected:
        return f"device {target.device_id} is not among those that the action selects"
    return None


def is_creator(by: str, created_by: str) -> bool:
    """Whether these are the same person, ignoring case and surrounding spaces."""
    return by.strip().casefold() == created_by.strip().casefold()


def _approve(work: Work, request: Request, row: ActionState, action: Action) -> str:
    _of_all(request)
    if row.phase is not ActionPhase.WAITING_APPROVAL:
        raise _Refused(f"the action is {row.phase}: nothing waits for approval")
    if request.wave not in (None, row.wave + 2):
        raise _Refused(f"wave {request.wave} does not wait for approval; wave {row.wave + 2} does")
    if request.wave is None and not _is_of_gate(request, row, work.now_us):
        again = f"approve again with wave {row.wave + 2}"
        raise _Refused(f"it names no wave, and `at` is not a time at which wave {row.wave + 2} waited: {again}")
    if not request.by.strip():
        raise _Refused("an approval must name its author in the column `by`")
    if work.limits.needs_confirmed_names:
        _require_confirmed(request, action)
    if is_creator(request.by, action.created_by):
        raise _Refused(f"{request.by} created the action: another person must approve it")
    work.put_row(replace(row, approved=row.wave + 1))
    return f"wave {row.wave + 2} of {row.waves} may begin, approved by {request.who}"


def _is_of_gate(request: Request, row: ActionState, now_us: int) -> bool:
    """Whether an approval without a wave was inserted while this gate waited, and not for one before it. `at` is by the
    clock of the user: a time to come says nothing."""
    # A row of an older version does not say when the gate began to wait, but it was not after its last change.
    since_us = row.updated_us if row.waits_us is None else row.waits_us
    return since_us <= request.at_us <= now_us + STEP_US


def _remove(work: Work, request: Request, row: ActionState, action: Action) -> str:
    _of_all(request)
    held = work.held.get(action.action_id)
    if held is None:
        raise _Refused("the removal of no device is held")
    return f"{remove_held(work, action, held)} devices are removed"


def _require_confirmed(request: Request, action: Action) -> None:
    names = [("author of this approval", request.by, request.confirmed_by)]
    names.append(("creator of the action", action.created_by, action.confirmed_by))
    for what, name, confirmed_by in names:
        if not confirmed_by:
            raise _Refused(
                f"no broker has verified the name {shortened(name)!r} of the {what}, and the settings ask for it "
                "(actions.confirmed_names): sign in with --user and --admin"
            )


def _of_all(request: Request) -> None:
    if request.device_id is not None:
        raise _Refused(f"{request.kind} applies to the whole action: leave device_id null")
