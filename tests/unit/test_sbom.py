"""The bill of materials fits its schema, names every part that is shipped exactly once, and is the same each time.

What is shipped is asked of others than the code that writes it: `cargo tree`, and the lines of the lock files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".cache" / "tools"
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(0 if error is None else f"invalid: {error}")
"""


def _python(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    assert TOOLS.is_dir(), "the tools are missing: run `make sbom`, which fetches them"
    known = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    known |= {"PYTHONPATH": f"{TOOLS}:{ROOT}", **environment}
    command = [sys.executable, *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=known, cwd=ROOT, check=False)


def _written(to: Path, **environment: str) -> bytes:
    done = _python("-m", "supply.sbom", "--to", str(to), **environment)
    assert done.returncode == 0, done.stderr
    return to.read_bytes()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _written(tmp_path_factory.mktemp("sbom") / "a.json").decode()


@cache
def _crates() -> Counter[str]:
    """The crates that cargo compiles for the wheel and the binary, from its own tree; those of tests are in none."""
    found: set[str] = set()
    for target in ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"):
        command = ["cargo", "tree", "--locked", "--edges", "no-dev", "--prefix", "none", "--target", target]
        command += ["--package", "headwater-broker", "--package", "headwater-python"]
        command += ["--features", "headwater-python/python"]
        tree = subprocess.run(command, cwd=ROOT / "broker_edge/core", capture_output=True, text=True, check=True)
        found |= set(re.findall(r"^(\S+) v(\S+)", tree.stdout, re.MULTILINE))
    return Counter(f"pkg:cargo/{name}@{version}" for name, version in found if not name.startswith("headwater-"))


def _packages() -> Counter[str]:
    pins = re.findall(r"^([\w.-]+)==([^\s\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return Counter(f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}" for name, version in pins)


def _jars() -> Counter[str]:
    names = re.findall(r"  ([^_\n]+)_(.+)-(\d.*)\.jar$", (ROOT / "pipelines/spark/jars.sha256").read_text(), re.M)
    return Counter(f"pkg:maven/{group}/{artifact}@{version}" for group, artifact, version in names)


def _scripts() -> Counter[str]:
    return Counter(("pkg:npm/htm@3.1.1", "pkg:npm/uplot@1.6.32"))


def _wrong(document: dict[str, Any]) -> list[str]:
    """What the document has too little, too much, or without digest or licence."""
    parts = document["components"]
    wanted, found = _crates() + _packages() + _jars() + _scripts(), Counter(part["purl"] for part in parts)
    wrong = [f"missing: {purl}" for purl in (wanted - found)] + [f"not shipped: {purl}" for purl in (found - wanted)]
    for part in parts:
        digests = [one["content"] for one in part.get("hashes", ()) if one["alg"] == "SHA-256"]
        wrong += [] if digests else [f"no digest: {part['purl']}"]
        has_licence = bool(part.get("licenses")) or part["purl"].startswith("pkg:maven/")
        wrong += [] if has_licence else [f"no licence: {part['purl']}"]
    return wrong


def test_every_crate_package_and_jar_is_in_it_once_with_version_digest_and_licence(text: str) -> None:
    document = json.loads(text)
    assert _wrong(document) == []
    assert min(len(_crates()), len(_packages()), len(_jars())) > 40


def test_its_digests_are_those_of_the_lock_files(text: str) -> None:
    found = {one["purl"]: {h["content"] for h in one["hashes"]} for one in json.loads(text)["components"]}
    lock = tomllib.loads((ROOT / "broker_edge/core/Cargo.lock").read_text())["package"]
    ring = next(one for one in lock if one["name"] == "ring")
    assert found[f"pkg:cargo/ring@{ring['version']}"] == {ring["checksum"]}
    of_python = {one for purl, digests in found.items() if purl.startswith("pkg:pypi/") for one in digests}
    assert of_python == set(re.findall(r"sha256:(\w{64})", (ROOT / "requirements.lock").read_text()))
    of_scripts = {one for purl, digests in found.items() if purl.startswith("pkg:npm/") for one in digests}
    vendor = (ROOT / "broker_edge/ui/vendor/SHA256SUMS").read_text()
    assert of_scripts == set(re.findall(r"^(\w{64})  .*(?:js|css)$", vendor, re.M))
    of_jars = {one for purl, digests in found.items() if purl.startswith("pkg:maven/") for one in digests}
    assert of_jars == set(re.findall(r"^\w{64}", (ROOT / "pipelines/spark/jars.sha256").read_text(), re.M))


def test_it_tells_what_the_base_needs_from_what_an_extra_adds_and_what_only_builds(text: str) -> None:
    scopes = {one["purl"].split("@")[0]: one["scope"] for one in json.loads(text)["components"]}
    python = [scopes[f"pkg:pypi/{name}"] for name in ("typer", "pyarrow", "pyspark")]
    assert python == ["required", "optional", "optional"]
    assert (scopes["pkg:pypi/pytest"], scopes["pkg:cargo/rustls"]) == ("excluded", "required")
    assert scopes["pkg:cargo/target-lexicon"] == "excluded"


def test_a_part_that_is_missing_doubled_or_bare_is_found(text: str) -> None:
    """The control of the tests above."""
    for purl in ("pkg:cargo/ring@", "pkg:pypi/pyarrow@", "pkg:maven/io.delta/delta-storage@", "pkg:npm/htm@"):
        document = json.loads(text)
        place, part = next((i, one) for i, one in enumerate(document["components"]) if one["purl"].startswith(purl))
        document["components"].append(part)
        assert _wrong(document) == [f"not shipped: {part['purl']}"]
        document["components"].pop()
        del part["hashes"]
        assert _wrong(document) == [f"no digest: {part['purl']}"]
        del document["components"][place]
        assert _wrong(document) == [f"missing: {part['purl']}"]


def test_it_fits_the_schema_of_cyclonedx_1_6(text: str) -> None:
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    done = _python("-c", _VALIDATE, stdin=text)
    assert done.returncode == 0, done.stderr
    # The control: a scope that the schema does not have.
    document["components"][0]["scope"] = "sometimes"
    assert "sometimes" in _python("-c", _VALIDATE, stdin=json.dumps(document)).stderr


def test_the_same_lock_files_give_the_same_bytes(text: str, tmp_path: Path) -> None:
    again = _written(tmp_path / "b.json", PYTHONHASHSEED="7", TZ="Asia/Tokyo")
    assert again.decode() == text
    assert "timestamp" not in json.loads(text)["metadata"]
    dated = json.loads(_written(tmp_path / "c.json", SOURCE_DATE_EPOCH="1700000000"))
    assert dated["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    assert dated["serialNumber"] == json.loads(text)["serialNumber"]


def test_what_cannot_be_read_is_one_sentence_and_leaves_no_file(tmp_path: Path) -> None:
    done = _python("-m", "supply.sbom", "--to", str(tmp_path / "d.json"), SOURCE_DATE_EPOCH="soon")
    assert done.returncode == 1
    assert done.stderr == "sbom: SOURCE_DATE_EPOCH is `soon`: write seconds since 1970\n"
    assert not list(tmp_path.iterdir())
