"""Finds the log through which a device is reached, or says why a command must wait. Pure. `moves` handles moves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .action import Device, shortened
from .logs import Logs
from .model import DeviceState, Target

_UNKNOWN = "no log known yet"
_UNSERVED = "no broker that answers serves"
_AWAY = "its broker does not answer"
_STOCK = "its artifact"
_WAITS = (_UNKNOWN, _UNSERVED, _AWAY, _STOCK)


@dataclass(frozen=True, slots=True)
class Route:
    """`log_id` None is the log of the first broker. `waits` says why there is no route now."""

    log_id: str | None = None
    waits: str | None = None


def route(device: Device | None, fact: DeviceState | None, logs: Logs) -> Route:
    """The log through which this device is reached: the one that users name, otherwise that of its newest status. With
    a single broker every other device is reached through it."""
    if device is not None and device.log:
        return _by_users(device.log, logs)
    if logs.alone:
        return Route()
    if fact is None or not fact.log_id:
        said = "the device has sent no status, and devices.log does not name a log or a broker"
        return Route(waits=f"{_UNKNOWN}: {said}")
    if logs.serving(fact.log_id) is None:
        said = "where the device last reported; the command is sent when one does, or through devices.log"
        return Route(waits=f"{_UNSERVED} the log {fact.log_id}, {said}")
    return Route(fact.log_id)


def _by_users(log: str, logs: Logs) -> Route:
    broker = logs.named(log)
    if broker is not None:
        if broker.log_id is None:
            return Route(waits=f"{_UNKNOWN}: the broker {log}, which devices.log names, has not answered")
        return Route(broker.log_id)
    if logs.serving(log) is not None:
        return Route(log)
    said = "that devices.log names, and no broker has this name; the command is sent when one does"
    return Route(waits=shortened(f"{_UNSERVED} the log {log[:100]} {said}"))


def hindrance(log_id: str | None, logs: Logs) -> str | None:
    """Why no command becomes owed to this log now. Commands for a single broker become owed while it is away."""
    broker = logs.serving(log_id)
    if logs.alone or broker is None or not broker.away:
        return None
    return f"{_AWAY}: {broker.name or 'log'} {broker.log_id}; the command is sent when it is back"


def lacks_artifact(log_id: str | None, name: str, version: str, logs: Logs) -> str | None:
    """Why the log of a device cannot give it this artifact yet. With a single broker nobody looks."""
    log_id = log_id or logs.first
    if logs.alone or logs.stock is None or log_id is None:
        return None
    reason = logs.stock.get((log_id, name, version), "nobody has looked yet")
    return None if reason is None else shortened(f"{_STOCK} {name} {version} is not in the log {log_id}: {reason}")


def is_wait(message: str | None) -> bool:
    """Whether this message of a target says why it had no route."""
    return message is not None and message.startswith(_WAITS)


def waiting(target: Target, reason: str, now_us: int) -> Target:
    return target if target.message == reason else replace(target, message=reason, updated_us=now_us)
