"""Finds the log through which a device is reached, or says why a command must wait. Pure. `moves` handles moves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .action import Artifact, Device, shortened
from .logs import Logs
from .model import DeviceState, Target

_UNKNOWN = "no log known yet"
_UNSERVED = "no broker that answers serves"
_AWAY = "its broker does not answer"
_REFUSES = "its broker refuses the credentials of the actions job"
_STOCK = "its artifact"
_WAITS = (_UNKNOWN, _UNSERVED, _AWAY, _REFUSES, _STOCK)
_MOVED = "the device moved from log"
_CANCEL_WAITS = "; its cancel waits: "


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
        return Route(waits=shortened(f"{_UNSERVED} the log {fact.log_id}, {said}{_refusing(logs)}"))
    return Route(fact.log_id)


def _by_users(log: str, logs: Logs) -> Route:
    broker = logs.named(log)
    if broker is not None:
        if broker.log_id is None:
            what = "refuses the credentials of the actions job" if broker.refuses else "has not answered"
            return Route(waits=f"{_UNKNOWN}: the broker {log}, which devices.log names, {what}")
        return Route(broker.log_id)
    if logs.serving(log) is not None:
        return Route(log)
    said = "that devices.log names, and no broker has this name; the command is sent when one does"
    return Route(waits=shortened(f"{_UNSERVED} the log {log[:100]} {said}{_refusing(logs)}"))


def _refusing(logs: Logs) -> str:
    """The brokers that did not say their log, because they refuse the credentials: one of them may serve it."""
    names = [one.name or "the first one" for one in logs.brokers if one.refuses and one.log_id is None]
    return f" (refusing the credentials of the actions job: {', '.join(names)})" if names else ""


def hindrance(log_id: str | None, logs: Logs) -> str | None:
    """Why no command becomes owed to this log now. Commands for a single broker become owed while it is away."""
    return None if logs.alone else silence(log_id, logs)


def silence(log_id: str | None, logs: Logs) -> str | None:
    """Why no command reaches this log now."""
    broker = logs.serving(log_id)
    if broker is None or not broker.away:
        return None
    names = [name for name in (broker.name or (broker.log_id and "log"), broker.log_id) if name]
    which = f": {' '.join(names)}" if names else ""
    if broker.refuses:
        return f"{_REFUSES}{which}; correct them in the settings of the job, or the user and its rights at the broker"
    return f"{_AWAY}{which}; the command is sent when it is back"


def lacks_artifact(log_id: str | None, artifact: Artifact | None, logs: Logs) -> str | None:
    """Why the log of a device cannot give it this artifact yet. With a single broker nobody looks."""
    log_id = log_id or logs.first
    if logs.alone or logs.stock is None or log_id is None or artifact is None:
        return None
    what = (artifact.name, artifact.version)
    reason = logs.stock.get((log_id, *what, artifact.sha256), "nobody has looked yet")
    return None if reason is None else shortened(f"{_STOCK} {' '.join(what)} is not in the log {log_id}: {reason}")


def is_wait(message: str | None) -> bool:
    """Whether this message of a target says why it had no route."""
    return message is not None and message.startswith(_WAITS)


def waiting(target: Target, reason: str, now_us: int) -> Target:
    return target if target.message == reason else replace(target, message=reason, updated_us=now_us)


def moved(there: str, log_id: str) -> str:
    return f"{_MOVED} {there} to log {log_id} while its command was queued"


def without_route(message: str | None) -> str | None:
    """The message without what it says about the way of a record, which is over once the device has answered."""
    if message is None or message.startswith((*_WAITS, _MOVED)):
        return None
    return message.partition(_CANCEL_WAITS)[0]


def cancel_owed(target: Target, log_id: str | None, logs: Logs, now_us: int) -> Target:
    """The target whose cancel is owed to this log; its message says so as long as no broker serves the log."""
    reason = (target.message or "").partition(_CANCEL_WAITS)[0]
    if logs.serving(log_id) is None:
        reason = f"{reason}{_CANCEL_WAITS}{_UNSERVED} the log {log_id}, which has its command{_refusing(logs)}"
    return waiting(target, shortened(reason), now_us)
