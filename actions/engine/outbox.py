"""Records owed to devices: builds the records to publish, and updates targets once the log has them. Publishes
nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from .action import Action, Artifacts, Selector
from .index import index_of
from .lifecycle import unplaceable, with_place
from .model import LATE_US, Decision, EngineState, Place, Publish, Target
from .sending import counted
from .summary import summarized


def idempotency_key(target: Target) -> str:
    """`<action_id>/<device_id>/<attempt>`, with `/cancel` or `/force` for the records that follow a command."""
    key = f"{target.action_id}/{target.device_id}/{target.attempt}"
    return key if target.outbox in (None, "command") else f"{key}/{target.outbox}"


def owed(target: Target, action: Action, artifacts: Artifacts, log_id: str | None = None) -> Publish:
    """The record for `target.outbox`. Its bytes depend only on the rows, never on the time or the log."""
    if target.outbox is None:
        raise ValueError(f"nothing is owed to device {target.device_id} for action {target.action_id}")
    command = target.outbox == "command"
    body: dict[str, Any] = {
        "action_id": target.action_id,
        "device_id": target.device_id,
        "attempt": target.attempt,
        "type": action.type if command else target.outbox,
        "name": action.name,
        "params": _params(action.params) if command else {},
        "created_us": target.created_us,
    }
    if action.deadline_us is not None:
        body["deadline_us"] = action.deadline_us
    if command and action.is_ota:
        body |= _installation(target, action, artifacts)
    return Publish(
        action_id=target.action_id,
        device_id=target.device_id,
        attempt=target.attempt,
        kind=target.outbox,
        topic=f"devices/{target.device_id}/actions",
        value=json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(),
        idempotency_key=idempotency_key(target),
        log_id=log_id,
    )


def withdrawal(target: Target, action: Action | None, attempt: int, log_id: str) -> Publish:
    """The cancel of a copy: the same record as the cancel of that attempt. Without the row of the action it has no
    name, which devices do not need to cancel."""
    known = action or Action(target.action_id, target.tenant, "command", "", "", Selector())
    cancel = owed(replace(target, attempt=attempt, outbox="cancel"), known, {}, log_id)
    return replace(cancel, kind="withdraw")


@lru_cache(maxsize=64)
def _params(text: str) -> Any:
    """The result is shared by all devices of an action and must not be changed."""
    return json.loads(text or "{}")


def _installation(target: Target, action: Action, artifacts: Artifacts) -> dict[str, Any]:
    name, version = action.ota.artifact_name or "", action.ota.artifact_version or ""
    what: dict[str, Any] = {"name": name, "version": version}
    artifact = artifacts.get((action.tenant, name, version))
    if artifact is not None:
        what |= {"sha256": artifact.sha256, "size_bytes": artifact.size_bytes}
    return {"mode": target.mode, "artifact": what, "target_version": action.target_version}


_NOTHING_REFUSED: Mapping[Publish, str] = {}


def record_places(
    state: EngineState,
    places: Mapping[Publish, Place],
    now_us: int,
    *,
    refused: Mapping[Publish, str] = _NOTHING_REFUSED,
) -> Decision:
    """The rows to write after a publish: QUEUED with the log position, or the cancel no longer owed. `refused` maps
    records that the broker refuses permanently to its reasons."""
    updates: dict[str, dict[str, Target]] = {}
    for publish, reason in refused.items():
        target = _latest(state, updates, publish)
        if target is None:
            continue
        ended = unplaceable(target, publish, reason, now_us)
        if ended is not target:
            updates.setdefault(publish.action_id, {})[publish.device_id] = ended
    overdue: Counter[str] = Counter()
    first = state.logs.first if state.logs is not None else None
    for publish, place in places.items():
        target = _latest(state, updates, publish)
        if target is None:
            continue  # Its action has been forgotten since.
        moved = with_place(target, publish, place, now_us, first)
        if moved is target:
            continue
        updates.setdefault(publish.action_id, {})[publish.device_id] = moved
        if publish.kind == "command" and now_us - (target.sent_us or now_us) >= LATE_US:
            overdue[publish.action_id] += 1
    states = []
    for action_id, rows in updates.items():
        before = state.actions[action_id]
        if before.phase.over:
            continue  # Only copies were withdrawn.
        kinds = index_of(state, action_id).kinds_with(rows)
        after = summarized(before, kinds, now_us, lasting=True)
        if before.sent and overdue[action_id]:
            # It counted for the rate when it became owed, but reached the log only now.
            after = replace(after, sent=counted(before.sent, overdue[action_id], now_us))
        if after != before:
            states.append(after)
    return Decision(
        target_updates=tuple(target for rows in updates.values() for target in rows.values()),
        state_updates=tuple(states),
        waiting=state.waiting,
        devices=state.devices,
        logs=state.logs,
        moving=state.moving,
    )


def _latest(state: EngineState, updates: Mapping[str, Mapping[str, Target]], publish: Publish) -> Target | None:
    """The target as earlier places of this call left it: copies of one command are withdrawn from several logs."""
    id_, device_id = publish.action_id, publish.device_id
    return updates.get(id_, {}).get(device_id) or state.targets.get(id_, {}).get(device_id)
