"""Parses the records of `devices/{id}/actions`, and defines what a handler receives (docs/protocols.md, section 5)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

_AGAIN = "again"
"""The type of an update that continues after a restart. No record may have it: the checks of a new command skip it."""
MODES = ("forced", "soft", "download_only")


class Rejected(Exception):
    """Raised by a handler that refuses the command; the message goes into the status."""


@dataclass(frozen=True, slots=True)
class Call:
    """The argument of a handler: the command, and two ways to report progress."""

    device_id: str
    action_id: str
    attempt: int
    name: str
    params: Mapping[str, Any]
    progress: Callable[..., Awaitable[None]]
    """`await call.progress(40, "downloading")`: percent, with an optional message and `step`."""
    report: Callable[..., None]
    """Like `progress`, without waiting. Skipped while an earlier report is being sent."""


Handler = Callable[[Call], Awaitable[Any]]
"""Returns the result (anything that JSON can represent). `Rejected` means REJECTED, any other exception FAILED."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to install, and how."""

    action_id: str
    attempt: int
    mode: str
    name: str
    version: str
    sha256: str | None
    target_version: str

    @property
    def key(self) -> tuple[str, int]:
        return (self.action_id, self.attempt)

    def is_same(self, other: Order) -> bool:
        """Whether both are attempts to install the same artifact."""
        named = (self.action_id, self.name, self.version) == (other.action_id, other.name, other.version)
        return named and (None in (self.sha256, other.sha256) or self.sha256 == other.sha256)


@dataclass(frozen=True, slots=True)
class Command:
    """A valid record of `devices/{id}/actions`. `order` is set for the type `ota`."""

    action_id: str
    attempt: int
    type: str
    name: str
    params: Mapping[str, Any]
    deadline_us: int | None
    order: Order | None = None

    @property
    def key(self) -> tuple[str, int]:
        return (self.action_id, self.attempt)

    def is_same(self, other: Command) -> bool:
        """Whether both are attempts of the same work."""
        if self.order is not None and other.order is not None:
            return self.order.is_same(other.order)
        mine, others = (self.type, self.name, self.params), (other.type, other.name, other.params)
        return self.order is other.order and mine == others

    @classmethod
    def again(cls, order: Order) -> Command:
        """The command for an update that continues after a restart of the device."""
        return cls(order.action_id, order.attempt, _AGAIN, "", {}, None, order)

    @classmethod
    def parse(cls, payload: bytes) -> Command:
        """Raises ValueError, with the reason, for anything that is not a command."""
        try:
            body = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a command: {error}") from error
        if not isinstance(body, dict):
            raise ValueError("not a command: the payload is not a JSON object")
        command = cls(
            action_id=body.get("action_id", ""),
            attempt=body.get("attempt", 0),
            type=body.get("type", ""),
            name=body.get("name", ""),
            params=body.get("params") or {},
            deadline_us=body.get("deadline_us"),
        )
        texts = {"action_id": command.action_id, "type": command.type, "name": command.name}
        wrong = [name for name, value in texts.items() if not _is_text(value)]
        wrong += ["action_id"] if command.action_id == "" else []
        wrong += ["type"] if command.type == _AGAIN else []
        wrong += ["attempt"] if type(command.attempt) is not int or command.attempt < 1 else []
        wrong += ["params"] if not isinstance(command.params, dict) else []
        wrong += ["deadline_us"] if type(command.deadline_us) not in (int, type(None)) else []
        if wrong:
            raise ValueError(f"not a command: wrong {', '.join(wrong)}")
        if command.type != "ota":
            return command
        return replace(command, order=_order(command, body))


def _is_text(value: object) -> bool:
    """Whether it is a string without lone surrogates: JSON can express them, and no answer could contain them."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _order(command: Command, body: Mapping[str, Any]) -> Order:
    artifact = body.get("artifact")
    if not isinstance(artifact, dict):
        raise ValueError("not an order: wrong artifact")
    name, version, sha256 = (artifact.get(field) for field in ("name", "version", "sha256"))
    mode = body.get("mode", "forced")
    target = body.get("target_version") or version
    wrong = [what for what, value in (("name", name), ("version", version)) if not isinstance(value, str) or not value]
    wrong += ["sha256"] if not isinstance(sha256, str | None) else []
    wrong += ["mode"] if mode not in MODES else []
    wrong += ["target_version"] if not isinstance(target, str) else []
    if wrong:
        raise ValueError(f"not an order: wrong {', '.join(wrong)}")
    return Order(command.action_id, command.attempt, mode, str(name), str(version), sha256, str(target))
