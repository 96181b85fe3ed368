"""Two tenants on one broker, one of them hostile in every way: the effect on the other.

    python tests/bench/tenants.py [--seconds 600] [--rounds 5] [--only NAME,NAME] [--json]

Both tenants have 500 devices with their own users, which publish at a fixed rate (open loop, QoS 1). A reader of the
honest tenant follows over Flight and checks that each acknowledged record is read. In slices A the hostile tenant also
attacks this broker in all ways of `attacks`. In slices B the same attackers attack a second broker with the same
settings, so that both include the processor time that attackers take from the machine. `--seconds` is the total of all
slices A; the slices B take the same time again.

Prints the honest tenant's rate and latencies in A and B and their ratio, lost messages, memory, attempts and refusals
of each attack, and the broker's table of refusals. Exit code 1: messages were lost, the rate was not reached, a tenant
got another tenant's data, or a broker died. Needs a built broker (HEADWATERD, or `make build`). `--no-tenants` writes
an ACL without the keywords that 0.1 does not support.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests", ROOT / "tests" / "bench"):
    sys.path.insert(0, str(folder))

from attacks import ATTACKS  # noqa: E402
from attacks.arena import OPERATOR, Arena, Doors  # noqa: E402
from attacks.runner import Horde  # noqa: E402
from herd import cpu_s, status  # noqa: E402
from tenants_load import Load, Read, run_fleet, run_reader  # noqa: E402
from tenants_report import Slice, faults, report, show  # noqa: E402
from tenants_world import (  # noqa: E402
    FILES_MAX,
    Canary,
    count_log,
    fetch_commands,
    leave_commands,
    make_users,
    parse_statuses,
    run_canary,
    settings,
)

from broker_edge.torture.process import BrokerProcess, binary  # noqa: E402

QUIET_S = 5.0
SETTLE_S = 3.0
"""Pause between two slices for the aftermath of an attack; it counts for the rate, but not for latencies."""
UP_S = 120.0


def doors(broker: BrokerProcess) -> Doors:
    return Doors(broker.mqtt, broker.flight, broker.admin, broker.listener("ws"))


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


class Helper:
    """A process that reports when it is running, and returns its result when it is told to stop."""

    def __init__(self, what: Callable[..., None], *arguments: object) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._name = what.__name__
        self._process = fork.Process(target=what, args=(*arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def is_up(self) -> None:
        self._receive(UP_S)

    def stop(self) -> Any:
        self._pipe.send("stop")
        found = self._receive(UP_S)
        self._process.join()
        return found

    def _receive(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise SystemExit(f"{self._name} does not respond")
        try:
            return self._pipe.recv()
        except EOFError:
            raise SystemExit(f"{self._name} has ended") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def run_slice(
    kind: str, seconds: float, honest: BrokerProcess, target: BrokerProcess, world: World, seed: int
) -> Slice:
    part = Slice(kind)
    horde = Horde(doors(target), world.passwords, world.attacks if kind != "quiet" else [], seed)
    part.start = time.monotonic()
    cpu, other = cpu_s(honest.pid), cpu_s(world.second.pid)
    try:
        while time.monotonic() < part.start + seconds and honest.is_running:
            time.sleep(0.25)
            horde.look()
            part.rss_max_mib = max(part.rss_max_mib, status(honest.pid, "status", "VmRSS") / 1024)
            part.files_max = max(part.files_max, open_files(honest.pid))
    finally:
        part.attackers_cpu_s = horde.cpu_s()
        part.attacks = horde.end()
        part.end = time.monotonic()
    if honest.is_running and world.second.is_running:
        part.cpu_s, part.other_cpu_s = cpu_s(honest.pid) - cpu, cpu_s(world.second.pid) - other
        part.rss_end_mib = status(honest.pid, "status", "VmRSS") / 1024
    time.sleep(SETTLE_S)
    return part


@dataclass(slots=True)
class World:
    passwords: dict[str, str]
    attacks: list[str]
    honest: BrokerProcess
    second: BrokerProcess


@contextlib.contextmanager
def two_brokers(options: argparse.Namespace, folder: Path) -> Iterator[World]:
    program = options.program or binary()
    passwords = make_users(program, folder / "users")
    config = settings(folder, has_tenants=options.tenants) | dict(pair.split("=", 1) for pair in options.set)
    with contextlib.ExitStack() as stack:
        made = []
        for name in ("honest", "second"):
            broker = BrokerProcess(
                data_dir=folder / name,
                settings=config,
                log_file=folder / f"{name}.txt",
                program=program,
                files_max=options.files,
            )
            stack.enter_context(broker)
            broker.start()
            made.append(broker)
        names = options.only.split(",") if options.only else list(ATTACKS)
        yield World(passwords, [name for name in names if name not in options.without.split(",")], *made)


def measure(options: argparse.Namespace, world: World) -> dict[str, Any]:
    honest = world.honest
    arena = Arena(doors(honest), world.passwords, 0)
    leave_commands(arena)
    leave_commands(Arena(doors(world.second), world.passwords, 0))
    basic = arena.basic("north-reader")
    fleets = [
        Helper(run_fleet, honest.mqtt, tenant, world.passwords, options.rate, options.size)
        for tenant in ("north", "south")
    ]
    reader = Helper(run_reader, honest.flight, "north-reader", basic, "north")
    canary = Helper(run_canary, arena)
    helpers = [*fleets, reader, canary]
    try:
        for helper in helpers:
            helper.is_up()
        slices = [run_slice("quiet", options.quiet, honest, honest, world, 0)]
        length = options.seconds / options.rounds
        for number in range(options.rounds):
            for kind, target in (("A", honest), ("B", world.second)):
                slices.append(run_slice(kind, length, honest, target, world, number))
                print(f"{kind} {number + 1} of {options.rounds}", file=sys.stderr)
                if not honest.is_running or not world.second.is_running:
                    return {"died": "honest" if not honest.is_running else "second", "last_words": last_words(world)}
        refusals = table_of_refusals(honest, arena)
        watched: Canary = canary.stop()
        north: Load = fleets[0].stop()
        south: Load = fleets[1].stop()
        read: Read = reader.stop()
        commands = fetch_commands(arena)
        statuses = parse_statuses(arena)
    finally:
        for helper in helpers:
            helper.kill()
    return report(options, slices, north, south, read, watched) | {
        **commands,
        "statuses": statuses,
        "refusals": refusals,
        **count_log(honest),
        "log_mib": honest.log_file.stat().st_size / (1 << 20),
    }


def last_words(world: World) -> str:
    return (world.second if world.honest.is_running else world.honest).last_words()


def table_of_refusals(broker: BrokerProcess, arena: Arena) -> dict[str, Any]:
    """Rows and bytes of `/api/v1/refusals`, and the largest counts."""
    url = "http://{}:{}/api/v1/refusals".format(*broker.admin)
    asked = urllib.request.Request(url, headers={"Authorization": arena.basic(OPERATOR)})
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            body = answer.read()
    except OSError as error:
        return {"error": str(error)}
    rows = json.loads(body)["users"]
    kinds: Counter[str] = Counter()
    for row in rows:
        for one in row["refused"]:
            kinds[f"{row['user']}: {one['door']} {one['act']} {one['reason']}"] += one["count"]
    return {"rows": len(rows), "bytes": len(body), "counts": dict(kinds.most_common(40))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="total of all slices A, and of all slices B")
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument("--rounds", type=int, default=5, help="slices of each kind")
    parser.add_argument("--quiet", type=float, default=QUIET_S, help="seconds without attackers before the slices")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages per second of each tenant")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--files", type=int, default=FILES_MAX, help="file descriptors of each broker")
    parser.add_argument("--only", default="", metavar="NAMES", help=f"of: {', '.join(ATTACKS)}")
    parser.add_argument("--without", default="", metavar="NAMES")
    parser.add_argument("--program", type=Path, help="another headwaterd")
    parser.add_argument("--no-tenants", dest="tenants", action="store_false", help="omit the keywords for tenants")
    parser.add_argument("--dir", type=Path, help="folder for the data, on a disk")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the brokers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.minutes:
        options.seconds = options.minutes * 60
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(dir=options.dir) as folder, two_brokers(options, Path(folder)) as world:
        found = measure(options, world)
    found["faults"] = faults(found)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)
    for fault in found["faults"]:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
    raise SystemExit(130)
