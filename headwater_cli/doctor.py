"""`headwater doctor`: checks this machine and a broker, one line per check with what to do. It changes nothing.

A broker with users or TLS is checked as other commands reach it: with the same options and variables. `--security`
checks what strangers can do instead, from outside and, with `--config`, on the box.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.admin import DEFAULT_ADMIN
from broker_edge.credentials import Credentials
from broker_edge.errors import HeadwaterError
from broker_edge.native import native
from headwater_cli._checks import Check, certificates, checked, clock, of_broker, of_folder, of_settings
from headwater_cli._mqtt import Mqtt
from headwater_cli._options import DEFAULT_MQTT, DEFAULT_SERVER, JsonOption, MqttOption, ServerOption, connect
from headwater_cli._output import put_json, put_rows, say
from headwater_cli.clients import AdminOption

_PROBE_S = 3.0


def doctor(
    server: ServerOption = DEFAULT_SERVER,
    mqtt: MqttOption = DEFAULT_MQTT,
    admin: AdminOption = DEFAULT_ADMIN,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="FOLDER", help="Also the disk of this folder; nothing is left there."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE",
            help="Write what a report of a problem needs into a new FILE.tar.gz: no secrets.",
        ),
    ] = None,
    security: Annotated[
        bool, typer.Option("--security", help="What strangers can do; exit 0 nothing to do, 1 warnings, 2 failures.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="On its box: the settings of the broker, compared with those it runs with."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, as it was given to the broker; repeatable."),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch", metavar="SECONDS", min=1.0, help="Check again after each SECONDS, and print what has changed."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check Python, the native module, Java and jars for Spark, and whether a broker lets us in; exit 1 if not.

    With an admin address that answers also what the broker says of itself: versions, partitions, disk, damage, groups.
    """
    if security and (bundle is not None or data_dir is not None or watch is not None):
        raise typer.BadParameter("--bundle, --data-dir and --watch do not go with --security")
    if bundle is not None and watch is not None:
        raise typer.BadParameter("--bundle and --watch do not go together")
    if security:
        # Its library for certificates is loaded by this command only.
        from headwater_cli._security import examine

        code = examine(server=server, mqtt=mqtt, admin=admin, config=config, settings=settings or [], json=json)
        raise typer.Exit(code)

    def look() -> list[Check]:
        return [
            Check("python", "ok", f"{platform.python_version()} at {sys.executable}"),
            checked("native module", _native),
            *_spark(),
            clock(),
            checked("flight", lambda: _flight(server)),
            checked("mqtt", lambda: _mqtt(mqtt)),
            *certificates(mqtt, server, admin),
            *of_broker(admin, native().version(), is_named=admin != DEFAULT_ADMIN),
            *([_settings_of(admin, config, settings or [])] if config is not None or settings else []),
            *([] if data_dir is None else of_folder(data_dir)),
        ]

    checks = look()
    if bundle is not None:
        from headwater_cli._bundle import write_bundle

        checks.append(
            checked("bundle", lambda: write_bundle(bundle, admin, checks, config=config, settings=settings or []))
        )
    _show(checks, json=json)
    while watch is not None:
        time.sleep(watch)
        before, checks = checks, look()
        changed = changes(before, checks)
        if changed:
            _show(changed, json=json)
    failed = [check.name for check in checks if check.state == "failed"]
    if failed:
        say(f"headwater: {len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
        raise typer.Exit(1)


def changes(before: Sequence[Check], now: Sequence[Check]) -> list[Check]:
    """The checks whose state is another one; of those of one name, such as certificates, all if one has changed."""
    was, is_ = (_states(checks) for checks in (before, now))
    return [check for check in now if was.get(check.name) != is_[check.name]]


def _states(checks: Sequence[Check]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for check in checks:
        found.setdefault(check.name, []).append(check.state)
    return found


def _show(checks: Sequence[Check], *, json: bool) -> None:
    if json:
        is_ok = all(check.state != "failed" for check in checks)
        put_json({"ok": is_ok, "checks": [asdict(check) for check in checks]})
    else:
        put_rows(("check", "state", "detail"), [(check.name, check.state, check.detail) for check in checks])


def _native() -> str:
    return f"headwater {native().version()}"


def _spark() -> list[Check]:
    if find_spec("pyspark") is None:
        return [Check("spark", "absent", "pyspark is not installed: jobs need the extra `spark`, a broker does not")]
    jars = import_module("pipelines.spark.jars")
    java = import_module("pipelines.spark.java")
    return [
        checked("java", lambda: str(java.require_java())),
        checked("delta jars", lambda: f"{len(jars.delta_jars())} in {jars.default_folder()}"),
    ]


def _settings_of(admin: str, config: Path | None, settings: Sequence[str]) -> Check:
    try:
        return of_settings(admin, config, settings)
    except HeadwaterError as error:
        return Check("settings", "failed", str(error))


def _flight(server: str) -> str:
    with connect(server, _PROBE_S) as client:
        version = client.version()
    return f"headwater {version.version} at {server}, log {version.log_id}; {_as_whom()}"


def _mqtt(address: str) -> str:
    with Mqtt(address, protocol="5", timeout_s=_PROBE_S):
        return f"{address} accepts MQTT 5; {_as_whom()}"


def _as_whom() -> str:
    shown = Credentials.from_environment()
    if shown.is_anonymous:
        return "no user"
    return "user of the token" if shown.user is None else f"user {shown.user}"


def register(app: typer.Typer) -> None:
    app.command()(doctor)
