"""Compares what is shipped with known advisories: `python -m supply.audit [--db FOLDER] [--url URL]` (`make audit`).

It asks OSV (or `AUDIT_URL`), or reads the records in a folder (`AUDIT_DB`). `supply/ignored.toml` lists what is
ignored, why, and until when. Exit codes: 0 clean, 1 findings or an entry that has ended, 2 usage or a bad list, 3 a
source was not reached or knows nothing of a part, and what was checked is clean.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from broker_edge.escape import shown
from supply.advisories import Finding, Folder, Server, Source, SourceError
from supply.shipped import ECOSYSTEMS, Part, ShippedError, parts

OSV = "https://api.osv.dev"
IGNORED = Path(__file__).with_name("ignored.toml")
CLEAN, FOUND, BAD, UNCHECKED = 0, 1, 2, 3
_NAMES = {"cargo": "crates", "pypi": "Python packages", "maven": "jars", "npm": "scripts"}


class IgnoredError(Exception):
    """The list of ignored advisories is wrong. `str()` names the entry and what to write."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """One entry; it counts up to and including `until`."""

    id: str
    reason: str
    until: date


def read_ignored(path: Path) -> list[Ignored]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise IgnoredError(f"{path}: {error}") from error
    entries = found.get("ignore", [])
    if set(found) - {"ignore"} or not isinstance(entries, list):
        raise IgnoredError(f"{path}: it has entries `[[ignore]]` only")
    return [_entry(path, number, one) for number, one in enumerate(entries, 1)]


def _entry(path: Path, number: int, entry: object) -> Ignored:
    match entry:
        case {"id": str(name), "reason": str(reason), "until": date() as until, **rest} if (
            name.strip() and reason.strip() and not rest and not isinstance(until, datetime)
        ):
            return Ignored(name, reason, until)
    raise IgnoredError(
        f"{path}: entry {number} needs an `id`, a `reason` and an end `until` = YYYY-MM-DD, and nothing else"
    )


def main(
    arguments: Sequence[str] | None = None, *, found: Sequence[Part] | None = None, today: date | None = None
) -> int:
    """`found` and `today` are for tests."""
    parser = argparse.ArgumentParser(prog="python -m supply.audit", description="Compare with known advisories.")
    parser.add_argument("--db", default=os.environ.get("AUDIT_DB"), help="folder with OSV records; also AUDIT_DB")
    parser.add_argument("--url", default=os.environ.get("AUDIT_URL") or OSV, help="an OSV server; also AUDIT_URL")
    parser.add_argument("--ignored", type=Path, default=IGNORED, help="list of ignored advisories")
    options = parser.parse_args(arguments)
    today = today or datetime.now(UTC).date()
    try:
        ignored = read_ignored(options.ignored)
        shipped = parts() if found is None else found
    except (IgnoredError, ShippedError) as error:
        _say(f"audit: {error}")
        return BAD
    try:
        source: Source = Folder(Path(options.db)) if options.db else Server(options.url)
        findings = source.findings(shipped)
    except SourceError as error:
        _say(f"audit: {error}: nothing was checked of {_counted(shipped)}.{_elsewhere(options.db)}")
        ended = [_ended(one) for one in ignored if one.until < today]
        for line in ended:
            _say(line)
        return FOUND if ended else UNCHECKED
    unknown = [part for part in shipped if ECOSYSTEMS[part.kind] in source.unknown()]
    return _report(shipped, findings, ignored, unknown, today)


def _report(
    shipped: Sequence[Part], findings: Sequence[Finding], ignored: Sequence[Ignored], unknown: list[Part], today: date
) -> int:
    ended = [one for one in ignored if one.until < today]
    ids = {one.id: one for one in ignored if one.until >= today}
    left, used = [], set()
    for finding in findings:
        names = {finding.id, *finding.aliases} & ids.keys()
        used |= names
        if names:
            entry = ids[min(names)]
            _say(f"audit: ignored until {entry.until}: {_line(finding)} ({entry.reason})")
        else:
            left.append(finding)
    for finding in left:
        sys.stdout.write(_line(finding) + "\n")
    for one in ended:
        _say(_ended(one))
    for name in sorted(ids.keys() - used):
        _say(f"audit: {name} is ignored and was not found: remove its entry")
    if unknown:
        _say(f"audit: the folder has no record of this kind: {_counted(unknown)} were not checked")
    checked = [part for part in shipped if part not in unknown]
    _say(f"audit: {len(left)} findings in {_counted(checked)}")
    return FOUND if left or ended else UNCHECKED if unknown else CLEAN


def _line(finding: Finding) -> str:
    part = finding.part
    fixed = f"fixed in {', '.join(finding.fixed)}" if finding.fixed else "no fixed version is known"
    told = (finding.id, ECOSYSTEMS[part.kind], part.name, part.version, finding.summary, fixed)
    return "\t".join(map(shown, told))


def _ended(one: Ignored) -> str:
    return f"audit: {one.id} was ignored until {one.until}: remove the entry, or decide anew ({one.reason})"


def _counted(found: Sequence[Part]) -> str:
    counts = Counter(str(part.kind) for part in found)
    return ", ".join(f"{counts[kind]} {name}" for kind, name in _NAMES.items() if counts[kind]) or "no parts"


def _elsewhere(db: str | None) -> str:
    return "" if db else " Run it where the server is reached, or name a folder with OSV's exports: AUDIT_DB=FOLDER."


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
