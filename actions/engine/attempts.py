"""Whether a target that has just ended in error gets another attempt, and when. Without tables."""

from __future__ import annotations

from .action import Action
from .lifecycle import next_attempt
from .model import SECOND_US, Target, TargetState

S = TargetState

_BACKOFF_MAX_S = 24 * 3600


def retried(target: Target, action: Action, now_us: int, first: str | None = None) -> Target:
    """The target that has just FAILED or TIMED_OUT, or its next attempt if there is one left."""
    rollout = action.rollout
    attempt = target.attempt - target.given_up
    if target.state not in (S.FAILED, S.TIMED_OUT) or attempt > rollout.retries:
        return target
    pause_s = min(_BACKOFF_MAX_S, rollout.retry_backoff_s * 2 ** min(attempt - 1, 20))
    if action.deadline_us is not None and now_us + pause_s * SECOND_US >= action.deadline_us:
        return target
    said = f": {target.message}" if target.message else ""
    reason = f"attempt {attempt} of {rollout.retries + 1} ended {target.state}{said}; the next in {pause_s} s"
    return next_attempt(target, pause_s=pause_s, reason=reason, now_us=now_us, first=first)
