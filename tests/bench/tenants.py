"""Two tenants on one broker, one of them hostile in every way: what the other notices.

    python tests/bench/tenants.py [--seconds 600] [--rounds 5] [--only NAME,NAME] [--json]

Both tenants have 500 devices with users of their own that publish at a fixed rate (open loop, QoS 1). A reader of the
honest one follows over Flight and checks that each acknowledged record is read. In slices A the hostile tenant also
attacks this broker in all ways of `attacks`; in slices B the same attackers attack a second broker with the same
settings, so that the processor time they take from the machine is in both. `--seconds` are those of all slices A; the
slices B take as long again.

Prints the honest tenant's rate and latencies in A and B and their ratio, what was lost, memory, what each attack tried
and was refused, and the broker's table of refusals. Exit code 1: something was lost, the rate was not kept, somebody
got what is not theirs, or a broker died. Needs a built broker (HEADWATERD, or `make build`). `--no-tenants` writes an
ACL without the words that 0.1 does not know.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests", ROOT / "tests" / "bench"):
    sys.path.insert(0, str(folder))

from attacks import ATTACKS  # noqa: E402
from attacks.arena import OPERATOR, Arena, Doors  # noqa: E402
from attacks.runner import Horde, Tally  # noqa: E402
from herd import cpu_s, percentile_ms, status  # noqa: E402
from tenants_load import Load, Read, compare, run_fleet, run_reader  # noqa: E402
from tenants_world import (  # noqa: E402
    FILES_MAX,
    Canary,
    audit_lines,
    failures,
    fetch_commands,
    leave_commands,
    make_users,
    run_canary,
    settings,
)

from broker_edge.torture.process import BrokerProcess, binary  # noqa: E402

QUIET_S = 5.0
LATE_S = 5.0
"""A message that is acknowledged later does not count for the rate."""
SETTLE_S = 3.0
"""Between two slices, for what an attack leaves; it counts for the rate, and for no latency."""
UP_S = 120.0


@dataclass(slots=True)
class Slice:
    """A stretch of time, and what was measured on the honest broker in it."""

    kind: str
    start: float = 0.0
    end: float = 0.0
    cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    rss_max_mib: float = 0.0
    rss_end_mib: float = 0.0
    files_max: int = 0
    attacks: dict[str, Tally] = field(default_factory=dict)


def doors(broker: BrokerProcess) -> Doors:
    return Doors(broker.mqtt, broker.flight, broker.admin, broker.listener("ws"))


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


class Helper:
    """A process that tells when it is up, and its result when it is told to stop."""

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
            raise SystemExit(f"{self._name} says nothing")
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
    finally:
        for helper in helpers:
            helper.kill()
    return report(options, slices, north, south, read, watched) | {
        **commands,
        "refusals": refusals,
        "audit_lines": audit_lines(honest),
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


def latencies(load: Load, during: list[Slice]) -> dict[str, float]:
    found = sorted(
        seconds
        for due, seconds in zip(load.due, load.latency, strict=True)
        if any(part.start <= due < part.end for part in during)
    )
    if not found:
        return {"p50_ms": 0.0, "p99_ms": 0.0, "p999_ms": 0.0, "max_ms": 0.0}
    figures = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {name: percentile_ms(found, share) for name, share in figures.items()} | {"max_ms": found[-1] * 1000}


def rate_percent(load: Load, rate: float, part: Slice) -> float:
    """Of the messages due in a slice, those that were acknowledged in time."""
    numbers = range(load.scheduled)
    due = sum(part.start <= load.first_due + n / rate < part.end for n in numbers)
    in_time = sum(
        part.start <= due < part.end and seconds <= LATE_S for due, seconds in zip(load.due, load.latency, strict=True)
    )
    return 100 * in_time / due if due else 0.0


def merged(tallies: list[dict[str, Tally]]) -> dict[str, Tally]:
    found: dict[str, Counter[str]] = {}
    for tally in tallies:
        for name, counts in tally.items():
            found.setdefault(name, Counter()).update(counts)
    return {name: dict(counts) for name, counts in found.items()}


def report(
    options: argparse.Namespace, slices: list[Slice], north: Load, south: Load, read: Read, canary: Canary
) -> dict[str, Any]:
    by_kind = {kind: [part for part in slices if part.kind == kind] for kind in ("quiet", "A", "B")}
    figures: dict[str, Any] = {}
    for kind, parts in by_kind.items():
        spans = [(part.start, part.end) for part in parts]
        times = [seconds for at, _, seconds in canary.times if any(start <= at < end for start, end in spans)]
        seconds = sum(part.end - part.start for part in parts)
        figures[kind] = {
            **latencies(north, parts),
            "rate_percent": min(rate_percent(north, options.rate, part) for part in parts),
            "south_rate_percent": min(rate_percent(south, options.rate, part) for part in parts),
            "cores": sum(part.cpu_s for part in parts) / seconds,
            "second_cores": sum(part.other_cpu_s for part in parts) / seconds,
            "rss_max_mib": [round(part.rss_max_mib) for part in parts],
            "rss_end_mib": [round(part.rss_end_mib) for part in parts],
            "files_max": max(part.files_max for part in parts),
            "newcomers_failed": failures(canary, spans),
            "newcomers_max_s": max(times, default=0.0),
            "newcomers": len(times),
        }
    lost, doubled = compare(north.acknowledged, read.seen)
    unacknowledged = north.scheduled - sum(map(sum, north.acknowledged.values()))
    attacks = merged([part.attacks for part in by_kind["A"]])
    return {
        "slices": figures,
        "p99_ratio": figures["A"]["p99_ms"] / max(figures["B"]["p99_ms"], 0.001),
        "p999_ratio": figures["A"]["p999_ms"] / max(figures["B"]["p999_ms"], 0.001),
        "scheduled": north.scheduled,
        "unacknowledged": unacknowledged,
        "lost": lost,
        "doubled": doubled,
        "resent": north.repeated,
        "connections_lost": north.lost_connections,
        "refused": dict(north.refused),
        "forged": north.forged,
        "read": read.records,
        "read_again": dict(read.again),
        "attacks": attacks,
        "attacks_on_second": merged([part.attacks for part in by_kind["B"]]),
    }


def faults(found: dict[str, Any]) -> list[str]:
    """Why the exit code is 1."""
    if "died" in found:
        return [f"the {found['died']} broker died"]
    said = []
    for name in ("lost", "unacknowledged", "forged", "commands_missing", "locked_out"):
        if found[name]:
            said.append(f"{name}: {found[name]}")
    for kind in ("A", "B"):
        if found["slices"][kind]["rate_percent"] < 100:
            said.append(f"rate in {kind}: {found['slices'][kind]['rate_percent']:.2f} %")
    for name, tally in found["attacks"].items():
        said += [
            f"{name}: {key} ({count})" for key, count in tally.items() if key.startswith(("BREACH", "given: BROKEN"))
        ]
    return said


def show(found: dict[str, Any]) -> None:
    if "died" in found:
        print(found["last_words"])
        return
    print(
        "| slice | rate % | p50 ms | p99 ms | p99.9 ms | max ms | cores | second | memory max, MiB | files | south % |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for kind, one in found["slices"].items():
        spread = "-".join(str(each) for each in (min(one["rss_max_mib"]), max(one["rss_max_mib"])))
        print(
            f"| {kind} | {one['rate_percent']:.2f} | {one['p50_ms']:.2f} | {one['p99_ms']:.2f} | {one['p999_ms']:.2f} "
            f"| {one['max_ms']:.0f} | {one['cores']:.2f} | {one['second_cores']:.2f} | {spread} | {one['files_max']} "
            f"| {one['south_rate_percent']:.2f} |"
        )
    print(f"\np99 A / B: {found['p99_ratio']:.2f}, p99.9 A / B: {found['p999_ratio']:.2f}")
    for kind, one in found["slices"].items():
        newcomers = f"newcomers in {kind}: {one['newcomers']}, slowest {one['newcomers_max_s']:.2f} s"
        print(f"{newcomers}, failed {one['newcomers_failed']}")
    names = (
        "scheduled",
        "unacknowledged",
        "lost",
        "doubled",
        "resent",
        "connections_lost",
        "refused",
        "forged",
        "read",
    )
    for name in (*names, "read_again", "commands_missing", "locked_out", "audit_lines", "log_mib"):
        print(f"{name:18} {found[name]}")
    print(f"memory in A, MiB   {found['slices']['A']['rss_max_mib']}, at the end {found['slices']['A']['rss_end_mib']}")
    refusals = found["refusals"]
    print(f"refusals           {refusals.get('rows')} rows, {refusals.get('bytes')} bytes {refusals.get('error', '')}")
    for name, count in list(refusals.get("counts", {}).items())[:20]:
        print(f"  {count:9,} {name}")
    print("\n| attack | tried | what came of it |\n|---|---|---|")
    for name, tally in found["attacks"].items():
        rest = ", ".join(f"{key} {count:,}" for key, count in sorted(tally.items()) if key != "tried")
        print(f"| {name} | {tally.get('tried', 0):,} | {rest} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of all slices A, and of all slices B")
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument("--rounds", type=int, default=5, help="slices of each kind")
    parser.add_argument("--quiet", type=float, default=QUIET_S, help="seconds without attackers, before")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second of each tenant")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--files", type=int, default=FILES_MAX, help="file descriptors of each broker")
    parser.add_argument("--only", default="", metavar="NAMES", help=f"of: {', '.join(ATTACKS)}")
    parser.add_argument("--without", default="", metavar="NAMES")
    parser.add_argument("--program", type=Path, help="another headwaterd")
    parser.add_argument("--no-tenants", dest="tenants", action="store_false", help="without the words of tenants")
    parser.add_argument("--dir", type=Path, help="where the data goes, on a disk")
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
