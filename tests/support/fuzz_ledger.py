"""What each target of `make fuzz` owes, and what all runs on its present code have done together.

`broker_edge/core/fuzz/targets.tsv` names the code of a target. `ledger.tsv` beside it has one line a target: runs add
to it, whoever made them and on whichever machine, until the code changes, when the count begins again. Changes of tests
are no changes of the code.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "broker_edge/core/fuzz"
TARGETS, LEDGER = "targets.tsv", "ledger.tsv"
PURE_EXECUTIONS, OTHER_EXECUTIONS, OTHER_CPU_S = 10_000_000, 1_000_000, 2 * 3600
HEAD = """\
# What `make fuzz` has run, written by it, on the code whose digest stands here. When the code has changed, a line
# counts for nothing.
#target	code	executions	cpu_s	last	found
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A line of targets.tsv."""

    name: str
    is_pure: bool
    input_bytes_max: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger: `found` is the number of inputs that broke a promise, also on earlier code."""

    name: str
    code: str
    executions: int = 0
    cpu_s: int = 0
    last: str = "-"
    found: int = 0


def targets(fuzz: Path = FUZZ) -> dict[str, Target]:
    """The lines of targets.tsv by name, in their order."""
    found = {}
    for name, kind, bytes_max, sources in _lines(fuzz / TARGETS):
        found[name] = Target(name, kind == "pure", int(bytes_max), tuple(sources.split()))
    return found


def digest(target: Target, root: Path = ROOT) -> str:
    """Changes with the code of the target.

    Raises:
        ValueError: a file, folder or package that targets.tsv names is not there.
    """
    code = hashlib.sha256()
    for source in target.sources:
        path, _, package = source.partition("#")
        parts = [_package(root / path, package)] if package else list(_contents(root / path, root))
        if not any(parts):
            raise ValueError(f"{TARGETS}: {target.name}: there is no {source}")
        for part in parts:
            code.update(len(part).to_bytes(8, "big") + part)
    return code.hexdigest()[:12]


def entry(target: Target, fuzz: Path = FUZZ, root: Path = ROOT) -> Entry:
    """What has been run on the present code; zeros if it has changed."""
    now = Entry(target.name, digest(target, root))
    old = _entries(fuzz).get(target.name, now)
    return old if old.code == now.code else replace(now, found=old.found)


def add(target: Target, executions: int, cpu_s: float, found: int, fuzz: Path = FUZZ, root: Path = ROOT) -> Entry:
    """Adds a run that ends now."""
    with _locked(fuzz):
        old = entry(target, fuzz, root)
        new = replace(
            old,
            executions=old.executions + executions,
            cpu_s=old.cpu_s + round(cpu_s),
            last=datetime.now(UTC).strftime("%Y-%m-%d"),
            found=old.found + found,
        )
        entries = {**_entries(fuzz), target.name: new}
        order = {name: at for at, name in enumerate(targets(fuzz))}
        rows = sorted(entries.values(), key=lambda row: (order.get(row.name, len(order)), row.name))
        text = HEAD + "".join("\t".join(map(str, astuple(row))) + "\n" for row in rows)
        (fuzz / LEDGER).write_text(text)
    return new


def owed(target: Target, done: Entry) -> int:
    """The executions that are left to do; 0 when the goal is met."""
    if target.is_pure:
        return max(0, PURE_EXECUTIONS - done.executions)
    return 0 if done.cpu_s >= OTHER_CPU_S else max(0, OTHER_EXECUTIONS - done.executions)


def _lines(path: Path) -> Iterator[list[str]]:
    if path.exists():
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                yield line.split("\t")


def _entries(fuzz: Path) -> dict[str, Entry]:
    return {
        name: Entry(name, code, int(executions), int(cpu_s), last, int(found))
        for name, code, executions, cpu_s, last, found in _lines(fuzz / LEDGER)
    }


def _contents(path: Path, root: Path) -> Iterator[bytes]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        place = file.relative_to(root).as_posix()
        is_test = path.is_dir() and re.search(r"tests?(/|\.rs|\.py)", place[len(path.relative_to(root).as_posix()) :])
        if file.suffix in {".rs", ".py"} and file.is_file() and not is_test:
            yield place.encode() + b"\0" + file.read_bytes()


def _package(lock: Path, name: str) -> bytes:
    """The lines that pin a package in Cargo.lock or in a list of requirements."""
    text = lock.read_text()
    if lock.suffix == ".lock" and "[[package]]" in text:
        return "".join(part for part in text.split("[[package]]") if f'\nname = "{name}"\n' in part).encode()
    pinned = re.search(rf"^{re.escape(name)}==\S+", text, re.MULTILINE | re.IGNORECASE)
    return pinned[0].encode() if pinned else b""


@contextmanager
def _locked(fuzz: Path) -> Iterator[None]:
    """Runs of several targets at a time write one after the other."""
    with (fuzz / TARGETS).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
