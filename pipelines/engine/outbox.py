"""What is owed to devices: the records to publish, and the target once the log has them. Publishes nothing itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .lifecycle import with_place
from .model import Action, Decision, EngineState, Place, Publish, Target
from .summary import summarized


def idempotency_key(target: Target) -> str:
    """`<action_id>/<device_id>/<attempt>`, with `/cancel` for the record that asks the device to stop."""
    key = f"{target.action_id}/{target.device_id}/{target.attempt}"
    return f"{key}/cancel" if target.outbox == "cancel" else key


def owed(target: Target, action: Action) -> Publish:
    """The record that `target.outbox` stands for. Its bytes depend on the rows only, never on when it is made."""
    if target.outbox is None:
        raise ValueError(f"nothing is owed to device {target.device_id} for action {target.action_id}")
    cancel = target.outbox == "cancel"
    body: dict[str, Any] = {
        "action_id": target.action_id,
        "device_id": target.device_id,
        "attempt": target.attempt,
        "type": "cancel" if cancel else action.type,
        "name": action.name,
        "params": {} if cancel else json.loads(action.params or "{}"),
        "created_us": target.created_us,
    }
    if action.deadline_us is not None:
        body["deadline_us"] = action.deadline_us
    return Publish(
        action_id=target.action_id,
        device_id=target.device_id,
        attempt=target.attempt,
        kind=target.outbox,
        topic=f"devices/{target.device_id}/actions",
        value=json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(),
        idempotency_key=idempotency_key(target),
    )


def record_places(state: EngineState, places: Mapping[Publish, Place], now_us: int) -> Decision:
    """The rows to write after a publish: QUEUED with the place in the log, or the cancel no longer owed."""
    updates: dict[str, dict[str, Target]] = {}
    for publish, place in places.items():
        target = state.targets[publish.action_id][publish.device_id]
        moved = with_place(target, publish.kind, place.partition, place.offset, now_us)
        if moved is not target:
            updates.setdefault(publish.action_id, {})[publish.device_id] = moved
    rows = [
        (state.actions[action_id], {**state.targets[action_id], **moved}.values())
        for action_id, moved in updates.items()
    ]
    states = [(row, summarized(row, targets, now_us)) for row, targets in rows]
    return Decision(
        target_updates=tuple(target for moved in updates.values() for target in moved.values()),
        state_updates=tuple(after for before, after in states if after != before),
        waiting=state.waiting,
    )
