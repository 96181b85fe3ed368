"""Users, ACL and settings for `tenants.py`, and what the honest tenant does besides its load."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from attacks.arena import APP, OPERATOR, PUBLISH, ROGUES, Arena, Caller, Rogue, request
from attacks.identities import AWAY, DEVICES
from tenants_load import device_id

from broker_edge.torture.process import BrokerProcess

COMMANDS = 20
"""Commands for each offline device of the honest tenant."""
CANARY_EVERY_S = 1.0
STATUS_BATCHES = 10
"""Records of each partition to read at the end of a run."""
CAPS = {
    "mqtt.max_sessions": "6000",
    "mqtt.max_shared_groups": "2000",
    "mqtt.max_retained": "4000",
    "mqtt.max_retained_bytes": "32MiB",
    "broker.max_connections": "3500",
}
"""Small limits, so that attacks of a minute reach them."""
FILES_MAX = 4096
PATTERNS = """
pattern write devices/%c/telemetry/#
pattern write devices/%c/status
pattern read devices/%c/actions
"""


def users() -> dict[str, str | None]:
    """All users with their tenants."""
    found: dict[str, str | None] = {OPERATOR: None, "commander": None}
    for number in range(DEVICES + 2 * AWAY):
        found[device_id("north", number)] = "north"
    for number in range(DEVICES):
        found[device_id("south", number)] = "south"
    for number in range(ROGUES):
        found[f"south-rogue-{number}"] = "south"
    return found | {"north-app": "north", "north-reader": "north", APP: "south"}


def acl(*, has_tenants: bool) -> str:
    """`has_tenants`: include the keywords that release 0.1 does not support."""
    rights = {
        OPERATOR: ["operator", "topic readwrite #", "topic replay #"],
        "commander": ["topic write devices/+/actions"],
        "north-app": ["topic readwrite north/#", "topic replay north/#"],
        "north-reader": ["topic read devices/+/telemetry/north", "topic replay devices/+/telemetry/north"],
        APP: ["topic readwrite south/#", "topic replay south/#", "topic readwrite a/#", "topic replay a/#"],
    }
    for number in range(ROGUES):
        rights[f"south-rogue-{number}"] = ["topic readwrite south/#", "topic readwrite a/#"]
    if has_tenants:
        rights["north-app"].append("client-id north-app-*")
        for user, tenant in users().items():
            if tenant:
                rights.setdefault(user, []).append(f"tenant {tenant}")
    return "".join(f"user {user}\n" + "\n".join(lines) + "\n\n" for user, lines in rights.items()) + PATTERNS


def make_users(program: Path, file: Path) -> dict[str, str]:
    """Creates the password file; returns the generated password of each user."""
    file.touch()
    command = [str(program), "users", "generate", str(file)]
    made = subprocess.run(command, input="\n".join(users()), text=True, check=True, capture_output=True)
    return dict(line.split(":", 1) for line in made.stdout.splitlines())


def settings(folder: Path, *, has_tenants: bool) -> dict[str, str]:
    (folder / "acl").write_text(acl(has_tenants=has_tenants))
    return {
        **CAPS,
        "auth.password_file": str(folder / "users"),
        "auth.acl_file": str(folder / "acl"),
        "listeners.ws.bind": "127.0.0.1:0",
        "log.classes.telemetry.partitions": "2",
        "log.classes.telemetry.retention.bytes": "100GiB",
        "log.classes.telemetry.retention.hard_bytes": "120GiB",
    }


def leave_commands(arena: Arena) -> None:
    """Devices of the honest tenant subscribe and disconnect; then their commands are published."""
    for number in range(DEVICES, DEVICES + AWAY):
        name = device_id("north", number)
        with Rogue(arena, name, name, expiry_s=24 * 3600) as device:
            assert device.code == 0, f"{name} was refused 0x{device.code:02x}"
            assert max(device.subscribe([f"devices/{name}/actions"])) < 0x80, "may not read its actions"
            device.leave()
    with Rogue(arena, "commander", "commander") as commander:
        for number in range(DEVICES, DEVICES + AWAY):
            topic = f"devices/{device_id('north', number)}/actions"
            codes = commander.publish_many([(topic, f"command {n}".encode()) for n in range(COMMANDS)])
            assert set(codes) == {0}, f"commands were refused: {codes}"


def fetch_commands(arena: Arena) -> dict[str, int]:
    """The devices reconnect: counts missing commands, and devices that could not connect."""
    missing, locked_out = 0, 0
    for number in range(DEVICES, DEVICES + 2 * AWAY):
        name = device_id("north", number)
        found: set[bytes] = set()
        try:
            with Rogue(arena, name, name, clean=False, expiry_s=60, wait_s=2.0) as device:
                locked_out += device.code != 0
                while number < DEVICES + AWAY and len(found) < COMMANDS:
                    for first, body in device.read():
                        if first >> 4 == PUBLISH:
                            at = 2 + int.from_bytes(body[:2], "big")
                            device.link.sendall(b"\x40\x02" + body[at : at + 2])
                            found.add(body[at + 3 :])
        except OSError:
            locked_out += not found
        missing += COMMANDS - len(found) if number < DEVICES + AWAY else 0
    return {"commands_missing": missing, "locked_out": locked_out}


def parse_statuses(arena: Arena) -> dict[str, int | str]:
    """Runs the status job's parser on the first statuses in the log, honest or not: rows, quarantine, and its error."""
    import pyarrow as pa

    from actions.status_rows import STATUS_FILTER, parse

    caller = Caller(arena, OPERATOR)
    counts: dict[str, int | str] = {"records": 0, "events": 0, "quarantined": 0}
    try:
        [answer] = caller.act("offsets", {"filters": [STATUS_FILTER]})
        for number, partition in json.loads(answer)["partitions"].items():
            ticket = {
                "partition": int(number),
                "filters": [STATUS_FILTER],
                "start": partition["log_start"],
                "end": partition["high_watermark"],
                "batch_rows": 500,
            }
            for chunk in itertools.islice(caller.get(ticket, wait_s=60.0), STATUS_BATCHES):
                rows = [{**row, "timestamp": 0} for row in chunk.data.drop_columns(["timestamp"]).to_pylist()]
                parsed = parse(rows, tenant="all", recorded_us=0)
                for found, kind in ((parsed.events, "events"), (parsed.quarantine, "quarantined")):
                    # The values must also fit a table: text is UTF-8, and integers have 64 bits.
                    pa.Table.from_pylist(list(found))
                    counts[kind] = int(counts[kind]) + len(found)
                counts["records"] = int(counts["records"]) + len(rows)
    except Exception as error:
        counts["failed"] = f"{type(error).__name__}: {error}"[:200]
    finally:
        caller.close()
    return counts


