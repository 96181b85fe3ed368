"""The demo's output: steps and a live table on stderr, the result on stdout, and commands to try next.

It only formats; it measures and decides nothing.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipelines.demo.layout import Layout
from pipelines.demo.result import Result
from pipelines.demo.watch import Snapshot

LINE_EVERY_S = 10.0
"""Without a live table, print a progress line at this interval."""

_STATES = ("PENDING", "QUEUED", "DELIVERED", "ACCEPTED", "IN_PROGRESS", "SUCCEEDED")


class Screen:
    """Messages on stderr. With `live` a table is kept up to date there, otherwise progress lines appear."""

    def __init__(self, *, live: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._wants_live = live and self._console.is_terminal
        self._started = time.monotonic()
        self._next_line = 0.0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Prints a step that takes a while, and how long it took."""
        began = time.monotonic()
        if self._wants_live and self._live is None:
            with self._console.status(f"{what} …"):
                yield
        else:
            self._say(f"{what} …")
            yield
        self._say(f"{what}: {time.monotonic() - began:.1f} s")

    def hints(self, lines: list[str]) -> None:
        self._say("\n" + "\n".join(lines) + "\n")

    def say(self, text: str) -> None:
        self._say(text)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this context is open, `show` updates the terminal."""
        if not self._wants_live:
            yield
            return
        with Live(console=self._console, refresh_per_second=4, transient=False) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def show(self, snapshot: Snapshot) -> None:
        if self._live is not None:
            self._live.update(table(snapshot))
        elif snapshot.seconds >= self._next_line:
            self._next_line = snapshot.seconds + LINE_EVERY_S
            self._say(line(snapshot))

    def _say(self, text: str) -> None:
        # Paths and payloads contain brackets that rich would interpret as markup.
        self._console.print(text, markup=False, soft_wrap=True)


def table(snapshot: Snapshot) -> Group:
    """The live table: the path of the data, then the outcome of the action."""
    counts, outcome = snapshot.counts, snapshot.outcome
    way = Table(box=box.SIMPLE_HEAD, title=f"headwater demo, {snapshot.seconds:.0f} s", title_justify="left")
    for name in ("devices", "published", "per second", "acknowledged", "rows in Delta", "in transit"):
        way.add_column(name, justify="right")
    way.add_row(
        str(counts.connected),
        f"{counts.published:,}",
        f"{snapshot.published_per_s:,.0f}",
        f"{counts.acked:,}",
        f"{snapshot.rows:,}",
        f"{snapshot.lag:,}",
    )
    if not outcome.actions:
        return Group(way, Text("  a row is inserted into `actions` in a few seconds"))
    others = sorted(set(outcome.states) - set(_STATES))
    action = Table(box=box.SIMPLE_HEAD, title="actions", title_justify="left")
    action.add_column("targets", justify="right")
    for name in (*_STATES, *others):
        action.add_column(name.lower().replace("_", " "), justify="right")
    action.add_row(str(outcome.targets), *(str(outcome.states.get(name, 0)) for name in (*_STATES, *others)))
    return Group(way, action)


def line(snapshot: Snapshot) -> str:
    counts, outcome = snapshot.counts, snapshot.outcome
    return (
        f"{snapshot.seconds:4.0f} s: {counts.published:,} published, {counts.acked:,} acknowledged, {snapshot.rows:,} "
        f"rows in Delta; action: {outcome.succeeded} of {outcome.targets} succeeded"
    )


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address of MQTT, `grpc://host:port` of Flight, `host:port` of admin HTTP, and the options with which commands
    reach them."""

    mqtt: str
    server: str
    admin: str
    options: str = ""


def next_steps(addresses: Addresses, layout: Layout) -> list[str]:
    """Commands that can be copied while the demo runs."""
    headwater, root = _command("headwater"), layout.tables
    query = (
        f"from deltalake import DeltaTable, QueryBuilder; bronze = DeltaTable('{layout.bronze}'); "
        "print(QueryBuilder().register('bronze', bronze).execute('select topic, count(*) as records, max(timestamp) as "
        "newest from bronze group by topic order by topic limit 5').read_all())"
    )
    insert = (
        f"import pyarrow as pa; from deltalake import write_deltalake; write_deltalake('{root / 'actions'}', "
        "pa.table(dict(action_id=['hello-1'], name=['echo'], device_ids=[['device-0001']])), mode='append', "
        "schema_mode='merge')"
    )
    # That of a secured demo would need settings: its broker's authority and the user of the console.
    console = [
        "  # see both in a browser: what the broker says, and what is in the tables",
        f"  {headwater} console --root {shlex.quote(str(root))} --bronze {shlex.quote(str(layout.bronze))} "
        f"--admin http://{addresses.admin}",
    ]
    return [
        f"The demo is running: MQTT {addresses.mqtt}, Flight {addresses.server}, "
        f"metrics {'https' if addresses.options else 'http'}://{addresses.admin}/metrics,",
        f"tables in {layout.tables}",
        "Try in another terminal:",
        "  # subscribe",
        f"  {headwater} sub 'devices/+/telemetry' --mqtt {addresses.mqtt} -n 5{addresses.options}",
        "  # read the log by offset",
        f"  {headwater} tail 'devices/device-0001/telemetry' --server {addresses.server} --from earliest -n 5"
        f"{addresses.options}",
        "  # query the table",
        f"  {_python(query)}",
        *(console if not addresses.options else []),
        "  # insert a row into `actions` for the devices on a roof, and wait for the result",
        f"  {headwater} actions create echo --label site=roof --wait 60 --root {shlex.quote(str(root))}",
        "  # the same by hand, for one device (each row needs its own action_id)",
        f"  {_python(insert)}",
    ]


def result_text(result: Result) -> str:
    """The account as text."""
    account, counts, outcome = result.account, result.counts, result.outcome
    verdict = "nothing is missing, nothing is duplicated" if result.ok else "NOT as promised"
    return "\n".join(
        [
            f"published {counts.published:,}, acknowledged {counts.acked:,}, in bronze {account.bronze_rows:,}",
            f"missing {account.missing:,}, duplicates {account.duplicates:,}: {verdict}",
            f"actions {outcome.actions}, open {outcome.open}, targets {outcome.targets}, succeeded {outcome.succeeded}",
            f"publish to Delta: p50 {account.p50_ms:,.0f} ms, p99 {account.p99_ms:,.0f} ms",
        ]
    )


def result_json(result: Result) -> str:
    return json.dumps(result.to_json())


def _python(code: str) -> str:
    """A shell command that runs the code with this interpreter, in the more readable kind of quotes."""
    quoted = f'"{code}"' if not set(code) & set('"$`\\!') else shlex.quote(code)
    return f"{shlex.quote(sys.executable)} -c {quoted}"


def _command(name: str) -> str:
    """The path of the console script beside this interpreter, otherwise its name."""
    beside = Path(sys.executable).parent / name
    return shlex.quote(str(beside)) if beside.exists() else name
