"""Measures `headwater console` beside a working action engine: how old a rollout's page is, and the console's memory.

    python tests/bench/console.py [--devices 100000] [--turns 60] [--reports 2000] [--dir FOLDER]

A broker runs, and an engine with real tables carries out one action; each turn some devices report. A reader does what
the page does: it follows the live stream and asks for the rollout and its targets whenever a table has changed. The age
is the time from a commit in the file system until the answer with it was there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from engine import Bench

from broker_edge.torture.process import BrokerProcess

_TABLES = ("action_targets", "action_state", "action_journal", "action_events")
_ACTION = "one-wave"
_CATCH_UP_S = 60.0


class Reader:
    """One open page. `ages_s` has the age of each commit by its table and version."""

    def __init__(self, address: str, root: Path) -> None:
        self._address, self._root = address, root
        self.ages_s: dict[tuple[str, int], float] = {}
        self.answers_s: list[float] = []
        self._done = dict.fromkeys(_TABLES, 0)
        self._changed, self._newest = threading.Condition(), None

    def follow(self) -> None:
        threading.Thread(target=self._ask, daemon=True).start()
        with urllib.request.urlopen(f"{self._address}/api/v1/live") as stream:
            for line in stream:
                found = re.match(rb'data: ({"tables".*)', line)
                if found:
                    with self._changed:
                        self._newest = json.loads(found[1])["tables"]
                        self._changed.notify_all()

    def _ask(self) -> None:
        """As the page: always for what is newest, and never twice at once."""
        seen = None
        # At the end the console goes first.
        with contextlib.suppress(OSError):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda before=seen: self._newest != before)
                    seen = self._newest
                self._look(seen)

    def _look(self, versions: dict[str, int]) -> None:
        began = time.time()
        for path in (_ACTION, f"{_ACTION}/targets"):
            with urllib.request.urlopen(f"{self._address}/api/v1/rollouts/{path}") as answer:
                answer.read()
            if path == _ACTION:
                self.answers_s.append(time.time() - began)
        now = time.time()
        for table in _TABLES:
            for version in range(self._done[table] + 1, versions[table] + 1):
                commit = self._root / table / "_delta_log" / f"{version:020}.json"
                self.ages_s[table, version] = now - commit.stat().st_mtime
            self._done[table] = versions[table]
        with self._changed:
            self._changed.notify_all()

    def catch_up(self) -> None:
        """Waits until the page has shown every commit."""
        with self._changed:
            if not self._changed.wait_for(self._has_all, timeout=_CATCH_UP_S):
                raise SystemExit("the page does not show the newest commits")

    def _has_all(self) -> bool:
        nexts = (self._root / table / "_delta_log" / f"{done + 1:020}.json" for table, done in self._done.items())
        return self._newest is not None and not any(path.exists() for path in nexts)


def _memory(pid: int) -> str:
    text = Path(f"/proc/{pid}/status").read_text()
    found = {name: int(kib) / 1024 for name, kib in re.findall(r"(VmHWM|VmRSS|RssAnon|RssFile):\s+(\d+) kB", text)}
    return ", ".join(f"{name} {mib:.0f} MiB" for name, mib in found.items())


def _cpu_s(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--reports", type=int, default=2_000, help="devices that report in a turn of a second")
    parser.add_argument("--dir", type=Path, help="folder for the tables (default: a temporary one)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="console-", dir=options.dir))
    root = folder / "tables"
    command = [sys.executable, "-m", "headwater_cli", "console", "--root", str(root), "--listen", "127.0.0.1:0"]
    stack = ExitStack()
    try:
        bench = Bench(root, options.devices)
        bench.action(_ACTION, waves=None)
        while bench.job.turn().publishes:
            pass
        broker = stack.enter_context(BrokerProcess(data_dir=folder / "broker", log_file=folder / "broker.txt"))
        broker.start()
        command += ["--admin", "http://{}:{}".format(*broker.admin)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
            try:
                assert console.stdout is not None
                address = console.stdout.readline().split()[-1]
                print(f"at the start: {_memory(console.pid)}", flush=True)
                reader = Reader(address, root)
                threading.Thread(target=reader.follow, daemon=True).start()
                reader.catch_up()
                reader.ages_s.clear()
                began, cpu_s = time.monotonic(), _cpu_s(console.pid)
                for turn in range(options.turns):
                    first = turn * options.reports % options.devices
                    state = ("IN_PROGRESS", "SUCCEEDED", "FAILED")[turn % 3]
                    bench.report(_ACTION, bench.ids[first : first + options.reports], state)
                    bench.job.turn()
                    time.sleep(max(0.0, began + turn + 1 - time.monotonic()))
                reader.catch_up()
                share = (_cpu_s(console.pid) - cpu_s) / (time.monotonic() - began)
                ages = sorted(reader.ages_s.values())
                print(f"{options.turns} turns in {time.monotonic() - began:.0f} s, {len(ages)} commits")
                print(
                    f"age of a commit when it is shown: median {statistics.median(ages):.2f} s, "
                    f"p95 {ages[int(0.95 * len(ages))]:.2f} s, most {ages[-1]:.2f} s"
                )
                print(f"one answer: median {statistics.median(reader.answers_s):.2f} s; CPU of the console {share:.0%}")
                print(f"at the end: {_memory(console.pid)}")
            finally:
                console.terminate()
    finally:
        stack.close()
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
