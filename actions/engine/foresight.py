"""Previews an action before anything is sent: runs the engine's own admission and rules on a separate state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .action import Action, Artifacts, Device
from .admission import admit
from .logs import Logs
from .model import ActionPhase, EngineState, Limits, TargetState
from .routes import silence
from .sending import Around, Verdict, verdict
from .work import Work


@dataclass(frozen=True, slots=True)
class Planned:
    """One device: the wave it would be in (from 0), and why it would be skipped, if so."""

    device_id: str
    wave: int
    skipped: str | None = None
    waits: bool = False
    """The command would not be sent at once: outside the window, waiting for another action, or without a route."""
    message: str | None = None
    """Why it has no route."""
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
) -> Foresight:
    """`state` holds what is known about devices, and about the actions on which this one depends. Without `logs` no
    broker was asked, and routes are not checked."""
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
        state.facts,
        artifacts,
        work.target,
        work.over,
        is_held=work.is_held,
        installing={},
        takes=lambda device_id, action: False,
    )
    planned = []
    for target in sorted(work.targets(action.action_id), key=lambda target: (target.wave, target.device_id)):
        if target.state is TargetState.SKIPPED:
            planned.append(Planned(target.device_id, target.wave, target.message))
            continue
        found = verdict(target, action, row, around)
        skipped = found if isinstance(found, str) else None
        reason = _unreached(target.device_id, work) if logs is not None and found is Verdict.SEND else None
        waits = found is Verdict.WAIT or reason is not None
        log = _log_of(target.device_id, work)
        planned.append(Planned(target.device_id, target.wave, skipped, waits=waits, message=reason, log=log))
    return Foresight(refused=None, message=row.message, devices=tuple(planned))


def _unreached(device_id: str, work: Work) -> str | None:
    way = work.route(device_id)
    return way.waits or silence(way.log_id, work.logs)


def _log_of(device_id: str, work: Work) -> str | None:
    device, fact = work.devices.get(device_id), work.fact(device_id)
    return (device.log if device is not None else None) or (fact.log_id if fact is not None else None)
