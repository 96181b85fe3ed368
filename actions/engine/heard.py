"""Up to when the reports of a device are known. Pure.

A timeout is true only if the device did not report in time, and a report that nobody has read yet may say that it did.
So a target is judged at the moment up to which the reports in all logs of its device have been read.
"""

from __future__ import annotations

from .action import Action
from .model import ActionState, Target
from .waves import soaked_us, waves_of
from .work import Work


def heard_of(target: Target, work: Work) -> int:
    """All reports about this target up to this time, by the engine's clock, are known."""
    if work.read_us is None:
        return work.heard_us
    return min(work.heard_us, *(_read_us(log_id, work) for log_id in _logs_of(target, work)))


def note_unread(target: Target, work: Work) -> None:
    """Notes the logs that hold back this target, which is due."""
    behind = {log_id for log_id in _logs_of(target, work) if log_id and _read_us(log_id, work) < work.heard_us}
    work.unread |= {log_id for log_id in behind if work.logs.serving(log_id) is not None}


def soak_heard_us(action: Action, row: ActionState, work: Work) -> int:
    """The time up to which the soak of the open wave may be judged: an unread report of its devices may be an error."""
    soaked = soaked_us(action, row)
    if work.read_us is None or soaked is None or work.heard_us < soaked or soaked == row.gate_us:
        return work.heard_us
    last = min(row.wave, len(waves_of(action)) - 1)
    until = work.heard_us
    for target in work.some(action.action_id, set(work.index(action.action_id).since.ids())):
        if target.wave > last or target.final or target.unsent:
            continue
        heard_us = heard_of(target, work)
        if heard_us < soaked:
            note_unread(target, work)
        until = min(until, heard_us)
    return until


def _logs_of(target: Target, work: Work) -> set[str | None]:
    """The logs that may have a report of this device: of its command and the copies of it, of its newest status, of
    its way now."""
    here = str(target.attempt)
    fact, route = work.fact(target.device_id), work.route(target.device_id)
    logs = {target.log_id or work.logs.first, target.receipt_log_id}
    logs |= {fact.log_id if fact is not None else None, route.log_id}
    # A device that has moved may have taken the copy in its old log, and reported there.
    logs |= {log_id for copy in target.copies for attempt, _, log_id in [copy.partition("/")] if attempt == here}
    return {log_id for log_id in logs if log_id} or {None}


def _read_us(log_id: str | None, work: Work) -> int:
    if log_id is not None and work.logs.serving(log_id) is not None:
        return (work.read_us or {}).get(log_id, 0)
    # A broker that has not told its log yet may be the one. A log that no broker serves has been given up.
    return 0 if any(one.log_id is None for one in work.logs.brokers) else work.heard_us
