"""`headwater doctor --bundle`: one file with what a report of a problem needs, and no secret.

Of the settings it has what the broker says of them, where secrets are references; of the broker its status, metrics
and, in a cluster, its report. Payloads, topics, client ids and addresses of clients are in none of them.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker_edge.admin import Admin
from broker_edge.errors import HeadwaterError, NotFoundError, RefusedError
from broker_edge.native import native
from headwater_cli._checks import Check
from headwater_cli._settings import checked_settings

_ANSWER_S = 10.0
_PACKAGES = (
    "pyarrow",
    "deltalake",
    "pyspark",
    "delta-spark",
    "duckdb",
    "polars",
    "paho-mqtt",
    "gmqtt",
    "typer",
    "rich",
)


def write_bundle(
    path: Path, admin: str, checks: Sequence[Check], *, config: Path | None, settings: Sequence[str]
) -> str:
    """Writes the file and says what is in it. Raises RefusedError if there is one of that name."""
    broker = Admin(admin, timeout_s=_ANSWER_S)
    parts: dict[str, Callable[[], str]] = {
        "versions.json": lambda: _json(_versions()),
        "checks.json": lambda: _json([asdict(check) for check in checks]),
        "status.json": lambda: _json(broker.ask("GET", "/api/v1/status")),
        "metrics.txt": broker.metrics,
        "settings.json": lambda: _json(broker.ask("GET", "/api/v1/settings")),
        "cluster.json": lambda: _json(broker.ask("GET", "/api/v1/cluster")),
    }
    if config is not None or settings:
        parts["config.json"] = lambda: checked_settings(config, settings)
    folder, missing = path.name.removesuffix(".tar.gz"), []
    try:
        with path.open("xb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, make in parts.items():
                try:
                    text = make()
                except NotFoundError:
                    continue  # A broker alone has no report of a cluster, one of an earlier version no settings.
                except HeadwaterError as error:
                    # A broker that does not answer is why somebody writes a report.
                    missing.append(name)
                    name, text = f"{name}.missing", f"{error}\n"
                _add(archive, f"{folder}/{name}", text.encode())
    except FileExistsError as error:
        raise RefusedError(f"{path} exists: give a new name") from error
    except OSError as error:
        raise RefusedError(f"cannot write {path} ({error.strerror})") from error
    left = f"; without {', '.join(missing)}" if missing else ""
    return f"{path}{left}: look into it before you send it"


def _versions() -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "headwater": native().version(),
        "python": sys.version,
        "system": platform.platform(),
        "packages": packages,
        "made_at_s": int(time.time()),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
    archive.addfile(entry, io.BytesIO(content))
