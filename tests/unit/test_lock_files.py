"""Every lock file matches the manifests beside it, so that a fresh clone installs and builds what was tested."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def _tracked(name: str) -> list[str]:
    command = ["git", "ls-files", "--", name, f"*/{name}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins() -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "requirements.lock").read_text().splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {_key(name): version for name, _, version in pairs}


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
    assert _misfits(_pins(), _requirements()) == [], "install the extras and write requirements.lock again (pip freeze)"


def test_control_a_stale_lock_file_is_noticed() -> None:
    pins = _pins()
    assert _misfits({**pins, "paho-mqtt": "1.6.1"}, _requirements()) == ["paho-mqtt<3,>=2.2"]
    assert _misfits({n: v for n, v in pins.items() if n != "typer"}, _requirements()) == ["typer<1,>=0.29"]


def test_there_are_lock_files_of_cargo() -> None:
    assert {"broker_edge/core/Cargo.lock", "tests/bench/log/Cargo.lock"} <= set(_tracked("Cargo.lock"))


@pytest.mark.parametrize("lock", _tracked("Cargo.lock"))
def test_a_lock_file_of_cargo_fits_its_manifests(lock: str) -> None:
    manifest = (ROOT / lock).with_name("Cargo.toml")
    command = ["cargo", "update", "--workspace", "--locked", "--manifest-path", str(manifest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `cargo update --workspace --manifest-path {manifest}`:\n{done.stderr}"
