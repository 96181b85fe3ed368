"""The formats in which a device reports its status: that of docs/protocols.md, or that of Bytebeam's uplink."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

UPLINK_TOPIC = "/tenants/{tenant}/devices/{id}/action/status"
# uplink has no separate state for progress: the step carries it.
_UPLINK_STATES = {
    "ACCEPTED": "Received",
    "SUCCEEDED": "Completed",
    "FAILED": "Failed",
    "REJECTED": "Rejected",
    "CANCELLED": "Cancelled",
}
_UPLINK_STEPS = {
    "download": "Downloading",
    "verify": "Downloaded",
    "wait": "Downloaded",
    "install": "Installing",
    "confirm": "Installing",
    "rollback": "Installing",
}
_FAILURES = ("FAILED", "REJECTED")


@dataclass(frozen=True, slots=True)
class Said:
    """A status. `action_id` is empty for ONLINE."""

    device_id: str
    action_id: str
    attempt: int
    state: str
    boot: str
    seq: int
    ts_us: int
    progress: int | None = None
    message: str | None = None
    result: Any = None
    version: str | None = None
    step: str | None = None
    product: str | None = None
    hardware: str | None = None


class Words(Protocol):
    def record(self, said: Said) -> tuple[str, bytes] | None:
        """Topic and payload; None for a status that this format cannot express."""


class OwnWords:
    """`devices/{id}/status`, one object per status."""

    def record(self, said: Said) -> tuple[str, bytes] | None:
        body: dict[str, Any] = {} if not said.action_id else {"action_id": said.action_id, "attempt": said.attempt}
        body |= {"state": said.state, "boot": said.boot, "seq": said.seq, "ts": said.ts_us}
        for name in ("progress", "message", "result", "version", "step", "product", "hardware"):
            value = getattr(said, name)
            if value is not None:
                body[name] = value
        return f"devices/{said.device_id}/status", _json(body)


class UplinkWords:
    """Bytebeam's uplink: an array with one response. `topic` may contain `{tenant}` and `{id}`."""

    def __init__(self, *, tenant: str = "default", topic: str = UPLINK_TOPIC) -> None:
        self._tenant, self._topic = tenant, topic

    def record(self, said: Said) -> tuple[str, bytes] | None:
        if not said.action_id:
            return None
        running = _UPLINK_STEPS.get(said.step or "", "Running")
        state = _UPLINK_STATES.get(said.state, running)
        progress = 100 if state == "Completed" else said.progress or 0
        response: dict[str, Any] = {
            "id": said.action_id if said.attempt == 1 else f"{said.action_id}/{said.attempt}",
            "sequence": said.seq,
            "timestamp": said.ts_us // 1_000,
            "state": state,
            "progress": progress,
            "errors": [said.message] if said.message and said.state in _FAILURES else [],
        }
        if said.version is not None:
            response["version"] = said.version  # Not part of uplink: an update succeeds only if the version is named.
        topic = self._topic.replace("{tenant}", self._tenant).replace("{id}", said.device_id)
        return topic, _json([response])


def _json(value: Any) -> bytes:
    # A lone surrogate from a command, in a message or a result, must not keep the device from answering.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
