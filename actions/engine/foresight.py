"""Previews an action before anything is sent: runs the engine's own admission and rules on a separate state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .action import Action, Artifacts, Device
from .admission import admit
from .model import ActionPhase, EngineState, Limits, TargetState
from .sending import Around, Verdict, verdict
from .work import Work


@dataclass(frozen=True, slots=True)
class Planned:
    """One device: the wave it would be in (from 0), and why it would be skipped, if so."""

    device_id: str
    wave: int
    skipped: str | None = None
    waits: bool = False
    """The command would not be sent at once: outside the window, or waiting for another action."""


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
) -> Foresight:
    """`state` holds what is known about devices, and about the actions on which this one depends."""
    work = Work(state, devices, artifacts, now_us, limits or Limits())
    admit(work, [action])
    row = work.row(action.action_id)
    if row is None:
        raise ValueError(f"action {action.action_id} was admitted but has no row")
    if row.phase is ActionPhase.REFUSED:
        return Foresight(refused=row.message, message=row.message, devices=())
    around = Around(now_us, devices, state.facts, artifacts, work.target, work.over, installing={})
    planned = []
    for target in sorted(work.targets(action.action_id), key=lambda target: (target.wave, target.device_id)):
        if target.state is TargetState.SKIPPED:
            planned.append(Planned(target.device_id, target.wave, target.message))
            continue
        found = verdict(target, action, row, around)
        skipped = found if isinstance(found, str) else None
        planned.append(Planned(target.device_id, target.wave, skipped, waits=found is Verdict.WAIT))
    return Foresight(refused=None, message=row.message, devices=tuple(planned))
