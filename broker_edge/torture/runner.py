"""A whole run: lives of each fault in turn, counts by fault, and the kept folders of lives with findings.

A *life* is one data folder from its first start to its last check, some tens of cycles. A folder without findings is
removed; one with findings is kept, with the command to repeat it.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

import pyarrow as pa
import pyarrow.flight as flight

from broker_edge.errors import HeadwaterError
from broker_edge.torture.life import Bench
from broker_edge.torture.process import BrokerError
from broker_edge.torture.report import OF_CLUSTERS, Finding, Report
from broker_edge.torture.sabotage import SABOTAGES, Sabotage

# After this many lives with findings, further ones would only repeat them.
FOUND_MAX = 5
LIVES_MIN = 3  # Per fault, so that one of them has retention.


class Tortured(Protocol):
    """A life: of one broker, or of a cluster. Each class injects one fault."""

    name: ClassVar[str]
    cycles: ClassVar[int]
    needs_fault_build: ClassVar[bool]
    bench: Bench

    def __init__(self, bench: Bench) -> None: ...

    @staticmethod
    def lacks() -> list[str]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def report(self) -> Report: ...

    def last_words(self) -> str: ...

    def cycle(self, number: int) -> None: ...

    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """The request. The faults, by name, share `cycles`; `seconds` ends the run earlier; `life` runs only that one.
    `nodes` are the brokers of a life: 1, or the 3 of a cluster."""

    folder: Path
    program: Path
    faults_program: Path | None
    faults: Mapping[str, type[Tortured]]
    seed: int
    cycles: int
    seconds: float | None = None
    life: int | None = None
    sabotage: str | None = None
    records_max: int = 3_000
    nodes: int = 1
    sabotages: Mapping[str, Sabotage] = field(default_factory=lambda: SABOTAGES)


@dataclass(slots=True)
class Tally:
    """The result of one fault."""

    cycles: int = 0
    report: Report = field(default_factory=lambda: Report(0))


@dataclass(frozen=True, slots=True)
class Kept:
    """A life with findings: its folder and the command to repeat it."""

    fault: str
    life: int
    folder: Path
    command: str
    findings: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """Counts so far; complete when the run has ended, also after Ctrl-C."""

    run: Run
    tallies: dict[str, Tally] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    running: Report | None = None  # The report of the current life.
    is_interrupted: bool = False
    seconds: float = 0.0

    @property
    def cycles(self) -> int:
        return sum(one.cycles for one in self.tallies.values())

    @property
    def acked(self) -> int:
        ended = sum(one.report.acked for one in self.tallies.values())
        return ended + (self.running.acked if self.running else 0)

    @property
    def clean(self) -> bool:
        return not self.kept and all(one.report.clean for one in self.tallies.values())

    def counts(self) -> dict[Finding, int]:
        """Findings by word, over all faults."""
        words = [word for word in Finding if self.run.nodes > 1 or word not in OF_CLUSTERS]
        counts = {word: sum(one.report.counts[word] for one in self.tallies.values()) for word in words}
        counts[Finding.PROTOCOL] += sum(len(one.report.violations) for one in self.tallies.values())
        return counts

    def to_json(self) -> dict[str, Any]:
        """As one object; `hurts` and `hurt` are the old names of `faults` and `fault`, for one release."""
        by_fault = {name: {"cycles": one.cycles, **one.report.to_json()} for name, one in self.tallies.items()}
        return {
            "seed": self.run.seed,
            "cycles": self.cycles,
            "acknowledged": self.acked,
            "seconds": round(self.seconds, 1),
            "interrupted": self.is_interrupted,
            "sabotage": self.run.sabotage,
            "findings": {finding.value: count for finding, count in self.counts().items()},
            "faults": by_fault,
            "hurts": by_fault,
            "kept": [
                {
                    "fault": one.fault,
                    "hurt": one.fault,
                    "life": one.life,
                    "folder": str(one.folder),
                    "repeat": one.command,
                    "findings": list(one.findings),
                }
                for one in self.kept
            ],
        }


def run(wanted: Run, on_cycle: Callable[[Outcome], None]) -> Outcome:
    """Runs until the cycles are done, the time is over, there are too many findings, or Ctrl-C."""
    outcome = Outcome(wanted, {name: Tally(report=Report(wanted.seed)) for name in wanted.faults})
    began = time.monotonic()

    def is_over() -> bool:
        outcome.seconds = time.monotonic() - began
        return wanted.seconds is not None and outcome.seconds >= wanted.seconds

    try:
        for life, fault, cycles in _lives(wanted):
            _live(outcome, life, fault, cycles, is_over=is_over, on_cycle=on_cycle)
            if is_over() or _is_enough(wanted, outcome.tallies[fault].report, kept=len(outcome.kept)):
                break
    except KeyboardInterrupt:
        outcome.is_interrupted = True
    is_over()
    return outcome


def _is_enough(wanted: Run, report: Report, *, kept: int = FOUND_MAX) -> bool:
    """Whether there are enough findings. A sabotaged run continues until the mistake is found under its name."""
    if wanted.sabotage is not None:
        return any(report.counts[word] for word in wanted.sabotages[wanted.sabotage].words)
    return not report.clean and kept >= FOUND_MAX


def _lives(wanted: Run) -> Iterator[tuple[int, str, int]]:
    """Number, fault and cycles of each life, the faults in turn."""
    names = list(wanted.faults)
    quota = math.ceil(wanted.cycles / len(names))
    if wanted.life is not None:
        name = names[wanted.life % len(names)]
        yield wanted.life, name, min(quota, wanted.faults[name].cycles)
        return
    left = dict.fromkeys(names, quota)
    life = 0
    while any(left.values()):
        name = names[life % len(names)]
        cycles = min(left[name], wanted.faults[name].cycles, max(2, math.ceil(quota / LIVES_MIN)))
        left[name] -= cycles
        if cycles:
            yield life, name, cycles
        life += 1


def _live(
    outcome: Outcome,
    number: int,
    fault: str,
    cycles: int,
    *,
    is_over: Callable[[], bool],
    on_cycle: Callable[[Outcome], None],
) -> None:
    wanted, tally = outcome.run, outcome.tallies[fault]
    folder = wanted.folder / f"life-{number:04}-{fault}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bench = Bench(
        folder=folder,
        program=wanted.program,
        faults_program=wanted.faults_program,
        seed=wanted.seed,
        life=number,
        has_retention=number // len(wanted.faults) % LIVES_MIN == LIVES_MIN - 1,
        sabotage=wanted.sabotage,
        records_max=wanted.records_max,
    )
    life = wanted.faults[fault](bench)
    try:
        with life:
            outcome.running = life.report
            try:
                for cycle in range(cycles):
                    life.cycle(cycle)
                    tally.cycles += 1
                    on_cycle(outcome)
                    if is_over() or _is_enough(wanted, life.report):
                        break
                if life.report.clean:
                    life.finish()
            except (BrokerError, TimeoutError, OSError, pa.ArrowException, flight.FlightError, HeadwaterError) as error:
                if not life.report.counts[Finding.STUCK]:
                    life.report.add(Finding.STUCK, f"{type(error).__name__}: {error}; {life.last_words()}")
    finally:
        outcome.running = None
        tally.report.merge(life.report)
        if life.report.clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _keep(outcome, life, cycles)


def _keep(outcome: Outcome, life: Tortured, cycles: int) -> None:
    wanted = outcome.run
    command = f"headwater torture --faults {','.join(wanted.faults)} --seed {wanted.seed} --life {life.bench.life}"
    command += f" --cluster {wanted.nodes}" if wanted.nodes > 1 else ""
    command += f" --cycles {cycles * len(wanted.faults)}"
    command += f" --sabotage {wanted.sabotage}" if wanted.sabotage else ""
    kept = Kept(life.name, life.bench.life, life.bench.folder, command, tuple(life.report.findings()))
    (kept.folder / "findings.txt").write_text("\n".join([*kept.findings, "", f"repeat: {command}", ""]))
    outcome.kept.append(kept)
