"""Advisories as RustSec's advisory-db has them on its main branch: Markdown with a block of TOML in front.

    crates/NAME/RUSTSEC-YYYY-NNNN.md: [advisory] id, package, aliases, withdrawn [versions] patched, unaffected

`as_record` gives the form of an OSV record, with the two lists of requirements in the place of ranges. A requirement is
one of Cargo: comparators with commas between them, all of which have to hold.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from semver import Version

_FRONT = re.compile(r"\A\s*```toml\n(.*?)\n```", re.DOTALL)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_COMPARATOR = re.compile(r"\s*(\^|~|=|>=|<=|>|<)?\s*(\d+)(?:\.(\d+))?(?:\.(\d+))?(-[0-9A-Za-z.-]+)?(?:\+\S*)?\s*")


def as_record(text: str) -> dict[str, Any]:
    """Raises ValueError or KeyError for another text."""
    front = _FRONT.match(text)
    if front is None:
        raise ValueError("there is no block of TOML in front")
    found = tomllib.loads(front[1])
    about, versions = found["advisory"], found.get("versions", {})
    title = _TITLE.search(text)
    record = {
        "id": str(about["id"]),
        "aliases": list(about.get("aliases", [])),
        "summary": title[1] if title else "",
        "affected": [
            {
                "package": {"ecosystem": "crates.io", "name": str(about["package"])},
                "fixed": [str(one) for one in versions.get("patched", [])],
                "unaffected": [str(one) for one in versions.get("unaffected", [])],
            }
        ],
    }
    if "withdrawn" in about:
        record["withdrawn"] = str(about["withdrawn"])
    return record


def is_met(version: str, requirements: Sequence[str]) -> bool:
    """Whether a version meets one of these requirements. Raises ValueError for one that cannot be read."""
    found = Version.parse(version)
    return any(all(_holds(found, part) for part in one.split(",")) for one in requirements)


def _holds(version: Version, text: str) -> bool:
    if text.strip() == "*":
        return True
    match = _COMPARATOR.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text}` is not a requirement of Cargo")
    sign, *numbers, before = match.groups()
    given = [int(one) for one in numbers if one is not None]
    low = Version.parse(".".join(map(str, [*given, 0, 0][:3])) + (before or ""))
    # A comparator with fewer numbers than three stands for all versions that begin with them.
    high = _bumped(given, len(given) - 1) if len(given) < 3 else None
    match sign:
        case ">=":
            return version >= low
        case "<":
            return version < low
        case ">":
            return version > low if high is None else version >= high
        case "<=":
            return version <= low if high is None else version < high
        case "=":
            return version == low if high is None else low <= version < high
        case "~":
            return low <= version < _bumped(given, min(1, len(given) - 1))
        case _:
            # The first number that is not 0 may not change.
            place = next((at for at, one in enumerate(given) if one), len(given) - 1)
            return low <= version < _bumped(given, place)


def _bumped(given: Sequence[int], place: int) -> Version:
    """The first version after all those whose numbers up to `place` are the given ones."""
    return Version(*[*given[:place], given[place] + 1, 0, 0][:3])
