"""Holds what would be final because so much of a table has disappeared at once: the removal of many devices, and the
commands of an artifact that is gone together with all others. Pure.

Somebody who rewrites a table with a DELETE and an INSERT leaves it empty for a moment, and a target that is REMOVED or
SKIPPED then would stay so. What is held stays as it is and sends nothing new. It goes on when the rows are back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace

from .action import Action, Device, has_artifacts, shortened, why_gone
from .model import Held, Target
from .work import Work

_REMOVALS_FREE = 5
"""Devices of an action that may leave at once whatever share of it they are, so that small fleets are not held up."""


def hold(work: Work, action: Action, left: Collection[Target]) -> None:
    """Notes which of these targets, whose devices have left, must not be removed now. Compared again whenever the table
    changes. A retired device has left by somebody's word, and is never held."""
    doubtful = [target for target in left if not target.leaving and target.device_id not in work.retired]
    share = work.limits.removal_max_percentage
    if not doubtful or share >= 100:
        return
    open_ = sum(1 for target in work.targets(action.action_id) if not target.final and not target.leaving)
    is_mass = len(doubtful) > _REMOVALS_FREE and len(doubtful) * 100 > share * open_
    if is_mass or not _has_devices(work.devices.values(), action.tenant):
        work.held[action.action_id] = Held(frozenset(target.device_id for target in doubtful), open_)


def _has_devices(devices: Collection[Device], tenant: str) -> bool:
    return any(device.tenant == tenant for device in devices)


def is_without_artifact(action: Action, work: Work) -> bool:
    """Whether the table does not have what this action installs, or nobody may install it any more."""
    return why_gone(action, work.artifacts) is not None


def say_held(work: Work) -> None:
    """Writes into the row of each open action what is held, and says it once in `action_events`."""
    for action, row in list(work.open_actions()):
        held, said = work.held.get(action.action_id), []
        if held is not None:
            gone = f"{len(held.device_ids)} of {held.open} open devices are no longer in the table devices"
            where = f"{gone}{' or in the selection' if action.rollout.dynamic else ''}"
            confirm = f"`headwater actions remove {action.action_id}` confirms that they have left"
            said.append(f"their removal is held: {where}; they stay as they are until they are back, or {confirm}")
        is_bare = is_without_artifact(action, work) and not has_artifacts(work.artifacts, action.tenant)
        if is_bare:
            what = f"{action.ota.artifact_name} {action.ota.artifact_version}"
            table = f"the table artifacts has no artifact of tenant {action.tenant} any more"
            said.append(shortened(f"its commands are held: {table}; they are sent once it has {what} again"))
        sentence = "; ".join(said) or None
        if sentence == row.held:
            continue
        work.put_row(replace(row, held=sentence))
        if sentence is not None:
            # The same devices again, such as in a tick that is repeated after a crash, are not said twice.
            ids = sorted(held.device_ids) if held is not None else []
            digest = hashlib.sha256("/".join([str(is_bare), *ids]).encode()).hexdigest()[:16]
            work.say_of_action(action, f"HELD_{digest}", sentence)
