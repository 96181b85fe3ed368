"""What runs of `headwater torture --cluster 3` have done together: `tests/faults/cluster_ledger.tsv`, a line a run.

    headwater torture --cluster 3 --for 90m --json > outcome.json; python tests/support/torture_ledger.py outcome.json

A run counts for the code whose digest stands in its line: that of the protocol and of what carries it out. Changes of
tests are no changes of the code.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "tests/faults/cluster_ledger.tsv"
SOURCES = ("cluster/src", "replica/src", "mesh/src", "etcd/src", "log/src", "broker/src/cluster", "broker/src/engine")
FAULTS_MIN, ACKED_MIN = 1_000, 1_000_000
HEAD = """\
# Runs of `headwater torture --cluster 3`, on the code whose digest stands here (tests/support/torture_ledger.py).
#code	date	seed	faults	acknowledged	minutes	findings	of each fault
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run. `findings` are words with counts, `-` for none; `each` is the number of cycles by fault."""

    code: str
    date: str
    seed: int
    faults: int
    acknowledged: int
    minutes: int
    findings: str
    each: str


def digest(root: Path = ROOT) -> str:
    """Changes with the code that the runs are about."""
    code = hashlib.sha256()
    for part in _contents(root):
        code.update(len(part).to_bytes(8, "big") + part)
    return code.hexdigest()[:12]


def _contents(root: Path) -> Iterator[bytes]:
    for source in SOURCES:
        folder = root / "broker_edge/core" / source
        files = sorted(path for path in folder.rglob("*.rs") if not _is_test(path.relative_to(folder)))
        if not files:
            raise ValueError(f"there is no code in {folder}")
        for path in files:
            yield str(path.relative_to(root)).encode()
            yield path.read_bytes()


def _is_test(path: Path) -> bool:
    return path.stem.endswith("tests") or not {"tests", "model", "fuzz"}.isdisjoint(path.parts)


def entry(outcome: Mapping[str, Any], *, root: Path = ROOT) -> Entry:
    """The line of a run, from the JSON that it printed. Raises ValueError for one that does not count."""
    if outcome["sabotage"] is not None:
        raise ValueError("a run with a mistake on purpose does not count")
    found = ", ".join(f"{count} {word}" for word, count in outcome["findings"].items() if count)
    each = ", ".join(f"{name} {one['cycles']}" for name, one in outcome["faults"].items() if one["cycles"])
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    faults = sum(one.get("cluster_faults", 0) for one in outcome["faults"].values())
    minutes = round(outcome["seconds"] / 60)
    return Entry(digest(root), today, outcome["seed"], faults, outcome["acknowledged"], minutes, found or "-", each)


def entries(path: Path = LEDGER) -> list[Entry]:
    lines = [line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return [
        Entry(code, date, int(seed), int(faults), int(acked), int(minutes), findings, each)
        for code, date, seed, faults, acked, minutes, findings, each in lines
    ]


def add(new: Entry, path: Path = LEDGER) -> None:
    if not path.exists():
        path.write_text(HEAD)
    with path.open("a") as out:
        out.write("\t".join(map(str, astuple(new))) + "\n")


def owed(done: list[Entry], code: str) -> tuple[int, int]:
    """Faults and acknowledgements that are left to do on this code."""
    now = [one for one in done if one.code == code]
    faults, acked = sum(one.faults for one in now), sum(one.acknowledged for one in now)
    return max(0, FAULTS_MIN - faults), max(0, ACKED_MIN - acked)


def main() -> None:
    for name in sys.argv[1:]:
        for line in Path(name).read_text().splitlines():
            if line.startswith("{"):
                add(entry(json.loads(line)))
    faults, acked = owed(entries(), digest())
    sys.stdout.write(f"owed on this code: {faults} faults, {acked} acknowledgements\n")


if __name__ == "__main__":
    main()
