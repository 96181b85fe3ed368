"""The parts that headwater is made of, each with version, digests and licence: crates, Python packages, jars, and the
scripts of others in the console.

It reads the lock files, `cargo metadata`, and the metadata of the packages that are installed beside this interpreter.
It writes nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
"""The wheel and the binary are made for these."""
SHIPPED_CRATES = ("headwater-broker", "headwater-python")
ECOSYSTEMS = {"cargo": "crates.io", "pypi": "PyPI", "maven": "Maven", "npm": "npm"}
"""Types of package URLs, and the names of the same at OSV."""

Scope = Literal["required", "optional", "excluded"]
"""In the words of CycloneDX: always there, there with an extra, or used only to build and test."""

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)((?:\s*\\\n\s+--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)
_JAR = re.compile(r"^([0-9a-f]{64}) [ *]([^_\s]+)_(\S+?)-(\d[^-\s]*)\.jar$", re.MULTILINE)
_SCRIPT = re.compile(r"^\| `([^`]+)` \|[^|]*\| `([^`]+)@([^`]+)`[^|]*\| ([^|]+) \|$", re.MULTILINE)
_CLASSIFIED = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
}
"""Classifiers that stand for one licence. `BSD License` stands for several, and stays a name."""


class ShippedError(Exception):
    """The lists cannot be read. `str()` is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """One package. `sha256` has the digest of each file that may be installed for it; any one of them counts."""

    kind: Literal["cargo", "pypi", "maven", "npm"]
    name: str
    version: str
    sha256: tuple[str, ...]
    licence: str | None
    scope: Scope
    belongs_to: str
    """`headwaterd`, `base`, names of extras, or which jobs need the jar."""
    needs: tuple[str, ...] = ()
    """Package URLs of what it depends on."""

    @property
    def purl(self) -> str:
        return f"pkg:{self.kind}/{self.name.replace(':', '/')}@{self.version}"


def parts(root: Path = ROOT) -> list[Part]:
    """All parts, in the order of their package URLs."""
    return sorted([*crates(root), *packages(root), *jars(root), *scripts(root)], key=lambda part: part.purl)


# Crates


def crates(root: Path = ROOT) -> list[Part]:
    """The crates from the registry that are compiled for the wheel and the binary, without those of tests alone.

    Crates that run only while others are built (build scripts, macros) have the scope `excluded`.
    """
    manifest = root / "broker_edge" / "core" / "Cargo.toml"
    lock = tomllib.loads(manifest.with_name("Cargo.lock").read_text("utf-8"))["package"]
    checksums = {(one["name"], one["version"]): one["checksum"] for one in lock if "checksum" in one}
    # `cargo metadata` also counts what the dependencies of tests switch on; `cargo tree` does not.
    compiled = {crate for target in TARGETS for crate in _tree(manifest, target, "normal,build")}
    linked = {crate for target in TARGETS for crate in _tree(manifest, target, "normal,no-proc-macro")}
    found = {
        part.purl: part for target in TARGETS for part in _of_metadata(manifest, target, compiled, linked, checksums)
    }
    return list(found.values())


def _tree(manifest: Path, target: str, edges: str) -> set[tuple[str, str]]:
    """Names and versions of the crates that are compiled for what is shipped."""
    words = [word for name in SHIPPED_CRATES for word in ("--package", name)]
    told = _cargo("tree", manifest, "--edges", edges, "--prefix", "none", "--target", target, *words)
    return set(re.findall(r"^(\S+) v(\S+)", told, re.MULTILINE))


def _cargo(verb: str, manifest: Path, *words: str) -> str:
    command = ["cargo", verb, "--locked", "--manifest-path", str(manifest), "--features", "headwater-python/python"]
    try:
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ShippedError("cargo is missing: install Rust (https://rustup.rs)") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ShippedError(f"cargo cannot list the crates of {manifest}: {last}")
    return done.stdout


def _of_metadata(
    manifest: Path,
    target: str,
    compiled: set[tuple[str, str]],
    linked: set[tuple[str, str]],
    checksums: Mapping[tuple[str, str], str],
) -> Iterator[Part]:
    metadata = json.loads(_cargo("metadata", manifest, "--format-version", "1", "--filter-platform", target))
    named = {one["id"]: (one["name"], one["version"]) for one in metadata["packages"]}
    nodes = {one["id"]: one for one in metadata["resolve"]["nodes"]}
    for one in metadata["packages"]:
        crate = named[one["id"]]
        if one["source"] is None or crate not in compiled:
            continue
        deps = [d["pkg"] for d in nodes[one["id"]]["deps"] if any(kind["kind"] != "dev" for kind in d["dep_kinds"])]
        yield Part(
            kind="cargo",
            name=one["name"],
            version=one["version"],
            sha256=(checksums[crate],),
            licence=_of_cargo(one),
            scope="required" if crate in linked else "excluded",
            belongs_to="headwaterd",
            needs=tuple(
                sorted(
                    f"pkg:cargo/{name}@{version}"
                    for name, version in map(named.__getitem__, deps)
                    if (name, version) in compiled
                )
            ),
        )


def _of_cargo(package: Mapping[str, Any]) -> str | None:
    """The licence; `A/B` is the older way to write `A OR B`."""
    text = package["license"]
    return None if text is None else re.sub(r"\s*/\s*", " OR ", text)


# Python packages


