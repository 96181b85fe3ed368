"""Shows a rollout while it runs: a live table with bars on a terminal, otherwise one line per change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from broker_edge.errors import DeadlineError, NotFoundError
from headwater_cli._missing import unprocessed
from headwater_cli._output import put_fields, put_json, say, text_cell

if TYPE_CHECKING:
    from actions.fleet_desk import FleetDesk

_POLL_S = 0.3
_PATIENCE_S = 10.0
"""An engine that runs reads a new action within this time."""
_BAR_CELLS = 30
_OVER = ("ENDED", "REFUSED")
_ORDER = ("SUCCEEDED", "FAILED", "REJECTED", "TIMED_OUT", "CANCELLED", "SKIPPED", "REMOVED")
_MARKS = {"SUCCEEDED": "█", "FAILED": "✗", "REJECTED": "✗", "TIMED_OUT": "✗"}
_LEFT_OUT = "▒"
_UNDER_WAY = "░"


def is_over(row: dict[str, Any] | None) -> bool:
    return row is not None and row["phase"] in _OVER


def watched(desk: FleetDesk, action_id: str, *, seconds: float | None, json: bool) -> dict[str, Any]:
    """Shows the action until it is over and returns its last row. Raises DeadlineError after `seconds`."""
    if json or not sys.stdout.isatty():
        return _follow(desk, action_id, seconds, _said(json))
    with Live(console=Console(), refresh_per_second=4, transient=False) as live:
        return _follow(desk, action_id, seconds, lambda row: live.update(picture(row, desk.waves(action_id))))


def _said(json: bool) -> Callable[[dict[str, Any]], None]:
    def say(row: dict[str, Any]) -> None:
        if json:
            names = ("action_id", "phase", "wave", "waves", "targets", "open", "counts", "message", "updated_at")
            put_json({name: row.get(name) for name in names})
        else:
            put_fields(row["phase"], row["message"])

    return say


def _follow(
    desk: FleetDesk, action_id: str, seconds: float | None, show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    began = time.monotonic()
    deadline = None if seconds is None else began + seconds
    shown, told = None, False
    while True:
        row = desk.action(action_id)
        if row is not None and row["updated_at"] != shown:
            shown = row["updated_at"]
            show(row)
        if row is not None and is_over(row):
            return row
        if row is None and not told and time.monotonic() >= began + _PATIENCE_S:
            told = True
            say(f"{unprocessed(desk, action_id, 'yet')}; waiting")
        if deadline is not None and time.monotonic() >= deadline:
            if row is None:
                raise NotFoundError(unprocessed(desk, action_id, f"within {seconds:g} s"))
            raise DeadlineError(f"action {action_id} has not ended within {seconds:g} s: {row['message']}")
        time.sleep(_POLL_S)


def picture(row: dict[str, Any], waves: list[dict[str, Any]]) -> Table:
    """One bar per wave: succeeded, ended otherwise, in progress. A state that no device has needs no column, so that
    the bars fit on 80 characters."""
    by_wave: dict[int, dict[str, int]] = {}
    for cell in waves:
        by_wave.setdefault(cell["wave"] or 0, {})[cell["state"]] = cell["number"]
    states = [state for state in _ORDER if any(state in counts for counts in by_wave.values())]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("wave", "devices", "", *states):
        table.add_column(name, no_wrap=True)
    table.title, table.caption = text_cell(f"{row['action_id']}: {row['phase']}"), text_cell(row["message"])
    for number, counts in sorted(by_wave.items()):
        mark = "▶ " if number == row["wave"] and not is_over(row) else ""
        total = sum(counts.values())
        numbers = [str(counts[state]) if state in counts else "" for state in states]
        table.add_row(f"{mark}{number + 1}", str(total), bar(counts), *numbers)
    return table


def bar(counts: dict[str, int]) -> str:
    """Cells in proportion to the counts; every state that occurs has at least one."""
    total = sum(counts.values())
    cells = ""
    for state in _ORDER:
        if counts.get(state):
            cells += _MARKS.get(state, _LEFT_OUT) * max(1, round(counts[state] * _BAR_CELLS / total))
    begun = total - sum(counts.get(state, 0) for state in (*_ORDER, "PENDING"))
    cells += _UNDER_WAY * (max(1, round(begun * _BAR_CELLS / total)) if begun else 0)
    return f"{cells[:_BAR_CELLS]:<{_BAR_CELLS}}"
