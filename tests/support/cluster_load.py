"""The load on brokers of a cluster of machines: `headwater` in the network of a machine, and messages whose offsets are
known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deltalake import DeltaTable

from support.netns_nodes import Node, within
from support.programs import clean_environment
from support.spark_cluster import WAIT_S

_TIME_US = 1_790_000_000_000_000


def offsets_in(table: Path) -> list[int]:
    """The offsets in a bronze table, each as often as it is there."""
    found: list[int] = DeltaTable(str(table)).to_pyarrow_table(columns=["offset"])["offset"].to_pylist()
    return found


def headwater_on(node: Node, *arguments: str) -> list[str]:
    """The `headwater` command of the test itself, in the network of a machine."""
    return [
        *within(node),
        sys.executable,
        "-c",
        "import sys; from headwater_cli import main; sys.exit(main())",
        *arguments,
    ]


class Publisher:
    """Messages of one device, and so of one partition, with `fields` in each. Without `options` to a broker without
    users, from its own machine, in clear."""

    def __init__(
        self,
        node: Node,
        count: int,
        *,
        rate: int | None = None,
        topic: str = "devices/d1/telemetry",
        options: Sequence[str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        words = ["pub", "--ack", "--json", "--lines", "--file", "-", topic]
        words += ["--mqtt", f"{node.address}:1883"] if options is None else options
        words += [] if rate is None else ["--rate", str(rate)]
        self._process = subprocess.Popen(
            headwater_on(node, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=clean_environment({"PYTHONUNBUFFERED": "1"}),
        )
        self._offsets: set[int] = set()
        assert self._process.stdin is not None
        bodies = ({"ts": _TIME_US + number, "seq": number, **(fields or {})} for number in range(count))
        self._process.stdin.writelines(f"{json.dumps(body)}\n" for body in bodies)
        self._process.stdin.close()

    def until(self, count: int) -> None:
        """Waits until that many are acknowledged."""
        assert self._process.stdout is not None
        while len(self._offsets) < count:
            line = self._process.stdout.readline()
            assert line, f"the publisher ended after {len(self._offsets)} acknowledgements"
            self._offsets.add(int(json.loads(line)["offset"]))

    def acknowledged(self) -> set[int]:
        """Waits for the end; the offsets that the broker has acknowledged."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._offsets.add(int(json.loads(line)["offset"]))
        self._process.wait(WAIT_S)
        return self._offsets
