"""Brokers with users, rights and TLS for tests, and the search for secrets in what a run leaves behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from broker_edge.torture.process import BrokerProcess
from support.programs import StartBroker, headwaterd
from support.tls_files import Files

ACL = """
user pipeline
topic replay #
topic replay $receipts
topic replay $gaps
topic write devices/+/actions
pattern write devices/%c/telemetry
pattern write devices/%c/status
pattern read devices/%c/actions
"""


def make_users(folder: Path, *names: str) -> dict[str, str]:
    """Writes the files `users` and `acl`, and one file per password; returns the passwords."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        [headwaterd(), "users", "generate", str(folder / "users")],
        input="".join(f"{name}\n" for name in names),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = dict(line.split(":", 1) for line in made.stdout.splitlines())
    for name, password in found.items():
        (folder / f"{name}.password").write_text(f"{password}\n")
    (folder / "acl").write_text(ACL)
    return found


def start_secured(
    start: StartBroker, folder: Path, tls: Files, *, client_ca: Path | None = None, name: str = "broker"
) -> BrokerProcess:
    """A broker with the users in `folder` and TLS on mqtts, wss, Flight and admin; with `client_ca` clients of mqtts
    and Flight need a certificate."""
    settings = {"auth.password_file": str(folder / "users"), "auth.acl_file": str(folder / "acl")}
    settings["listeners.ws.bind"] = "127.0.0.1:0"
    for listener in ("mqtts", "wss", "flight", "admin"):
        prefix = f"listeners.{listener}"
        settings |= {f"{prefix}.bind": "127.0.0.1:0"}
        settings |= {f"{prefix}.tls.cert": str(tls.cert), f"{prefix}.tls.key": str(tls.key)}
        if client_ca is not None and listener in ("mqtts", "flight"):
            settings |= {f"{prefix}.tls.client_ca": str(client_ca), f"{prefix}.tls.client_auth": "required"}
    return start(name, settings)


def files_with(secrets: Iterable[str], *folders: Path) -> set[Path]:
    """The files below the folders that contain any of the texts."""
    wanted = [secret.encode() for secret in secrets]
    found = set()
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and any(secret in path.read_bytes() for secret in wanted):
                found.add(path)
    return found


def processes_with(secrets: Iterable[str]) -> set[str]:
    """The command lines of this machine that contain any of the texts."""
    wanted = [secret.encode() for secret in secrets]
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            # The process has ended.
            continue
        if any(secret in line for secret in wanted):
            found.add(line.replace(b"\0", b" ").decode(errors="replace"))
    return found
