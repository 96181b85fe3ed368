"""Shows the progress of the jobs: a live table on a terminal, otherwise JSON lines. Data on stdout, alerts on
stderr."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker_edge.escape import json_line, shown
from pipelines.jobs.alerts import Alert
from pipelines.jobs.runner import JobView


class JsonLines:
    """One JSON object per line, written only when something about a job has changed."""

    def __init__(self, out: TextIO, talk: TextIO) -> None:
        self._out, self._talk = out, talk
        self._last: dict[str, JobView] = {}

    def show(self, views: Sequence[JobView]) -> None:
        for view in views:
            if self._last.get(view.job) != view:
                self._last[view.job] = view
                self._out.write(json_line({"at": _now(), **_flat(view)}, ascii_only=True) + "\n")
        self._out.flush()

    def alert(self, alert: Alert) -> None:
        self._out.write(json_line({"at": _now(), "alert": asdict(alert)}, ascii_only=True) + "\n")
        self._out.flush()
        self._talk.write(f"alert: {shown(alert.sentence)}\n")
        self._talk.flush()

    def stopped(self) -> None:
        """The last line of a run that a signal has ended, when nothing of it is left."""
        self._out.write(json_line({"at": _now(), "state": "stopped"}, ascii_only=True) + "\n")
        self._out.flush()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LiveTable:
    """One row per job, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4)

    def show(self, views: Sequence[JobView]) -> None:
        table = Table("job", "state", "batch", "rows", "rows/s", "batch s", "lag", "restarts", box=box.SIMPLE_HEAD)
        for view in views:
            one = view.progress
            numbers = (one.batch, one.rows, _round(one.rows_per_s), _round(one.batch_s), one.lag_records, view.restarts)
            state = str(view.state) if view.said is None else f"{view.state}: {view.said}"
            table.add_row(view.job, Text(shown(state)), *("" if value is None else str(value) for value in numbers))
        self._live.update(table)

    def alert(self, alert: Alert) -> None:
        self._live.console.print(f"alert: {shown(alert.sentence)}", markup=False, highlight=False)

    def stopped(self) -> None:
        self._live.console.print("stopped")

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _flat(view: JobView) -> dict[str, object]:
    fields = asdict(view)
    return {**{name: value for name, value in fields.items() if name != "progress"}, **fields["progress"]}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