@dataclass(slots=True)
class Canary:
    """Whether newcomers of the honest tenant can still use every service, and how long each step takes."""

    times: list[tuple[float, str, float]] = field(default_factory=list)
    """When (monotonic), which step, seconds."""
    failed: list[tuple[float, str]] = field(default_factory=list)


def _steps(arena: Arena, number: int) -> dict[str, object]:
    def mqtt() -> None:
        with Rogue(arena, f"north-app-{number % 50}", "north-app", expiry_s=5, clean=False) as app:
            if app.code:
                raise OSError(f"connack 0x{app.code:02x}")
            worst = max(app.subscribe([f"$share/north-{number % 50}/north/work", f"north/{number % 50}/x"]))
            if worst >= 0x80:
                raise OSError(f"suback 0x{worst:02x}")
            code = app.publish(f"north/retained/{number % 100}", b"value", retain=True)
            if code >= 0x80:
                raise OSError(f"retained 0x{code:02x}")

    def flight() -> None:
        caller = Caller(arena, "north-app")
        try:
            caller.act("topics", {"filters": ["north/#"]})
            caller.act("commit", {"group": f"north-small-{number % 5}", "reader_epoch": 1})
        finally:
            caller.close()

    def admin() -> None:
        headers = {"Authorization": arena.basic(OPERATOR)}
        status, _ = request(arena, "GET", "/api/v1/status", headers=headers)
        if status != 200:
            raise OSError(f"http {status}")

    def health() -> None:
        status, _ = request(arena, "GET", "/healthz", headers={})
        if status != 200:
            raise OSError(f"http {status}")

    return {"mqtt": mqtt, "flight": flight, "admin": admin, "health": health}


def run_canary(arena: Arena, pipe: Connection) -> None:
    """Uses every service once a second until told to stop; then reports its `Canary`."""
    from attacks.arena import reason_of

    canary, number = Canary(), 0
    pipe.send("up")
    while not pipe.poll(CANARY_EVERY_S):
        number += 1
        for name, step in _steps(arena, number).items():
            start = time.monotonic()
            try:
                step()  # type: ignore[operator]
            except Exception as error:
                said = str(error) if type(error) is OSError else reason_of(error)
                canary.failed.append((start, f"{name}: {said}"))
            canary.times.append((start, name, time.monotonic() - start))
    pipe.send(canary)


def count_log(broker: BrokerProcess) -> dict[str, int]:
    """Lines of the broker's log that report a refusal, and panics."""
    with broker.log_file.open(errors="replace") as log:
        kinds = Counter("panics" if "panicked at" in line else "audit_lines" for line in log if _is_counted(line))
    return {name: kinds[name] for name in ("audit_lines", "panics")}


def _is_counted(line: str) -> bool:
    return "panicked at" in line or ("refused" in line and "door=" in line)


def failures(canary: Canary, during: list[tuple[float, float]]) -> dict[str, int]:
    """Failures by step and reason, of the steps that began in one of the periods."""
    return dict(Counter(why for at, why in canary.failed if any(start <= at < end for start, end in during)))
