"""`headwater doctor`: checks this machine, one line per check with what to do. It changes nothing."""

from __future__ import annotations

import platform
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import typer

from broker_edge.broker import native
from headwater_cli._options import (
    DEFAULT_MQTT,
    DEFAULT_SERVER,
    JsonOption,
    MqttOption,
    ServerOption,
    connect,
    parse_mqtt,
)
from headwater_cli._output import put_json, put_rows, say

_PROBE_S = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """`detail` says what was found, or what is wrong and what to do. `absent`: an optional part that is not
    installed."""

    name: str
    state: Literal["ok", "absent", "failed"]
    detail: str


def doctor(server: ServerOption = DEFAULT_SERVER, mqtt: MqttOption = DEFAULT_MQTT, json: JsonOption = False) -> None:
    """Check Python, the native module, Java and jars for Spark, and whether a broker answers; exit 1 if not."""
    checks = [
        Check("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        _checked("native module", _native),
        *_spark(),
        _checked("flight", lambda: _flight(server)),
        _checked("mqtt", lambda: _reachable(mqtt)),
    ]
    failed = [check for check in checks if check.state == "failed"]
    if json:
        put_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        put_rows(("check", "state", "detail"), [(check.name, check.state, check.detail) for check in checks])
    if failed:
        say(f"headwater: {len(failed)} of {len(checks)} checks failed: {', '.join(check.name for check in failed)}")
        raise typer.Exit(1)


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except Exception as error:
        return Check(name, "failed", str(error).partition("\n")[0])


def _native() -> str:
    return f"headwater {native().version()}"


def _spark() -> list[Check]:
    if find_spec("pyspark") is None:
        return [Check("spark", "absent", "pyspark is not installed: jobs need the extra `spark`, a broker does not")]
    jars = import_module("pipelines.spark.jars")
    java = import_module("pipelines.spark.java")
    return [
        _checked("java", lambda: str(java.require_java())),
        _checked("delta jars", lambda: f"{len(jars.delta_jars())} in {jars.default_folder()}"),
    ]


def _flight(server: str) -> str:
    with connect(server, _PROBE_S) as client:
        version = client.version()
    return f"headwater {version.version} at {server}, log {version.log_id}"


def _reachable(address: str) -> str:
    at = parse_mqtt(address)
    try:
        socket.create_connection((at.host, at.port), _PROBE_S).close()
    except OSError as error:
        raise OSError(
            f"nothing listens at {address}: start a broker, or give its address with --mqtt ({error})"
        ) from error
    return f"{address} accepts connections"


def register(app: typer.Typer) -> None:
    app.command()(doctor)
