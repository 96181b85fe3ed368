"""An update that its device has not received yet gives way to one with a higher priority. Pure.

Its command is withdrawn by a cancel, as after a user's cancel, and the urgent command follows that cancel in the log.
Then the target gets another attempt, which waits for the urgent one. `dispatch` decides
when (docs/actions.md §5). A cancel of a user, or of a superseding action, ends the target for good.
"""

from __future__ import annotations

from .action import Action
from .lifecycle import cancelled, left_behind, next_attempt
from .model import SECOND_US, Target, TargetState
from .moves import destination
from .replacing import replace
from .timeouts import times_out_us
from .work import Work

S = TargetState


def can_give_way(target: Target) -> bool:
    """Whether its command is owed or in a log, and nothing says that the device has it."""
    return target.state in (S.PENDING, S.QUEUED) and not target.unsent and target.delivered_us is None


def gives_way_to(target: Target, action_id: str, now_us: int) -> Target:
    after = cancelled(target, f"gives way to {action_id}, which has a higher priority", now_us)
    return replace(after, gives_way=action_id)


def awaited(action_id: str, work: Work) -> int:
    """How many targets give way to this action whose devices do not have its command yet."""
    found = [target for key in work.state.giving_way if (target := work.target(*key)) is not None]
    devices = [target.device_id for target in found if target.gives_way == action_id and not target.final]
    return sum(1 for id_ in devices if (urgent := work.target(action_id, id_)) is not None and urgent.unsent)


def give_back(work: Work) -> None:
    """Gives each target that gave way its next attempt, once the withdrawn one is over: the device has answered, or
    will not answer in time, or the urgent update has ended before the device took either."""
    for key in sorted(work.state.giving_way):
        target, action, row = work.target(*key), work.actions.get(key[0]), work.row(key[0])
        if target is None or target.gives_way is None or action is None or row is None:
            continue
        is_wanted = row.stopped is None and key not in work.called_off
        if target.final and not (is_wanted and target.state in (S.CANCELLED, S.REJECTED)):
            work.put(target, replace(target, gives_way=None))
        elif is_wanted and not target.leaving and (target.final or _is_over(target, action, work)):
            _again(work, target)


def _is_over(target: Target, action: Action, work: Work) -> bool:
    if target.outbox is not None:
        # Without a broker for its log, the cancel is a withdrawal after the same time as any other cancel.
        is_served = work.logs.serving(destination(target, work)) is not None
        queued_s = action.timeouts.queued_s or work.limits.queued_s
        return not is_served and work.heard_us - target.since_us >= queued_s * SECOND_US
    urgent = work.target(target.gives_way or "", target.device_id)
    if target.delivered_us is None and (urgent is None or urgent.final):
        return True
    return work.heard_us >= times_out_us(target, action, work.limits)


def _again(work: Work, target: Target) -> None:
    first = work.logs.first
    reason = f"attempt {target.attempt} gave way to {target.gives_way}"
    # Neither a timeout nor a refusal of what was withdrawn is an error of this action.
    copies = left_behind(target, None, first, taken=True) if target.outbox is not None else target.copies
    given_up = replace(target, state=S.CANCELLED, copies=copies, given_up=target.given_up + 1)
    work.put(target, next_attempt(given_up, pause_s=0, reason=reason, now_us=work.now_us, first=first))
