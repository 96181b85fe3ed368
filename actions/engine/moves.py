"""What happens to the records of a device that is reached through another log than before. Pure.

A device that moves while its command is queued gets the command through its new log, under the same idempotency key.
The old log keeps a copy. As long as the command is wanted, the device may carry out either one and drops the other.
Once it is not wanted any more, the old copy is withdrawn by a cancel (docs/actions.md §6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

from .lifecycle import with_copy
from .logs import Logs
from .model import SECOND_US, Target, TargetState
from .routes import Route, is_wait, moved
from .work import Work

_UNDELIVERED = (TargetState.PENDING, TargetState.QUEUED)
_HAS_COMMAND = frozenset((TargetState.DELIVERED, TargetState.ACCEPTED, TargetState.IN_PROGRESS))


def destination(target: Target, work: Work) -> str | None:
    """The log that the owed record of this target goes to. What follows a command goes where the device is now, but a
    force never before its command: the device ignores it, and a log takes a record only once."""
    if target.outbox == "command" or (target.outbox == "force" and target.state in _UNDELIVERED):
        return target.log_id
    found = work.route(target.device_id)
    return target.log_id if found.waits is not None else found.log_id


def follow_routes(work: Work) -> None:
    """Sends cancels after devices that have moved, notes the queued commands that must follow (`dispatch` makes them
    owed as far as there is room), and gives up withdrawals that are too old."""
    before = work.state
    changed = work.changed_devices()
    # With several logs, a record that was placed meanwhile may have gone where its device no longer is.
    everyone = changed is None or before.logs != work.logs or (changed and not work.logs.alone)
    # With one log, no report changes where a device is.
    came = None if everyone or changed is None else {*changed, *(() if work.logs.alone else work.facts)}
    for action, _ in list(work.open_actions()):
        if came is None:
            found = [one for one in work.targets(action.action_id) if not _stays(one)]
        else:
            near = (work.target(action.action_id, id_) for id_ in came)
            found = [one for one in near if one is not None and not _stays(one)]
            found.sort(key=_device_id)
        found += [one for id_ in before.moving.get(action.action_id, ()) if (one := work.target(action.action_id, id_))]
        for target in found:
            if work.is_held(target):
                continue
            after = rerouted(target, work.route(target.device_id), work.logs, work.now_us)
            if after is not target and after.outbox == "command":
                work.moving.setdefault(action.action_id, set()).add(target.device_id)
                continue
            if after is target and target.state is TargetState.QUEUED and is_wait(target.message):
                after = replace(target, message=None, updated_us=work.now_us)
            work.put(target, after)
    for key in before.copied:
        copied = work.target(*key)
        is_unwanted = copied is not None and any(unwanted(copied))
        # `heard_us` stands still for a while after the clock was set ahead: somebody may set it back.
        waited_us = 0 if copied is None else work.heard_us - copied.updated_us
        if copied is not None and is_unwanted and waited_us >= work.limits.withdraw_s * SECOND_US:
            work.put(copied, replace(copied, copies=()))


def rerouted(target: Target, way: Route, logs: Logs, now_us: int) -> Target:
    """The target after a look at its device's route: its queued command, its force or its cancel becomes owed to the
    new log."""
    log_id = way.log_id or logs.first
    if _stays(target) or way.waits is not None or log_id is None:
        return target
    if target.state is TargetState.CANCELLING:
        # Rows of older versions do not say which log has the cancel: they had one broker.
        there = target.cancel_log_id or logs.first
        if target.outbox == "cancel" or there is None or there == log_id:
            return target
        return replace(target, outbox="cancel", updated_us=now_us)
    if target.force_log_id is not None and target.state in _HAS_COMMAND:
        told = (target.force_log_id or logs.first) == log_id
        return target if told or target.outbox else replace(target, outbox="force", updated_us=now_us)
    there = target.log_id or logs.first
    if target.state not in _UNDELIVERED or there is None or there == log_id:
        return target
    return replace(
        target,
        outbox="command",
        log_id=log_id,
        partition=None,
        offset=None,
        force_log_id=None,
        copies=with_copy(target, there, without=log_id),
        sent_us=now_us,
        updated_us=now_us,
        message=moved(there, log_id),
    )


def _stays(target: Target) -> bool:
    """Whether nothing of the target goes after its device: nothing was sent, the device has the command, or all is
    over. Most targets do, and need no look at their route."""
    has_command = target.force_log_id is None and target.state in _HAS_COMMAND
    return has_command or target.final or target.unsent


_device_id = attrgetter("device_id")


def unwanted(target: Target) -> Iterator[tuple[int, str]]:
    """(attempt, log id) of the copies that nobody wants any more: the target is over or being cancelled, or a later
    attempt has been sent. Until then the success of an earlier one still counts."""
    for copy in target.copies:
        attempt, _, log_id = copy.partition("/")
        is_over = target.final or target.state is TargetState.CANCELLING
        # What gave way is not wanted either until its next attempt is sent.
        if is_over or (int(attempt) < target.attempt and not (target.unsent and not target.given_up)):
            yield int(attempt), log_id
