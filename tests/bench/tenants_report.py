"""Evaluates the measurements of `tenants.py`: figures, faults, and tables."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from attacks.runner import Tally
from herd import percentile_ms
from tenants_load import Load, Read, compare
from tenants_world import Canary, failures

WHOLE = (
    "scheduled",
    "unacknowledged",
    "lost",
    "doubled",
    "resent",
    "connections_lost",
    "refused",
    "forged",
    "read",
    "read_again",
    "commands_missing",
    "locked_out",
    "statuses",
    "panics",
    "audit_lines",
    "log_mib",
)
"""Figures of the whole run, in display order."""
LATE_S = 5.0
"""A message that is acknowledged later does not count for the rate."""


@dataclass(slots=True)
class Slice:
    """A period of time, and the measurements on the honest broker in it."""

    kind: str
    start: float = 0.0
    end: float = 0.0
    cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    attackers_cpu_s: float = 0.0
    rss_max_mib: float = 0.0
    rss_end_mib: float = 0.0
    files_max: int = 0
    attacks: dict[str, Tally] = field(default_factory=dict)


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
    """The percentage of the messages due in a slice that were acknowledged in time."""
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
            "attackers_cores": sum(part.attackers_cpu_s for part in parts) / seconds,
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
    """The reasons for exit code 1."""
    if "died" in found:
        return [f"the {found['died']} broker died"]
    said = []
    for name in ("lost", "unacknowledged", "forged", "commands_missing", "locked_out", "panics"):
        if found[name]:
            said.append(f"{name}: {found[name]}")
    if "failed" in found["statuses"]:
        said.append(f"the status job ends with {found['statuses']['failed']}")
    for kind in ("A", "B"):
        if found["slices"][kind]["rate_percent"] < 100:
            said.append(f"rate in {kind}: {found['slices'][kind]['rate_percent']:.2f} %")
    shut_out = found["slices"]["A"]["newcomers_failed"]
    said += [f"newcomers shut out: {why} ({count})" for why, count in shut_out.items()]
    for name, tally in found["attacks"].items():
        said += [
            f"{name}: {key} ({count})" for key, count in tally.items() if key.startswith(("BREACH", "given: BROKEN"))
        ]
    return said


def show(found: dict[str, Any]) -> None:
    if "died" in found:
        print(found["last_words"])
        return
    names = "rate %", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "cores", "second", "attackers", "memory, MiB", "files"
    print("| slice | " + " | ".join(names) + " | south % |\n|" + "---|" * (len(names) + 2))
    for kind, one in found["slices"].items():
        spread = "-".join(str(each) for each in (min(one["rss_max_mib"]), max(one["rss_max_mib"])))
        times = " | ".join(f"{one[name]:.2f}" for name in ("rate_percent", "p50_ms", "p99_ms", "p999_ms", "max_ms"))
        cores = " | ".join(f"{one[name]:.2f}" for name in ("cores", "second_cores", "attackers_cores"))
        print(f"| {kind} | {times} | {cores} | {spread} | {one['files_max']} | {one['south_rate_percent']:.2f} |")
    print(f"\np99 A / B: {found['p99_ratio']:.2f}, p99.9 A / B: {found['p999_ratio']:.2f}")
    for kind, one in found["slices"].items():
        newcomers = f"newcomers in {kind}: {one['newcomers']}, slowest {one['newcomers_max_s']:.2f} s"
        print(f"{newcomers}, failed {one['newcomers_failed']}")
    for name in WHOLE:
        print(f"{name:18} {found[name]}")
    print(f"memory in A, MiB   {found['slices']['A']['rss_max_mib']}, at the end {found['slices']['A']['rss_end_mib']}")
    refusals = found["refusals"]
    print(f"refusals           {refusals.get('rows')} rows, {refusals.get('bytes')} bytes {refusals.get('error', '')}")
    for name, count in list(refusals.get("counts", {}).items())[:20]:
        print(f"  {count:9,} {name}")
    print("\n| attack | tried | outcome |\n|---|---|---|")
    for name, tally in found["attacks"].items():
        rest = ", ".join(f"{key} {count:,}" for key, count in sorted(tally.items()) if count and key != "tried")
        print(f"| {name} | {tally.get('tried', 0):,} | {rest} |")
