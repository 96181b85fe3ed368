"""Previews an action before anything is sent: runs the engine's own admission and rules on a separate state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from broker_edge.escape import moment

from .action import Action, Artifacts, Device
from .admission import admit
from .giving_way import can_give_way
from .logs import Logs
from .model import ActionPhase, ActionState, EngineState, Limits, Target, TargetState
from .routes import silence
from .sending import SENDING, Around, Verdict, under_way, verdict
from .work import Work


@dataclass(frozen=True, slots=True)
class Planned:
    """One device: the wave it would be in (from 0), and why it would be skipped, if so."""

    device_id: str
    wave: int
    skipped: str | None = None
    waits: bool = False
    """The command would not be sent at once: before its time, its wave or an approval, outside the window, waiting for
    another action, or without a route."""
    message: str | None = None
    """What it waits for, why it has no route, or what becomes of the other updates that are open on the device."""
    log: str | None = None
    """The log or the broker through which the device is reached: that of `devices.log`, or of its newest status."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """`refused` says why the row would be refused, `message` why the action would end at once."""

    refused: str | None
    message: str
    devices: tuple[Planned, ...]


def foresee(
    action: Action,
    state: EngineState,
    devices: Mapping[str, Device],
    artifacts: Artifacts,
    now_us: int,
    *,
    limits: Limits | None = None,
    logs: Logs | None = None,
    updates: Collection[Action] = (),
) -> Foresight:
    """`state` holds what is known about devices, about the actions on which this one depends, and about the open
    `updates` of others. Without `logs` no broker was asked, and routes are not checked."""
    work = Work(state, devices, artifacts, now_us, limits or Limits(), logs=logs or Logs())
    admit(work, [action])
    row = work.row(action.action_id)
    if row is None:
        raise ValueError(f"action {action.action_id} was admitted but has no row")
    if row.phase is ActionPhase.REFUSED:
        return Foresight(refused=row.message, message=row.message, devices=())
    around = Around(
        now_us,
        devices,
        work.fact,
        artifacts,
        work.target,
        work.over,
        is_held=work.is_held,
        installing={},
        takes=lambda device_id, action: False,
    )
    beside = _beside(action, updates, work)
    planned = []
    for target in sorted(work.targets(action.action_id), key=lambda target: (target.wave, target.device_id)):
        if target.state is TargetState.SKIPPED:
            planned.append(Planned(target.device_id, target.wave, target.message))
            continue
        found = verdict(target, action, row, around)
        skipped = found if isinstance(found, str) else None
        reason = _unreached(target.device_id, work) if logs is not None and found is Verdict.SEND else None
        waits = found in (Verdict.WAIT, Verdict.CLOSED) or reason is not None
        if skipped is None and reason is None:
            is_behind, reason = _among(action, beside.get(target.device_id, []))
            waits = waits or is_behind
        later = None if skipped is not None else _later(target, action, row, found, now_us)
        if later is not None:
            waits, reason = True, f"{later}; {reason}" if reason else later
        log = _log_of(target.device_id, work)
        planned.append(Planned(target.device_id, target.wave, skipped, waits=waits, message=reason, log=log))
    return Foresight(refused=None, message=row.message, devices=tuple(planned))


def _later(target: Target, action: Action, row: ActionState, found: Verdict | str, now_us: int) -> str | None:
    """What the command waits for, apart from routes and other updates: the last thing that holds it."""
    start_us = action.rollout.not_before_us
    if target.wave > max(row.wave, 0):
        return f"after wave {target.wave}"
    if target.wave > row.wave:
        return "for an approval"
    if start_us is not None and start_us > now_us:
        return f"until {moment(start_us)}"
    if found is Verdict.CLOSED:
        return f"for its window {action.rollout.maintenance_window}"
    if found is Verdict.WAIT and action.rollout.depends_on:
        return f"for {', '.join(action.rollout.depends_on)}"
    return None


def _beside(action: Action, updates: Collection[Action], work: Work) -> dict[str, list[tuple[Action, Target]]]:
    """By device: the updates of others that hold the device, or whose turn it is before this one's."""
    found: dict[str, list[tuple[Action, Target]]] = {}
    others = [other for other in updates if action.is_ota and other.is_ota and other.action_id != action.action_id]
    for other in sorted(others, key=lambda other: (-other.rollout.priority, other.action_id)):
        row = work.row(other.action_id)
        if row is None or row.phase.over:
            continue
        for target in work.targets(other.action_id):
            sends = row.phase in SENDING and target.wave <= row.wave
            is_first = target.unsent and sends and other.rollout.priority >= action.rollout.priority
            if under_way(target) or is_first or (action.ota.supersede and not target.final):
                found.setdefault(target.device_id, []).append((other, target))
    return found


def _among(action: Action, beside: Sequence[tuple[Action, Target]]) -> tuple[bool, str | None]:
    """Whether the command waits for an update of another action on its device, and what becomes of that one."""
    if not beside:
        return False, None
    if action.ota.supersede:
        ids = ", ".join(other.action_id for other, _ in beside)
        is_busy = any(under_way(target) and not can_give_way(target) for _, target in beside)
        return is_busy, f"cancels {ids} there{', and waits for the answer' if is_busy else ' first'}"
    # What is under way counts before what only waits for its turn.
    other, target = min(beside, key=lambda pair: not under_way(pair[1]))
    if not under_way(target):
        return True, f"goes after {other.action_id}, which waits for its turn there"
    if action.rollout.priority > other.rollout.priority and can_give_way(target):
        return False, f"takes the device from {other.action_id}, whose command it has not received"
    return True, f"goes after {other.action_id}, which is {target.state} there"


def _unreached(device_id: str, work: Work) -> str | None:
    way = work.route(device_id)
    return way.waits or silence(way.log_id, work.logs)


def _log_of(device_id: str, work: Work) -> str | None:
    device, fact = work.devices.get(device_id), work.fact(device_id)
    return (device.log if device is not None else None) or (fact.log_id if fact is not None else None)
