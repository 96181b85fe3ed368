"""`make wheels`: which targets are built and which are skipped, without building any."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from supply.wheels import TARGETS, Target, build_command, has_standard_library, main, make

ROOT = Path(__file__).resolve().parents[2]


def made(there: Iterable[str], code: int = 0) -> tuple[int, list[Target], list[str]]:
    """Exit code, the targets that were built, and what was said."""
    built: list[Target] = []
    said: list[str] = []

    def build(target: Target) -> int:
        built.append(target)
        return code

    return make(TARGETS, build, is_there=set(there).__contains__, say=said.append), built, said


def test_the_targets_are_both_machines_with_both_c_libraries() -> None:
    assert [target.name for target in TARGETS] == [
        "manylinux2014_x86_64",
        "manylinux2014_aarch64",
        "musllinux_1_2_x86_64",
        "musllinux_1_2_aarch64",
    ]


def test_a_target_without_a_standard_library_is_skipped_by_name_with_what_to_run() -> None:
    code, built, said = made(["x86_64-unknown-linux-gnu"])
    assert (code, built) == (0, [TARGETS[0]])
    assert said[0] == "built manylinux2014_x86_64"
    assert said[3] == (
        "skipped musllinux_1_2_aarch64: no Rust standard library for it: rustup target add aarch64-unknown-linux-musl"
    )
    assert len(said) == len(TARGETS)


def test_all_are_built_where_all_libraries_are() -> None:
    code, built, said = made([target.triple for target in TARGETS])
    assert (code, tuple(built)) == (0, TARGETS)
    assert all(line.startswith("built ") for line in said)


def test_a_build_that_fails_is_named_and_the_others_are_built() -> None:
    code, built, said = made([TARGETS[0].triple, TARGETS[2].triple], code=1)
    assert (code, len(built)) == (1, 2)
    assert "failed musllinux_1_2_x86_64: see what maturin says above" in said


def test_nothing_to_build_is_an_error() -> None:
    assert made([])[0] == 1
    assert made([])[2][-1] == "error: nothing was built"


def test_the_toolchain_is_asked_for_its_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = subprocess.run(["rustc", "--version", "--verbose"], capture_output=True, text=True, check=True).stdout
    (triple,) = re.findall(r"^host: (\S+)$", host, re.MULTILINE)
    assert has_standard_library(triple)
    assert not has_standard_library("no-such-target")
    rustc = tmp_path / "rustc"
    rustc.write_text(f"#!/bin/sh\necho {tmp_path}/lib\n")
    rustc.chmod(0o755)
    monkeypatch.setenv("RUSTC", str(rustc))
    assert not has_standard_library(triple), "the folder of a library that is not installed"


def test_zig_links_for_the_oldest_c_library_of_the_name() -> None:
    command = build_command(TARGETS[3], profile="quick", out=Path("out"))
    assert command[:4] == [sys.executable, "-m", "maturin", "build"]
    assert "--zig" in command
    assert command[command.index("--target") + 1] == "aarch64-unknown-linux-musl"
    assert command[command.index("--compatibility") + 1] == "musllinux_1_2"


def test_one_platform_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RUSTC", "/bin/false")
    assert main(["--only", "musllinux_1_2_x86_64"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "wheels: skipped musllinux_1_2_x86_64: no Rust standard library for it: "
        "rustup target add x86_64-unknown-linux-musl",
        "wheels: error: nothing was built",
    ]
