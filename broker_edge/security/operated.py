"""What only an operator can see: the version of the broker, whether it writes its audit log, and who was refused."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from broker_edge.admin import Admin
from broker_edge.clear_text import is_loopback
from broker_edge.credentials import Credentials
from broker_edge.errors import HeadwaterError
from broker_edge.security.check import Check
from broker_edge.security.doors import Door
from broker_edge.tls import TlsReferences

_SILENT = {"off": "nothing", "error": "nothing", "warn": "refusals alone"}
"""Levels at which the audit log leaves something out, and what is left: refusals are warnings, what operators do is
`info`."""


def operated(
    door: Door, credentials: Credentials, tls: TlsReferences, *, version: str, timeout_s: float = 10.0
) -> list[Check]:
    """Asks the admin listener with credentials; never over plain text beyond this machine. `version` is ours."""
    return list(_asked(door, credentials, tls, version, timeout_s))


def _asked(door: Door, credentials: Credentials, tls: TlsReferences, version: str, timeout_s: float) -> Iterator[Check]:
    if not door.has_tls and not is_loopback(door.host):
        found = "the credentials were not sent, because this listener has no TLS"
        yield Check("warn", "operator", door.where, found, "set listeners.admin.tls, and give https://…")
        return
    host = f"[{door.host}]" if ":" in door.host else door.host
    address = f"{'https' if door.has_tls else 'http'}://{host}:{door.port}"
    admin = Admin(address, timeout_s=timeout_s, credentials=credentials, tls=tls)
    try:
        told, level = str(admin.ask("GET", "/api/v1/status")["version"]), admin.ask("GET", "/api/v1/log-level")["level"]
        refusals = admin.ask("GET", "/api/v1/refusals")["users"]
    except (HeadwaterError, KeyError) as error:
        found = f"not known: {error}"
        yield Check(
            "warn", "operator", door.where, found, "give --user and --password-from of an operator, and --tls-ca"
        )
        return
    yield _version(door, told, version)
    left = _SILENT.get(_level_of_audit(str(level)))
    if left is not None:
        remedy = "set HEADWATER_LOG_LEVEL to info, and restart the broker"
        yield Check("warn", "audit log", door.where, f"the log level is {level}: it has {left}", remedy)
    else:
        yield Check("ok", "audit log", door.where, f"the log level is {level}")
    strangers = sum(int(kind["count"]) for one in refusals if one["user"] is None for kind in one["refused"])
    named = sum(one["user"] is not None for one in refusals)
    found = f"since its start {named} users were refused something, and strangers {strangers} times"
    yield Check("ok", "refusals", door.where, found)


def _level_of_audit(text: str) -> str:
    """The level of the target `audit` in a filter such as `info` or `headwater_broker=debug,warn`."""
    levels = dict(part.strip().lower().rpartition("=")[::2] for part in text.split(","))
    return levels.get("audit", levels.get("", "off"))


def _version(door: Door, told: str, ours: str) -> Check:
    try:
        is_behind = Version(told) < Version(ours)
    except InvalidVersion:
        is_behind = told != ours
    if is_behind:
        remedy = "upgrade the broker (docs/upgrade.md)"
        return Check("warn", "version", door.where, f"the broker is {told}, this program is {ours}", remedy)
    return Check("ok", "version", door.where, told)
