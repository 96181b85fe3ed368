"""`headwater torture`: injects faults into a broker and reports whether anything that was acknowledged was lost."""

from __future__ import annotations

import re
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from broker_edge.errors import ConfigError
from broker_edge.local_cluster import NODES
from broker_edge.torture.cluster.faults import CLUSTER_FAULTS
from broker_edge.torture.cluster.sabotage import CLUSTER_SABOTAGES
from broker_edge.torture.faults import FAULTS
from broker_edge.torture.process import binary, faults_binary
from broker_edge.torture.runner import Outcome, Run, Tortured, run
from broker_edge.torture.sabotage import SABOTAGES, Sabotage
from headwater_cli._options import JsonOption
from headwater_cli._output import put, put_json, say

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LINES = 20  # of progress in a whole run


def torture(
    cycles: Annotated[int, typer.Option(min=1, help="Crashes, shared by the faults.")] = 200,
    faults: Annotated[
        str | None, typer.Option(metavar="NAME,…", help=f"Default: all that can run here. {', '.join(FAULTS)}.")
    ] = None,
    hurts: Annotated[str | None, typer.Option(hidden=True, help="The old name of --faults.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeats the random choices of a run.")] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after this time: 90s, 10m, 8h.")
    ] = None,
    life: Annotated[
        int | None, typer.Option(min=0, help="Only this life of the run that seed and faults give.")
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Acknowledged records that one cycle waits for at most.")] = 3_000,
    sabotage: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Make a mistake that must be found: {', '.join(SABOTAGES)}.")
    ] = None,
    cluster: Annotated[
        int | None,
        typer.Option(
            metavar="NODES",
            show_default=False,
            help=f"Torture a cluster of {len(NODES)} brokers with etcd, with faults of its own: "
            f"{', '.join(CLUSTER_FAULTS)}; mistakes: {', '.join(CLUSTER_SABOTAGES)}.",
        ),
    ] = None,
    broker: Annotated[Path | None, typer.Option(metavar="PATH", help="headwaterd (default: HEADWATERD).")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the logs are made (default: a folder in /tmp).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Load a broker, inject faults, start it again, and check that no acknowledged record is lost or changed."""
    if cluster is not None and cluster != len(NODES):
        raise typer.BadParameter(f"--cluster {cluster}: a cluster has {len(NODES)} nodes, write --cluster {len(NODES)}")
    program = broker or binary()
    if not program.exists():
        raise ConfigError(f"{program} is missing: name the broker with --broker or HEADWATERD")
    faults_program = faults_binary(program)
    if hurts is not None:
        say("--hurts is now --faults; the next release removes the old name")
    known: Mapping[str, type[Tortured]] = FAULTS if cluster is None else CLUSTER_FAULTS
    sabotages = SABOTAGES if cluster is None else CLUSTER_SABOTAGES
    wish = hurts if faults is None else faults
    names = _chosen(wish, sabotage, known=known, sabotages=sabotages, has_faults=faults_program.exists())
    wanted = Run(
        folder=(data_dir or Path(tempfile.mkdtemp(prefix="headwater-torture-"))).absolute(),
        program=program,
        faults_program=faults_program if faults_program.exists() else None,
        faults={name: known[name] for name in names},
        seed=secrets.randbelow(1 << 32) if seed is None else seed,
        cycles=cycles,
        seconds=None if for_ is None else _seconds(for_),
        life=life,
        sabotage=sabotage,
        records_max=records,
        nodes=cluster or 1,
        sabotages=sabotages,
    )
    what = "" if cluster is None else f"a cluster of {cluster} of "
    say(f"seed {wanted.seed}: {cycles} cycles of {', '.join(names)} on {what}{program}")
    with ExitStack() as stack:
        # As Ctrl-C: otherwise the brokers would outlive this process, and loop images stay mounted.
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        outcome = run(wanted, _progress(stack, wanted))
    if data_dir is None and not outcome.kept:
        wanted.folder.rmdir()
    if json:
        put_json(outcome.to_json())
    else:
        _show(outcome)
    if not outcome.clean:
        raise typer.Exit(1)
    if outcome.is_interrupted:
        raise typer.Exit(130)


def _chosen(
    faults: str | None,
    sabotage: str | None,
    *,
    known: Mapping[str, type[Tortured]],
    sabotages: Mapping[str, Sabotage],
    has_faults: bool,
) -> list[str]:
    """The faults to run. Faults that were not named and cannot run here are skipped, with a message."""
    if sabotage is not None and sabotage not in sabotages:
        raise typer.BadParameter(f"`{sabotage}` is not one of {', '.join(sabotages)}")
    if faults is None and sabotage is not None:
        faults = sabotages[sabotage].fault
    if sabotage is not None and not has_faults:
        raise ConfigError("--sabotage needs a fault build: `make torture` makes headwaterd-faults beside headwaterd")
    names = list(dict.fromkeys(faults.split(","))) if faults else list(known)
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"`{name}` is not one of {', '.join(known)}")
    able = []
    for name in names:
        lacks = known[name].lacks()
        if known[name].needs_fault_build and not has_faults:
            lacks.append("a fault build is needed: `make torture` makes headwaterd-faults beside headwaterd")
        if lacks and faults:
            raise ConfigError(f"{name} can not run here: {'; '.join(lacks)}")
        if lacks:
            say(f"without {name}: {'; '.join(lacks)}")
        else:
            able.append(name)
    if not able:
        raise ConfigError("no fault can run here: see above what is missing")
    return able


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise typer.BadParameter(f"`{text}` is not a time: write 90s, 10m or 8h")
    return float(match[1]) * _UNITS[match[2]]


class _Lines:
    """Prints a line of progress at regular intervals of cycles."""

    def __init__(self, total: int) -> None:
        self._every = max(1, total // _LINES)
        self._said = 0

    def __call__(self, outcome: Outcome) -> None:
        if outcome.cycles // self._every > self._said:
            self._said = outcome.cycles // self._every
            found = sum(outcome.counts().values())
            say(f"{outcome.cycles} cycles, {outcome.acked} acknowledged, {found} findings, {outcome.seconds:.0f} s")


class _Bar:
    """A bar on a terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def __call__(self, outcome: Outcome) -> None:
        text = f"{outcome.acked} acknowledged, {sum(outcome.counts().values())} findings"
        self._progress.update(self._task, completed=outcome.cycles, description=text)


def _progress(stack: ExitStack, wanted: Run) -> _Lines | _Bar:
    if not sys.stderr.isatty():
        return _Lines(wanted.cycles)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return _Bar(stack.enter_context(Progress(*columns, console=Console(stderr=True))), wanted.cycles)


def _show(outcome: Outcome) -> None:
    for name, one in outcome.tallies.items():
        found = sum(one.report.counts.values()) + len(one.report.violations)
        counts = f"{one.cycles} cycles, {one.report.acked} acknowledged, {one.report.restarts} restarts"
        put(f"{name}: {counts}, {found} findings")
    words = ", ".join(f"{count} {word}" for word, count in outcome.counts().items())
    counts = f"{outcome.cycles} cycles, {outcome.acked} acknowledged in {outcome.seconds:.0f} s"
    put(f"seed {outcome.run.seed}: {counts}: {words}")
    for kept in outcome.kept:
        put(f"{kept.fault}, life {kept.life}, kept in {kept.folder}; again: {kept.command}")
        for finding in kept.findings:
            put(f"  {finding}")


def register(app: typer.Typer) -> None:
    app.command()(torture)
