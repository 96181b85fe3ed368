"""What is known against a version of a package: asked of an OSV server, or read from a folder with its records.

The server is asked as OSV documents it (https://google.github.io/osv.dev/post-v1-querybatch/); the format of a record
is https://ossf.github.io/osv-schema/. One source serves crates, Python packages and jars, because OSV has the
advisories of RustSec, PyPA and GitHub; cargo-audit and pip-audit know no jars, and need a source each. Nothing here
decides what to do about a finding.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from packaging.version import InvalidVersion, Version
from semver import Version as SemVer

from supply.rustsec import as_record, is_met
from supply.shipped import ECOSYSTEMS, Part

TIMEOUT_S = 30
QUERIES_MAX = 1000
"""Of one request; OSV refuses more."""
PAGES_MAX = 100
ANSWER_BYTES_MAX = 64 << 20
RECORD_BYTES_MAX = 16 << 20
_FINAL = re.compile(r"[.-](final|ga|release)$", re.IGNORECASE)


class SourceError(Exception):
    """A source could not be asked, so nothing is known about the parts. `str()` says which one, and why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An advisory that concerns a part. `fixed` has the versions that no longer have the defect, if any are known."""

    part: Part
    id: str
    aliases: frozenset[str] = frozenset()
    summary: str = ""
    fixed: tuple[str, ...] = ()


class Source(Protocol):
    """`unknown` names the ecosystems about which the source knows nothing at all."""

    def findings(self, parts: Sequence[Part]) -> list[Finding]: ...

    def unknown(self) -> frozenset[str]: ...


# A server


class Server:
    """The API of OSV at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def unknown(self) -> frozenset[str]:
        return frozenset()

    def findings(self, parts: Sequence[Part]) -> list[Finding]:
        found = []
        for chunk in _chunks(parts):
            ids = self._ids(chunk)
            found += [(part, one) for part in chunk for one in sorted(ids.get(part.purl, ()))]
        records = {one: self._ask(f"/v1/vulns/{one}") for one in sorted({one for _, one in found})}
        try:
            return [_finding(part, records[one]) for part, one in found if not records[one].get("withdrawn")]
        except (AttributeError, KeyError, TypeError) as error:
            raise SourceError(f"{self.url} has an advisory that is not a record of OSV") from error

    def _ids(self, parts: Sequence[Part]) -> Mapping[str, set[str]]:
        """By package URL. A page that is full has a token with which the same query gets the next one."""
        ids: dict[str, set[str]] = {}
        open_queries = [(part, _query(part)) for part in parts]
        for _ in range(PAGES_MAX):
            if not open_queries:
                return ids
            results = self._ask("/v1/querybatch", {"queries": [query for _, query in open_queries]}).get("results")
            if not isinstance(results, list) or len(results) != len(open_queries):
                raise SourceError(f"{self.url} did not answer each of {len(open_queries)} queries")
            following = []
            for (part, query), result in zip(open_queries, results, strict=True):
                for vulnerability in self._list(result, "vulns"):
                    ids.setdefault(part.purl, set()).add(str(vulnerability["id"]))
                if token := result.get("next_page_token"):
                    following.append((part, {**query, "page_token": str(token)}))
            open_queries = following
        raise SourceError(f"{self.url} has over {PAGES_MAX} pages for one query")

    def _list(self, result: Any, name: str) -> list[Mapping[str, Any]]:
        found = result.get(name, []) if isinstance(result, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, dict) and "id" in one for one in found):
            raise SourceError(f"{self.url} answered something else than OSV does: is the address right?")
        return found

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            raise SourceError(f"{self.url} answered {path} with HTTP {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(f"{self.url} was not reached ({getattr(error, 'reason', None) or error})") from error
        except ValueError as error:
            raise SourceError(f"{self.url} answered something else than JSON: is the address right?") from error
        if not isinstance(found, dict):
            raise SourceError(f"{self.url} answered something else than OSV does: is the address right?")
        return found


def _query(part: Part) -> dict[str, Any]:
    return {"package": {"name": part.name, "ecosystem": ECOSYSTEMS[part.kind]}, "version": part.version}


def _chunks(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    for start in range(0, len(parts), QUERIES_MAX):
        yield parts[start : start + QUERIES_MAX]


# A folder


class Folder:
    """Records below a folder: `*.json`, `*.zip` of them as OSV exports each ecosystem (`all.zip`), and RustSec's
    `RUSTSEC-*.md`."""

    def __init__(self, path: Path) -> None:
        self._records: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self._known: set[str] = set()
        if not path.is_dir():
            raise SourceError(f"{path} is not a folder")
        for place, text in _texts(path):
            self._take(place, text)
        if not self._known:
            raise SourceError(
                f"{path} has no advisory: put OSV's all.zip of crates.io, PyPI and Maven there, or a checkout of "
                "RustSec's advisory-db"
            )

    def unknown(self) -> frozenset[str]:
        return frozenset(ECOSYSTEMS.values()) - self._known

    def findings(self, parts: Sequence[Part]) -> list[Finding]:
        found = []
        for part in parts:
            for record in self._records.get((ECOSYSTEMS[part.kind], _plain(part.name)), ()):
                try:
                    if any(_concerns(one, part) for one in _affected(record, part)):
                        found.append(_finding(part, record))
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise SourceError(f"{record['id']} is not an advisory that can be read ({error})") from error
        return found

    def _take(self, place: str, text: bytes) -> None:
        try:
            record = as_record(text.decode()) if place.endswith(".md") else json.loads(text)
            if record.get("withdrawn"):
                return
            # A record may also be about a repository, which is no package.
            packages = [one["package"] for one in record.get("affected", []) if "package" in one]
            names = {(one["ecosystem"], _plain(one["name"])) for one in packages}
            str(record["id"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"{place} is not an advisory ({type(error).__name__}): remove it") from error
        for ecosystem, name in names:
            self._known.add(ecosystem)
            self._records.setdefault((ecosystem, name), []).append(record)


def _texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        try:
            is_record = path.suffix == ".json" or (path.suffix == ".md" and path.name.startswith("RUSTSEC-"))
            if is_record and path.stat().st_size <= RECORD_BYTES_MAX:
                yield str(path), path.read_bytes()
            elif path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    for member in archive.infolist():
                        if member.filename.endswith(".json") and member.file_size <= RECORD_BYTES_MAX:
                            yield f"{path}, {member.filename}", archive.read(member)
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{path} cannot be read ({error}): fetch it again") from error


def _plain(name: str) -> str:
    """Names of Python packages are compared without case and separators; those of others have none of these."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _affected(record: Mapping[str, Any], part: Part) -> list[Mapping[str, Any]]:
    wanted = (ECOSYSTEMS[part.kind], _plain(part.name))
    return [
        one
        for one in record.get("affected", ())
        if (one.get("package", {}).get("ecosystem"), _plain(one.get("package", {}).get("name", ""))) == wanted
    ]


def _concerns(affected: Mapping[str, Any], part: Part) -> bool:
    """Whether the version is listed, or lies in a range. A version that cannot be compared counts as affected."""
    if part.version in affected.get("versions", ()):
        return True
    if "unaffected" in affected:
        return not is_met(part.version, [*affected["fixed"], *affected["unaffected"]])
    ranges = [one for one in affected.get("ranges", ()) if one.get("type") in ("SEMVER", "ECOSYSTEM")]
    if not ranges:
        return False
    order = _ORDERS[part.kind]
    try:
        return any(_lies_in(one.get("events", ()), part.version, order) for one in ranges)
    except (ValueError, InvalidVersion):
        return True


def _lies_in(events: Iterable[Mapping[str, str]], version: str, order: Callable[[str], Any]) -> bool:
    """The evaluation that the OSV schema describes: the last event at or before the version decides."""
    at = order(version)
    known = [(name, text) for event in events for name, text in event.items()]
    # Of events at one version, `introduced` counts last: the defect came back with it.
    is_affected = False
    for name, text in sorted(
        known, key=lambda one: (one[1] != "0", order("0" if one[1] == "0" else one[1]), one[0] == "introduced")
    ):
        here = None if text == "0" else order(text)
        if name == "introduced" and (here is None or at >= here):
            is_affected = True
        elif (name == "fixed" and here is not None and at >= here) or (
            name == "last_affected" and here is not None and at > here
        ):
            is_affected = False
    return is_affected


def _semver(text: str) -> Any:
    return SemVer.parse(text, optional_minor_and_patch=True)


def _maven(text: str) -> tuple[int, ...]:
    """Numbers only: a qualifier that says more than "final" raises ValueError."""
    numbers = [int(number) for number in re.split(r"[.-]", _FINAL.sub("", text))]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


_ORDERS: Mapping[str, Callable[[str], Any]] = {"cargo": _semver, "pypi": Version, "maven": _maven}


def _finding(part: Part, record: Mapping[str, Any]) -> Finding:
    fixed = {
        str(event["fixed"])
        for one in _affected(record, part)
        for span in one.get("ranges", ())
        if span.get("type") != "GIT"
        for event in span.get("events", ())
        if "fixed" in event
    }
    fixed |= {one for affected in _affected(record, part) for one in affected.get("fixed", ())}
    summary = str(record.get("summary") or record.get("details") or "").strip().partition("\n")[0]
    aliases = frozenset(map(str, record.get("aliases", ())))
    return Finding(part, str(record.get("id", "?")), aliases, summary[:200], tuple(sorted(fixed)))
