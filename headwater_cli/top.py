"""`headwater top`: brokers, partitions, clients and groups while they work, once a second."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker_edge.admin import Admin
from headwater_cli._options import JsonOption, finite
from headwater_cli._output import put_fields, put_json, say, text_cell
from headwater_cli._top import (
    Look,
    Row,
    broker_row,
    chosen,
    client_rows,
    document,
    figure,
    group_rows,
    look,
    partition_rows,
)
from headwater_cli.clients import parsed_admins

_CLIENTS_MAX = 1_000
_LEAST_CELLS = {"admin": 16, "name": 11, "client_id": 16, "group": 16}
_ANSWER_S = 5.0
_VIEWS: Mapping[str, tuple[str, ...]] = {
    "brokers": (
        *("admin", "connections", "in_per_s", "out_per_s", "ack_p99_s", "sync_p99_s", "loop_busy", "disk_used_bytes"),
        *("disk_level", "leads"),
    ),
    "partitions": ("name", "state", "high_watermark", "per_s", "bytes", "held"),
    "clients": ("client_id", "user", "state", "in_per_s", "out_per_s", "inflight", "lag"),
    "groups": ("group", "partition", "next", "behind"),
}
"""Columns by view, in the order of the keys 1 to 4. With several brokers each view has `admin` too."""
_SAID = {
    "connections": "conn",
    "in_per_s": "in/s",
    "out_per_s": "out/s",
    "ack_p99_s": "ack p99",
    "sync_p99_s": "sync p99",
    "loop_busy": "loop",
    "disk_used_bytes": "disk",
    "disk_level": "level",
    "high_watermark": "next",
    "per_s": "records/s",
    "client_id": "client",
}
_LINE = ("admin", "in_per_s", "out_per_s", "ack_p99_s", "sync_p99_s", "loop_busy", "connections", "disk_used_bytes")
"""Columns without a terminal."""
_KEYS = "1-4 view, s sort, / filter, p pause, q quit"

_AdminsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--admin",
        envvar="HEADWATER_ADMIN",
        metavar="ADDRESS",
        show_default=False,
        help="Admin: http://host:port; repeatable.",
    ),
]


@dataclass(slots=True)
class _Screen:
    """What a person has chosen."""

    view: str = "brokers"
    sort: str | None = None
    part: str = ""
    is_typing: bool = False
    is_paused: bool = False
    is_over: bool = False

    def press(self, key: str) -> None:
        if self.is_typing:
            match key:
                case "\r" | "\n":
                    self.is_typing = False
                case "\x1b":
                    self.is_typing, self.part = False, ""
                case "\x7f" | "\b":
                    self.part = self.part[:-1]
                case _ if key.isprintable():
                    self.part += key
            return
        match key:
            case "1" | "2" | "3" | "4":
                self.view, self.sort = list(_VIEWS)[int(key) - 1], None
            case "s":
                columns = (None, *_VIEWS[self.view])
                self.sort = columns[(columns.index(self.sort) + 1) % len(columns)]
            case "/":
                self.is_typing, self.part = True, ""
            case "p":
                self.is_paused = not self.is_paused
            case "q":
                self.is_over = True
            case _:
                pass


@dataclass(slots=True)
class _Brokers:
    """The brokers and their last two answers."""

    admins: Sequence[Admin]
    now: list[Look] = field(default_factory=list)
    before: dict[str, Look] = field(default_factory=dict)

    def look(self, *, clients_max: int) -> None:
        """Asks all of them at once: one that does not answer does not hold up the others."""
        with ThreadPoolExecutor(len(self.admins)) as pool:
            found = list(pool.map(lambda admin: look(admin, clients_max=clients_max), self.admins))
        # A broker that was away for a while is compared with what it said before.
        self.before |= {one.address: one for one in self.now if one.scrape is not None}
        self.now = found

    def rows(self, view: str) -> list[Row]:
        found: list[Row] = []
        for now in self.now:
            before = self.before.get(now.address)
            match view:
                case "brokers":
                    found.append(broker_row(now, before))
                case "partitions":
                    found += partition_rows(now, before)
                case "clients":
                    found += client_rows(now)
                case _:
                    found += group_rows(now)
        return found


def top(
    admin: _AdminsOption = None,
    every: Annotated[
        float, typer.Option("--every", min=0.2, callback=finite, metavar="SECONDS", help="Time between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, show what has happened between, and end.")] = False,
    json: JsonOption = False,
) -> None:
    """Show rates, latencies, lag and disk of brokers. Without a terminal a line for each look, or JSON with --json.

    Keys: 1 brokers, 2 partitions, 3 clients, 4 groups, s sort by the next column, / filter, p pause, q quit. The exit
    code of --once is 3 if a broker does not answer.
    """
    addresses = dict.fromkeys(parsed_admins(admin))
    brokers = _Brokers([Admin(address, timeout_s=_ANSWER_S) for address in addresses])
    if once:
        brokers.look(clients_max=0)
        time.sleep(every)
        brokers.look(clients_max=0)
        _print(brokers, json=json, with_names=True)
        raise typer.Exit(3 if any(one.trouble for one in brokers.now) else 0)
    if json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        brokers.look(clients_max=0)
        _print_for_ever(brokers, every, json=json)
    _show(brokers, every)


def _print_for_ever(brokers: _Brokers, every_s: float, *, json: bool) -> None:
    is_first = True
    while True:
        time.sleep(every_s)
        brokers.look(clients_max=0)
        _print(brokers, json=json, with_names=is_first)
        is_first = False


def _print(brokers: _Brokers, *, json: bool, with_names: bool) -> None:
    if json:
        put_json(document(brokers.now, brokers.before))
        return
    if with_names:
        put_fields(*(_SAID.get(name, name) for name in _LINE))
    for row in brokers.rows("brokers"):
        if row.get("trouble"):
            say(row["trouble"])
        else:
            put_fields(*(figure(name, row.get(name)) for name in _LINE))


def _show(brokers: _Brokers, every_s: float) -> None:
    screen, console = _Screen(), Console()
    with _keys() as keys_within, Live(console=console, screen=True, auto_refresh=False) as live:
        due = 0.0
        while not screen.is_over:
            if time.monotonic() >= due and not screen.is_paused:
                brokers.look(clients_max=_CLIENTS_MAX if screen.view == "clients" else 0)
                due = time.monotonic() + every_s
            live.update(picture(screen, brokers, height=console.height), refresh=True)
            before = screen.view
            for key in keys_within(every_s if screen.is_paused else max(0.05, due - time.monotonic())):
                screen.press(key)
            due = due if screen.view == before else 0.0


def picture(screen: _Screen, brokers: _Brokers, *, height: int) -> Group:
    """The screen: a title, the rows of the view, what is wrong, and the keys."""
    rows = chosen(brokers.rows(screen.view), part=screen.part, sort=screen.sort)
    wrong = [one.trouble for one in brokers.now if one.trouble]
    columns = _VIEWS[screen.view]
    if len(brokers.admins) > 1 and columns[0] != "admin":
        columns = ("admin", *columns)
    if screen.view == "brokers":
        rows = [row for row in rows if not row.get("trouble")]
        usual = {"leads": None, "disk_level": "normal"}
        columns = tuple(name for name in columns if name not in usual or any(row[name] != usual[name] for row in rows))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        mark = "↓" if name == screen.sort else ""
        is_text = name in ("admin", "name", "state", "client_id", "user", "group", "partition", "disk_level")
        table.add_column(
            f"{_SAID.get(name, name)}{mark}",
            justify="left" if is_text else "right",
            no_wrap=True,
            min_width=_LEAST_CELLS.get(name),
        )
    room = max(1, height - 6 - len(wrong))
    for row in rows[:room]:
        table.add_row(*(text_cell(figure(name, row.get(name)).removeprefix("http://")) for name in columns))
    more = f", {len(rows) - room} more" if len(rows) > room else ""
    state = " (paused)" if screen.is_paused else ""
    filter_ = f", filter `{screen.part}`" if screen.part or screen.is_typing else ""
    title = text_cell(f"headwater top: {len(rows)} {screen.view}{more}{filter_}{state}")
    return Group(title, table, *(text_cell(text) for text in wrong), Text(_KEYS, style="dim"))


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Reads keys of the terminal as they are pressed: a call waits at most so long for one."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def keys_within(seconds: float) -> str:
        readable, _, _ = select.select([descriptor], [], [], seconds)
        if not readable:
            return ""
        # `sys.stdin` would take more than it gives, and the rest would wait for the next key.
        return os.read(descriptor, 64).decode(errors="ignore") or "q"  # The terminal is gone.

    try:
        yield keys_within
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def register(app: typer.Typer) -> None:
    app.command()(top)
