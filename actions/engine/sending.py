"""Decides which command is sent next: rate, devices in flight, windows, and other conditions of an action. Pure.

Every rule here is a condition for sending. After sending, only timeouts apply (`timeouts.timed_out`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from .action import Action, Artifact, Artifacts, Device, has_artifacts, why_gone
from .model import SECOND_US, ActionPhase, ActionState, DeviceState, Target, TargetState
from .windows import is_open
from .work import Work

SENDING = (ActionPhase.RUNNING, ActionPhase.WAITING_APPROVAL)
"""Phases that send. An action that waits for approval still sends to its open waves."""

_RATE_S = 60


class Verdict(Enum):
    SEND = "send"
    WAIT = "wait"
    CLOSED = "closed"
    """It waits only for its maintenance window."""


Skip = str
"""Why nothing is sent to a device; final."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a target may have to wait for outside its own action."""

    now_us: int
    devices: Mapping[str, Device]
    fact: Callable[[str], DeviceState | None]
    """device_id → what the device last reported."""
    artifacts: Artifacts
    other: Callable[[str, str], Target | None]
    """(action_id, device_id) → that target."""
    over: Callable[[str], bool | None]
    """Whether an action has ended; None if it does not exist."""
    is_held: Callable[[Target], bool]
    """Whether its device has left, but its removal is held."""
    installing: Mapping[str, str]
    """device_id → the action of the OTA in progress on that device."""
    takes: Callable[[str, Action], bool]
    """Whether the OTA in progress on that device would give way to this action."""

    def artifact_of(self, action: Action) -> Artifact | None:
        """The artifact that the action installs, if the table has it."""
        ota = action.ota
        return self.artifacts.get((action.tenant, ota.artifact_name or "", ota.artifact_version or ""))


def room(action: Action, row: ActionState, work: Work) -> int | None:
    """How many commands the action's own limits allow now; None if there is no limit."""
    limits = []
    if action.rollout.max_in_flight is not None:
        in_flight = sum(count for kind, count in work.kinds(action.action_id).items() if kind.in_flight)
        limits.append(action.rollout.max_in_flight - in_flight)
    if action.rollout.rate_per_minute is not None:
        limits.append(action.rollout.rate_per_minute - _used(row, work))
    return max(0, min(limits)) if limits else None


def _used(row: ActionState, work: Work) -> int:
    """The number of recent commands. The row counts attempts that later ones have replaced. The targets show commands
    that a crash kept from the row, and owed ones that may reach the log at any moment."""
    counted_ = recent(row.sent, work.now_us)
    since = _since(work.now_us)
    seen = Counter({str(second): count for second, count in work.sent(row.action_id).items() if second >= since})
    owed = [target for target in work.owing(row.action_id) if target.outbox == "command"]
    old = sum(1 for target in owed if (target.sent_us or 0) // SECOND_US < since)
    return old + sum(max(counted_.get(second, 0), seen[second]) for second in counted_.keys() | seen.keys())


def rate_eases_us(row: ActionState, sent: Mapping[int, int], now_us: int) -> int | None:
    """When the oldest command that counts for the rate stops counting; None if none counts. `sent` is the number of
    targets by the second of `sent_us`."""
    since = _since(now_us)
    seconds = [int(second) for second in recent(row.sent, now_us)]
    seconds += [second for second in sent if second >= since]
    return (min(seconds) + _RATE_S + 2) * SECOND_US if seconds else None


def _since(now_us: int) -> int:
    """The first second that counts. Two seconds more than a minute: a second is counted as a whole, and a command may
    have reached the log up to `LATE_US` after it was counted."""
    return now_us // SECOND_US - _RATE_S - 1


def recent(sent: Mapping[str, int], now_us: int) -> dict[str, int]:
    """The seconds that still count."""
    since = _since(now_us)
    return {second: number for second, number in sent.items() if int(second) >= since}


def counted(sent: Mapping[str, int], number: int, now_us: int) -> dict[str, int]:
    """`recent`, plus this number of commands in the current second."""
    after = recent(sent, now_us)
    second = str(now_us // SECOND_US)
    after[second] = after.get(second, 0) + number
    return after


def under_way(target: Target) -> bool:
    """Whether the device may be working on it. Not if the log has a cancel from before the device received the
    command."""
    if target.final or target.unsent:
        return False
    overtaken = target.state is TargetState.CANCELLING and target.outbox is None and target.delivered_us is None
    return not overtaken


def verdict(target: Target, action: Action, row: ActionState, around: Around) -> Verdict | Skip:
    """Whether this target's command may go out now."""
    device = around.devices.get(target.device_id)
    if device is None or around.is_held(target):
        return Verdict.WAIT  # The device has left; its target will be removed, or is held.
    waits, reason = _depends(target, action, around)
    if reason is not None:
        return reason
    if action.is_ota:
        if around.artifact_of(action) is None and not has_artifacts(around.artifacts, action.tenant):
            return Verdict.WAIT  # Held, see `holding`.
        reason = _unfit(action, device, around)
        if reason is not None:
            return reason
        busy = around.installing.get(target.device_id, target.action_id) != target.action_id
        waits = waits or (busy and not action.ota.supersede and not around.takes(target.device_id, action))
    if waits:
        return Verdict.WAIT
    window = action.rollout.maintenance_window
    is_bound = window is not None and not (target.forced or row.forced)
    return Verdict.CLOSED if is_bound and not is_open(window or "", device.time_zone, around.now_us) else Verdict.SEND


def _depends(target: Target, action: Action, around: Around) -> tuple[bool, Skip | None]:
    waits = False
    for action_id in action.rollout.depends_on:
        other = around.other(action_id, target.device_id)
        if other is not None and other.state is TargetState.SUCCEEDED:
            continue
        if other is not None and other.final:
            return False, f"action {action_id}, on which this one depends, ended {other.state} here"
        if other is None and around.over(action_id) is not False:
            return False, f"action {action_id}, on which this one depends, has nothing for this device"
        waits = True
    return waits, None


def _unfit(action: Action, device: Device, around: Around) -> Skip | None:
    ota = action.ota
    artifact = around.artifact_of(action)
    what = f"artifact {ota.artifact_name} {ota.artifact_version}"
    if artifact is None or artifact.withdrawn is not None:
        return why_gone(action, around.artifacts)
    lacking = artifact.lacking(device)
    if lacking is not None:
        return f"not allowed to install {what}: {lacking}"
    fact = around.fact(device.device_id)
    version = fact.version if fact is not None else None
    if version is not None and version == action.target_version and ota.mode != "download_only":
        return f"it already runs version {version}"
    if ota.requires_versions is None or version in ota.requires_versions:
        return None
    wanted = " or ".join(ota.requires_versions)
    if version is None:
        return f"version {wanted} is required, but it has not reported its version"
    return f"version {wanted} is required, but it runs {version}"
