"""The users of a broker: how their passwords are stored, and what the ACL gives them.

The files are read line by line as docs/security.md describes them. The broker has checked them: a line that it would
refuse is passed over here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_edge.security.check import Check, severe
from broker_edge.security.reading import Unreadable, read

_ARGON2ID = re.compile(r"\$argon2id\$v=\d+\$m=(\d{1,10}),t=(\d{1,10}),p=\d{1,10}\$")
_PBKDF2 = re.compile(r"\$7\$(\d{1,10})\$")
_MEMORY_KIB_MIN, _PASSES_MIN = 19 * 1024, 2
_ITERATIONS_MIN = 210_000
"""OWASP's recommendation for PBKDF2 with SHA-512. Mosquitto writes 101."""
_GENERATED_SALT_BYTES = 16
"""`headwater users generate` stores random passwords as `$6$` with a salt of this length. Mosquitto's salts of `$6$`
have 12 bytes, and its passwords were chosen by people."""
_ALL = frozenset({"#", "+/#"})
_NAMES_MAX = 5
"""Names that one line shows."""


@dataclass(slots=True)
class _Section:
    """The lines of one user, or of clients without credentials."""

    line: int
    is_operator: bool = False
    every_client_id: int | None = None
    """The line `client-id *`."""
    topics: list[tuple[int, str, str]] = field(default_factory=list)
    """Line, access and filter."""


@dataclass(slots=True)
class _Acl:
    anonymous: _Section
    users: dict[str, _Section] = field(default_factory=dict)
    patterns: list[tuple[int, str, str]] = field(default_factory=list)


def users(settings: Mapping[str, Any], *, is_beyond: bool) -> Iterator[Check]:
    auth = settings["auth"]
    stored: dict[str, str] = {}
    if auth["password_file"]:
        path = Path(auth["password_file"])
        try:
            stored = dict(_passwords(read(path)))
        except Unreadable as error:
            yield Check("fail", "passwords", str(path), str(error), "check the path and its permissions")
            return
        yield from _weak(path, read(path))
    if not auth["acl_file"]:
        found = "every client that is let in may read and write every topic"
        yield Check(severe(is_beyond), "rights", "auth.acl_file", found, "write an ACL file and set auth.acl_file")
        return
    path = Path(auth["acl_file"])
    try:
        acl = _acl(read(path))
    except Unreadable as error:
        yield Check("fail", "rights", str(path), str(error), "check the path and its permissions")
        return
    operators = {name for name, one in acl.users.items() if one.is_operator} | {*auth["operators"]}
    checks = [*_of_strangers(path, acl, is_beyond), *_wide(path, acl, operators)]
    # A token or a certificate may bring a user whom no file names.
    if auth["password_file"] and not auth["token"]["keys_file"] and auth["certificate"]["user"] == "ignored":
        checks += _unknown(path, acl, stored.keys(), auth["operators"])
        checks += _without_rights(path, acl, stored.keys() - {*auth["operators"]})
    yield from checks or [Check("ok", "rights", str(path), "no line gives more than its user needs")]
    if not operators:
        yield Check("warn", "operators", str(path), "nobody may administer the broker", "add the line `operator`")


# Passwords


