"""`headwater doctor --security`: collects the checks of a broker and shows them."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path

from broker_edge.admin import DEFAULT_ADMIN
from broker_edge.credentials import Credentials
from broker_edge.native import native
from broker_edge.security import (
    Check,
    Door,
    box,
    doors_of_addresses,
    doors_of_settings,
    neighbours,
    operated,
    outside,
    worst,
)
from broker_edge.tls import TlsReferences
from headwater_cli._options import DEFAULT_MQTT, DEFAULT_SERVER
from headwater_cli._output import put_json, put_rows, say
from headwater_cli._settings import checked_settings

_CODES = {"ok": 0, "warn": 1, "fail": 2}
_OPERATOR = "version, audit log and refusals: give --user and --password-from (or --token-from) of an operator"
_BOX = "files, users, rights and settings: run it on the box with --config FILE"


def examine(*, server: str, mqtt: str, admin: str, config: Path | None, settings: list[str], json: bool) -> int:
    """Prints one line for each check and returns the exit code. On the box, with `config` or `settings`, the listeners
    are those of the settings, whatever addresses other commands use."""
    on_box = json_module.loads(checked_settings(config, settings)) if config is not None or settings else None
    if on_box is None:
        doors = _named(server, mqtt, admin)
        doors += neighbours(doors)
    else:
        doors = doors_of_settings(on_box)
    checks, unchecked = [], []
    credentials, tls = Credentials.from_environment(), _tls(config)
    checks += outside(doors, TlsReferences(ca=tls.ca))
    of_admin = next((door for door in doors if door.listener == "admin"), None)
    if credentials.is_anonymous or of_admin is None:
        unchecked.append(_OPERATOR)
    else:
        checks += operated(of_admin, credentials, tls, version=native().version())
    if on_box is None:
        unchecked.append(_BOX)
    else:
        checks += box(on_box, None if config is None else config.absolute().parent)
    _show(checks, unchecked, json=json)
    return _CODES[worst(checks)]


def _tls(config: Path | None) -> TlsReferences:
    """As the options say; on the box the authority that `headwater init` has written beside the settings is known."""
    given = TlsReferences.from_environment()
    beside = None if config is None else config.absolute().parent / "tls" / "ca.pem"
    if given.ca is None and beside is not None and beside.is_file():
        return TlsReferences(ca=f"file:{beside}", cert=given.cert, key=given.key)
    return given


def _named(server: str, mqtt: str, admin: str) -> list[Door]:
    """The doors at the addresses that somebody gave, or at the defaults if nobody gave any."""
    doors = doors_of_addresses(mqtt, server, admin)
    usual = doors_of_addresses(DEFAULT_MQTT, DEFAULT_SERVER, DEFAULT_ADMIN)
    return [door for door in doors if door not in usual] or doors


def _show(checks: list[Check], unchecked: list[str], *, json: bool) -> None:
    if json:
        put_json({"state": worst(checks), "checks": [asdict(check) for check in checks], "not_checked": unchecked})
    else:
        rows = [(c.state, c.name, c.where, f"{c.found}: {c.remedy}" if c.remedy else c.found) for c in checks]
        put_rows(("state", "check", "where", "what, and what to do"), rows)
        for what in unchecked:
            say(f"not checked: {what}")
    counts = {state: sum(check.state == state for check in checks) for state in ("fail", "warn", "ok")}
    say(f"headwater: {counts['fail']} failures, {counts['warn']} warnings, {counts['ok']} checks are fine")
