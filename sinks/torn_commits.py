"""Repairs local Delta tables after a power cut, before a job opens them: a torn commit becomes one that never happened.

Files reach the disk in any order until they are synced. A power cut may therefore keep the name of a commit and lose
its content, or keep a commit and lose the data files that it names, and then nobody can read the table. Every job that
syncs does so after its commit and before it tells anybody, together with all earlier commits. A torn commit was thus
never reported as finished, and neither was a later one, so the table goes back to the newest version that is complete.

A file that is missing for another reason is not repaired: the commit must be older than the last start of the machine.
Nothing here reads rows or touches object stores.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from broker_edge.errors import SinkError
from broker_edge.sync import sync_folders
from sinks.folder import TableFolder

log = logging.getLogger(__name__)

WINDOW_S = 600.0
"""Only commits of this time before the newest one are checked; systems write everything back within a minute."""

_LOG = "_delta_log"
_HINT = "_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\..+)?\.parquet")
_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
"""How the path of a file outside the table begins; Spark writes `file:/` with one slash."""
_PARQUET = b"PAR1"
_ASIDE, _MOVED = ".torn", ".torn-"
_STAT = Path("/proc/stat")


def booted_s() -> float | None:
    """When the machine started, in seconds since 1970; None where the system does not say it."""
    try:
        found = re.search(r"^btime (\d+)$", _STAT.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else float(found[1])


def repair_tables(root: str | None) -> None:
    """Repairs every table directly below `root`."""
    folder = _local(root)
    if folder is not None and folder.is_dir():
        for table in sorted(one.parent for one in folder.glob(f"*/{_LOG}")):
            if _MOVED not in table.name:
                repair_table(str(table))


def repair_table(path: str | None) -> int:
    """Returns the number of commits that were set aside, as files with the ending `.torn` in the log. A table that was
    never complete is moved to a folder with the ending `.torn-1`. Does nothing to a complete table, in an object store,
    without a table, or in a file system that has no locks. A job calls it before it opens its tables."""
    table = _local(path)
    if table is None:
        return 0
    folder = table / _LOG
    booted = booted_s()
    if booted is None or not folder.is_dir():
        return 0
    try:
        return _repaired(table, before_s=booted)
    except PermissionError as error:
        log.warning(
            "%s cannot be checked after a power cut (%s: %s): start a job, which does it, or run this as the user of "
            "the jobs",
            *(table, error.strerror, error.filename),
        )
        return 0


def _repaired(table: Path, *, before_s: float) -> int:
    """`repair_table` for a machine that started at `before_s`. Raises PermissionError."""
    folder = table / _LOG
    with _locked(folder) as is_locked:
        if not is_locked:
            return 0
        commits = _newest_commits(table, before_s=before_s)
        if not commits:
            return 0
        complete = _complete(table, commits)
        torn = commits[complete:]
        if torn and _newest_commits(table, before_s=before_s) != commits:
            # Another machine, or a job from before a step of the clock, writes to it: nothing here is of a power cut.
            return 0
        if torn and torn[0].version == 0:
            log.warning("a power cut has left %s incomplete: it was new, and is now %s", table, _move(table))
            return len(torn)
        if torn:
            _set_aside(folder, torn)
            log.warning(
                "a power cut has left %d commits of %s incomplete: the table is back at version %d, and its jobs write "
                "what is missing again",
                *(len(torn), table, torn[0].version - 1),
            )
        _drop_checkpoints(folder, commits[complete - 1].version if complete else commits[0].version - 1)
    return len(torn)


def _local(path: str | None) -> Path | None:
    if path is None:
        return None
    try:
        return TableFolder.of(path).local
    except SinkError:
        return None


@dataclass(frozen=True, slots=True)
class _Commit:
    version: int
    modified_s: float
    is_whole: bool
    """Whether its text is complete."""
    added: dict[str, int] = field(default_factory=dict)
    """Paths below the table, and their sizes in bytes."""
    changes: dict[str, int] = field(default_factory=dict)
    """The same for files of the change feed."""
    removed: frozenset[str] = frozenset()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Jobs of several processes start at the same time. False if the file system cannot lock a folder, such as NFS:
    its server keeps the files, and this machine does not know when that one had a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            log.info("%s is not checked for torn commits, because it cannot be locked: %s", folder, error)
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def _newest_commits(table: Path, *, before_s: float) -> list[_Commit]:
    """The commits since the first one of the last `WINDOW_S`, in order of their versions, which have no gaps before a
    torn one. None if there is one after `before_s`: then somebody has already used the table as it is."""
    found = {}
    try:
        for entry in os.scandir(table / _LOG):
            number = _COMMIT.fullmatch(entry.name)
            if number is not None:
                found[int(number[1])] = entry.stat().st_mtime
    except FileNotFoundError:
        # Another job has moved the table meanwhile, or removed an old commit, and so uses it.
        return []
    newest_s = max(found.values(), default=before_s)
    if newest_s >= before_s:
        return []
    first = min(version for version, modified_s in found.items() if newest_s - modified_s <= WINDOW_S)
    chosen: list[_Commit] = []
    # By version, because a clock that was set gives a later commit an earlier time.
    for version in sorted(version for version in found if version >= first):
        commit = _read(table / _LOG / f"{version:020}.json", version, found[version])
        if chosen and chosen[-1].version != version - 1:
            commit = _Commit(version, commit.modified_s, is_whole=False)
        chosen.append(commit)
    return chosen


def _read(path: Path, version: int, modified_s: float) -> _Commit:
    files: dict[str, dict[str, int]] = {"add": {}, "cdc": {}}
    removed: set[str] = set()
    try:
        # Not `splitlines`: JSON does not escape U+0085 or U+2028, which a topic in the statistics may contain.
        actions: list[dict[str, Any]] = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
        for action in actions:
            for kind, found in files.items():
                if kind in action:
                    found[unquote(action[kind]["path"])] = int(action[kind]["size"])
            if "remove" in action:
                removed.add(unquote(action["remove"]["path"]))
    except (ValueError, KeyError, TypeError):
        actions = []
    return _Commit(version, modified_s, bool(actions), files["add"], files["cdc"], frozenset(removed))


def _complete(table: Path, commits: list[_Commit]) -> int:
    """How many of the commits can stay: the most with which every commit and every file of the table is complete."""
    whole = next((at for at, commit in enumerate(commits) if not commit.is_whole), len(commits))
    known: dict[str, bool] = {}
    for count in range(whole, 0, -1):
        files: dict[str, int] = {}
        for commit in commits[:count]:
            # One commit may remove a file and add it again with a deletion vector.
            files = {path: size for path, size in files.items() if path not in commit.removed} | commit.added
            # Vacuum removes files of the change feed that are still named.
            files |= {path: size for path, size in commit.changes.items() if (table / path).exists()}
        if all(_is_there(table, path, size, known) for path, size in files.items()):
            return count
    return 0


def _is_there(table: Path, path: str, size: int, known: dict[str, bool]) -> bool:
    """Whether a data file is complete. Files elsewhere are not ours to judge."""
    if path not in known:
        known[path] = _ELSEWHERE.match(path) is not None or _is_parquet(table / path, size)
    return known[path]


def _is_parquet(path: Path, size: int | None = None) -> bool:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found < 2 * len(_PARQUET) or (size is not None and size != found):
                return False
            begin = file.read(len(_PARQUET))
            file.seek(-len(_PARQUET), os.SEEK_END)
            return begin == file.read() == _PARQUET
    except FileNotFoundError:
        return False


def _move(table: Path) -> Path:
    """Moves a table that was never complete out of the way: a job creates a table only in an empty folder."""
    number = 1
    while (place := table.with_name(f"{table.name}{_MOVED}{number}")).exists():
        number += 1
    table.rename(place)
    sync_folders(table.parent, up_to=table)
    return place


def _set_aside(folder: Path, torn: list[_Commit]) -> None:
    # The newest first: after a second power cut there is no gap.
    for commit in reversed(torn):
        path = folder / f"{commit.version:020}.json"
        os.replace(path, path.with_name(f"{path.name}{_ASIDE}"))
        # Checksums of Hadoop and of Delta, which belong to this content.
        for beside in (f".{path.name}.crc", f"{path.stem}.crc", f".{path.stem}.crc.crc"):
            (folder / beside).unlink(missing_ok=True)
        sync_folders(folder, up_to=folder / path.name)


def _drop_checkpoints(folder: Path, version: int) -> None:
    """Removes checkpoints after `version` or without complete content, and a hint at one: the commits are still there,
    because they are kept for days."""
    for entry in list(os.scandir(folder)):
        number = _CHECKPOINT.fullmatch(entry.name)
        if number is None:
            continue
        # A later commit that is there is new: its writer is about to name this checkpoint.
        is_later = int(number[1]) > version and not (folder / f"{number[1]}.json").exists()
        if is_later or not _is_parquet(Path(entry.path)):
            Path(entry.path).unlink(missing_ok=True)
    hint = folder / _HINT
    try:
        named = int(json.loads(hint.read_text("utf-8"))["version"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        named = -1
    if not any(folder.glob(f"{named:020}.checkpoint*.parquet")):
        hint.unlink(missing_ok=True)
