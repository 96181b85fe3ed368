"""`make wheels`: a wheel for every machine that a broker or a job may run on, built on this one.

    python -m supply.wheels [--profile release] [--out dist] [--zig FILE] [--only PLATFORM]

maturin compiles and zig links, so that a wheel needs no newer C library than its name says, whatever this machine has.
A target without a Rust standard library here is skipped by name, with the command that brings it. Exit code 1 if a
build fails or if nothing could be built.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ZIG_VARIABLE = "CARGO_ZIGBUILD_ZIG_PATH"
"""Where maturin's linker looks for zig."""


@dataclass(frozen=True, slots=True)
class Target:
    """`platform` is the tag in the name of the wheel without the machine: the oldest C library that it runs with."""

    triple: str
    platform: str

    @property
    def name(self) -> str:
        return f"{self.platform}_{self.triple.partition('-')[0]}"


TARGETS = (
    # glibc 2.17 is the oldest that Rust's standard library supports.
    Target("x86_64-unknown-linux-gnu", "manylinux2014"),
    Target("aarch64-unknown-linux-gnu", "manylinux2014"),
    Target("x86_64-unknown-linux-musl", "musllinux_1_2"),
    Target("aarch64-unknown-linux-musl", "musllinux_1_2"),
)


def has_standard_library(triple: str) -> bool:
    """Whether the Rust toolchain can compile for this target."""
    command = [os.environ.get("RUSTC", "rustc"), "--print", "target-libdir", "--target", triple]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip())
    return done.returncode == 0 and any(folder.glob("libstd-*.rlib"))


def build_command(target: Target, *, profile: str, out: Path) -> list[str]:
    command = [sys.executable, "-m", "maturin", "build", "--locked", "--profile", profile, "--zig"]
    return [*command, "--target", target.triple, "--compatibility", target.platform, "--out", str(out)]


def make(
    targets: Sequence[Target],
    build: Callable[[Target], int],
    *,
    is_there: Callable[[str], bool] = has_standard_library,
    say: Callable[[str], None],
) -> int:
    """Builds what can be built and says what was not. Returns the exit code."""
    built, failed = [], []
    for target in targets:
        if not is_there(target.triple):
            say(f"skipped {target.name}: no Rust standard library for it: rustup target add {target.triple}")
        elif build(target) == 0:
            say(f"built {target.name}")
            built.append(target)
        else:
            say(f"failed {target.name}: see what maturin says above")
            failed.append(target)
    if not built and not failed:
        say("error: nothing was built")
    return int(bool(failed) or not built)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m supply.wheels", description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", default="release", help="profile of cargo (default: release)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    parser.add_argument("--zig", type=Path, help="the zig to link with (default: the one on PATH)")
    parser.add_argument(
        "--only", action="append", choices=[one.name for one in TARGETS], metavar="PLATFORM", help="repeatable"
    )
    options = parser.parse_args(arguments)
    environment = dict(os.environ)
    if options.zig is not None:
        environment[ZIG_VARIABLE] = str(options.zig.absolute())

    def build(target: Target) -> int:
        command = build_command(target, profile=options.profile, out=options.out)
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode

    wanted = [one for one in TARGETS if options.only is None or one.name in options.only]
    return make(wanted, build, say=_say)


def _say(text: str) -> None:
    sys.stderr.write(f"wheels: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
