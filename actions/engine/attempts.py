"""Whether a target gets another attempt: after an error, or because it was forced too late. Without tables."""

from __future__ import annotations

from .action import Action, shortened
from .lifecycle import finished, is_repeat, left_behind, next_attempt
from .model import SECOND_US, Report, Target, TargetState
from .replacing import replace

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


def installs_after_all(target: Target, report: Report, version: str | None, now_us: int) -> Target | None:
    """The next attempt of a target that was forced while its device finished the download, or None. The device did what
    it was told, so this is no error, and a `force` no longer reaches a command that has ended."""
    if version is None or report.version in (None, version) or report.state != S.SUCCEEDED:
        return None
    only_downloaded = target.forced and target.mode == "download_only" and not target.final
    if not only_downloaded or is_repeat(target, report):
        return None
    if target.state is S.CANCELLING:
        end, message = S.REMOVED if target.leaving else S.CANCELLED, f"{target.message}: it had only downloaded"
        copies = left_behind(target, target.cancel_log_id, None)
        return finished(target, end, report.at_us, message=shortened(message), updated_us=now_us, copies=copies)
    reason = f"attempt {target.attempt} had only downloaded when it was forced"
    done = replace(finished(target, S.SUCCEEDED, report.at_us), given_up=target.given_up + 1)
    return next_attempt(done, pause_s=0, reason=reason, now_us=now_us)