def packages(root: Path = ROOT) -> list[Part]:
    """The pins of requirements.lock; their licences and needs are those of the installed packages."""
    lock = (root / "requirements.lock").read_text("utf-8")
    pins = {str(canonicalize_name(name)): (version, hashes) for name, version, hashes in _PIN.findall(lock)}
    installed = {name: _installed(name, version) for name, (version, _) in pins.items()}
    extras = _extras(root, installed)
    found = []
    for name, (version, hashes) in pins.items():
        of = sorted(extra for extra, names in extras.items() if name in names)
        needs = {need for need, _ in _needs(installed[name], frozenset())} & pins.keys()
        found.append(
            Part(
                kind="pypi",
                name=name,
                version=version,
                sha256=tuple(re.findall(r"sha256:([0-9a-f]{64})", hashes)),
                licence=_of_python(installed[name]),
                scope="required" if "base" in of else "optional" if {*of} - {"dev"} else "excluded",
                belongs_to="base" if "base" in of else " ".join(one for one in of if one != "dev" or of == ["dev"]),
                needs=tuple(sorted(f"pkg:pypi/{need}@{pins[need][0]}" for need in needs)),
            )
        )
    return found


def _installed(name: str, version: str) -> Distribution:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise ShippedError(f"{name} {version} of requirements.lock is not installed: run `make build`") from None
    if found.version != version:
        raise ShippedError(f"{name} is installed as {found.version} and locked as {version}: run `make build`")
    return found


def _extras(root: Path, installed: Mapping[str, Distribution]) -> dict[str, set[str]]:
    """`base` and each extra of pyproject.toml, with all packages that it brings."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    asked = {"base": project["dependencies"], **project["optional-dependencies"]}
    return {extra: _closure(requirements, installed) for extra, requirements in asked.items()}


def _closure(requirements: Iterable[str], installed: Mapping[str, Distribution]) -> set[str]:
    left = [(str(canonicalize_name(one.name)), frozenset(one.extras)) for one in map(Requirement, requirements)]
    seen = set(left)
    while left:
        name, extras = left.pop()
        if name not in installed:
            continue  # Our own extras, which are listed by themselves.
        new = _needs(installed[name], extras) - seen
        seen |= new
        left += new
    return {name for name, _ in seen}


def _needs(package: Distribution, extras: frozenset[str]) -> set[tuple[str, frozenset[str]]]:
    found = set()
    for one in map(Requirement, package.requires or ()):
        marker = one.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            found.add((str(canonicalize_name(one.name)), frozenset(one.extras)))
    return found


def _of_python(package: Distribution) -> str | None:
    """An expression if the package has one, then its classifiers, then the first line of its licence, then the name of
    the file that it ships."""
    about = package.metadata
    if "License-Expression" in about:
        return str(about["License-Expression"])
    short = str(about["License"]).strip() if "License" in about else ""
    given = (str(one) for one in about.get_all("Classifier") or ())
    classifiers = [one.rpartition(" :: ")[2] for one in given if "OSI Approved ::" in one]
    if short and re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*", short) and short != "UNKNOWN":
        return short
    if classifiers:
        return _CLASSIFIED.get(classifiers[0], classifiers[0])
    if short:
        return short.splitlines()[0]
    files = [file.name for file in package.files or () if "LICENSE" in file.name.upper()]
    return f"see its file {files[0]}" if files else None


# Jars


def jars(root: Path = ROOT) -> list[Part]:
    """The jars with their digests: those of Delta, which the jobs need, and those of S3, which are for jobs on S3."""
    text = (root / "pipelines" / "spark" / "jars.sha256").read_text("utf-8")
    found = []
    for digest, group, artifact, version in _JAR.findall(text):
        is_delta = group in ("io.delta", "io.unitycatalog")
        found.append(
            Part(
                kind="maven",
                name=f"{group}:{artifact}",
                version=version,
                sha256=(digest,),
                licence=None,
                scope="optional",
                belongs_to="jobs" if is_delta else "jobs on S3",
            )
        )
    if len(found) != text.count(".jar\n"):
        raise ShippedError("pipelines/spark/jars.sha256 has a line that is not `SHA256  GROUP_ARTIFACT-VERSION.jar`")
    return found


# Scripts of the console


def scripts(root: Path = ROOT) -> list[Part]:
    """The files of others in the console, which are in the binary: the rows of vendor/README.md."""
    vendor = root / "broker_edge" / "ui" / "vendor"
    sums = {name: digest for digest, name in map(str.split, (vendor / "SHA256SUMS").read_text("utf-8").splitlines())}
    rows = _SCRIPT.findall((vendor / "README.md").read_text("utf-8"))
    missing = {path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")} - {row[0] for row in rows}
    if missing:
        raise ShippedError(f"broker_edge/ui/vendor/README.md has no row for {', '.join(sorted(missing))}")
    found: dict[str, Part] = {}
    for file, name, version, licences in rows:
        part = Part(
            kind="npm",
            name=name,
            version=version,
            sha256=(sums[file],),
            licence=" AND ".join(sorted(set(re.findall(r"Apache-2\.0|MIT", licences)))) or None,
            scope="required",
            belongs_to="headwaterd",
        )
        before = found.get(part.purl)
        found[part.purl] = part if before is None else replace(before, sha256=(*before.sha256, *part.sha256))
    return list(found.values())