def _passwords(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, colon, stored = line.strip().partition(":")
        if colon and not name.startswith("#"):
            yield name, stored


def _weak(path: Path, text: str) -> Iterator[Check]:
    by_reason: dict[str, list[str]] = {}
    for name, stored in _passwords(text):
        if reason := _why_weak(stored):
            by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        remedy = f"headwater users add {path} {names[0]}, with a new password"
        yield Check("fail", "passwords", str(path), f"{reason}: {_listed(names)}", remedy)
    if not by_reason:
        yield Check("ok", "passwords", str(path), "stored as argon2id, or generated")


def _why_weak(stored: str) -> str | None:
    if found := _ARGON2ID.match(stored):
        is_weak = int(found[1]) < _MEMORY_KIB_MIN or int(found[2]) < _PASSES_MIN
        return "argon2id with less than 19 MiB or two passes is fast to guess" if is_weak else None
    if found := _PBKDF2.match(stored):
        is_weak = int(found[1]) < _ITERATIONS_MIN
        return f"PBKDF2 ($7$) with less than {_ITERATIONS_MIN:,} rounds is fast to guess" if is_weak else None
    if stored.startswith("$6$"):
        try:
            salt = base64.b64decode(stored.split("$")[2], validate=True)
        except (ValueError, IndexError):
            salt = b""
        return None if len(salt) == _GENERATED_SALT_BYTES else "one round of SHA-512 ($6$) is fast to guess"
    return None


# Rights


def _acl(text: str) -> _Acl:
    acl = _Acl(_Section(0))
    section = acl.anonymous
    for number, line in enumerate(text.splitlines(), 1):
        word, rest = [*line.split(None, 1), "", ""][:2]
        rest = rest.strip()
        if word == "user" and rest:
            section = acl.users.setdefault(rest, _Section(number))
        elif word == "operator":
            section.is_operator = True
        elif word == "client-id" and rest == "*":
            section.every_client_id = number
        elif word in ("topic", "pattern") and rest:
            access, topic = [*rest.split(None, 1), ""][:2]
            rule = (number, access, topic) if topic else (number, "readwrite", access)
            (section.topics if word == "topic" else acl.patterns).append(rule)
    return acl


def _of_strangers(path: Path, acl: _Acl, is_beyond: bool) -> Iterator[Check]:
    for number, access, topic in acl.anonymous.topics:
        where = f"{path}, line {number}"
        remedy = f"remove line {number}, or name the topics that everybody may know"
        if access in ("write", "readwrite"):
            found = f"clients without credentials may write `{topic}`"
            yield Check(severe(is_beyond), "rights", where, found, remedy)
        elif access != "deny" and (topic in _ALL or topic.startswith("$SYS")):
            found = f"clients without credentials may {access} `{topic}`"
            yield Check(severe(is_beyond), "rights", where, found, remedy)


def _wide(path: Path, acl: _Acl, operators: set[str]) -> Iterator[Check]:
    of_devices = any(access != "deny" and "%c" in topic for _, access, topic in acl.patterns)
    for name, section in acl.users.items():
        if of_devices and section.every_client_id is not None and name not in operators:
            found = f"`{name}` may act as every device, because it may use any client id"
            where = f"{path}, line {section.every_client_id}"
            yield Check("warn", "rights", where, found, "name the client ids of this user, for example north-*")
        for number, access, topic in section.topics:
            if name not in operators and topic in _ALL and access in ("write", "readwrite"):
                found = f"`{name}` is no operator and may {access} every topic, also commands of devices"
                yield Check("warn", "rights", f"{path}, line {number}", found, "name the topics that this user needs")
    for number, access, topic in acl.patterns:
        if topic in _ALL and access != "deny":
            found = f"every user may {access} every topic"
            yield Check("fail", "rights", f"{path}, line {number}", found, "use %c or %u in the pattern")


def _unknown(path: Path, acl: _Acl, known: Any, operators: list[str]) -> Iterator[Check]:
    for name, section in acl.users.items():
        if name not in known:
            found = f"there is no user `{name}`: whoever gets this name has these rights"
            yield Check("warn", "rights", f"{path}, line {section.line}", found, "remove the section, or add the user")
    for name in operators:
        if name not in known:
            found = f"there is no user `{name}`: whoever gets this name is an operator"
            yield Check("warn", "rights", "auth.operators", found, "remove the name, or add the user")


def _without_rights(path: Path, acl: _Acl, known: Any) -> Iterator[Check]:
    """Where a pattern allows something, it may be what the user needs."""
    if any(access != "deny" for _, access, _ in acl.patterns):
        return
    silent = sorted(name for name in known if not (one := acl.users.get(name)) or not (one.topics or one.is_operator))
    if silent:
        found = f"no line gives a right to {_listed(silent)}"
        yield Check("warn", "rights", str(path), found, "add `user NAME` with its topics, or remove the user")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(f"`{name}`" for name in names[:_NAMES_MAX]) + more
