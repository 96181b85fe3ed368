"""Puts a Rust toolchain into .cache/rust when this machine has no Rust, or one that is too old for the build.

    python3 supply/rust.py [--to .cache/rust]        (make prerequisites)

It fetches rustup-init over TLS, compares it with the digest below, and lets it install the pinned version there. The
folder appears only when the toolchain in it works, so an interrupted run can simply be run again. Nothing outside that
folder is written; `make` puts its `bin` first on PATH.

It uses the standard library alone, because it runs before there is a virtual environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

RUST_MIN = (1, 90)
RUST = "1.95.0"
"""What is installed: the version that this was tested with."""

RUSTUP = "1.28.2"
# The digests stand here and are not fetched: whoever can serve another program can serve its digest too. rustup-init
# checks what it then downloads against the manifest that the same server sends over TLS: that part rests on TLS and on
# that server, as every installation by rustup does.
RUSTUP_SHA256 = {
    "x86_64-unknown-linux-gnu": "20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c",
    "aarch64-unknown-linux-gnu": "e3853c5a252fca15252d07cb23a1bdd9377a8c6f3efa01531109281ae47f841c",
}
RUSTUP_INIT_BYTES_MAX = 64 * 2**20
CONNECT_TIMEOUT_S = 60

_YOURSELF = "install Rust 1.90 or newer yourself (https://rustup.rs)"


class ToolchainError(Exception):
    """One sentence: what is wrong and what to do."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Install Rust into the project if this machine has none.")
    parser.add_argument("--to", type=Path, default=Path(".cache/rust"))
    folder: Path = parser.parse_args(arguments).to.absolute()
    try:
        found = cargo_version()
        if found is None or found < RUST_MIN:
            install(folder, found)
    except ToolchainError as error:
        sys.stderr.write(f"make: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def cargo_version(cargo: str = "cargo") -> tuple[int, int] | None:
    """The version of the `cargo` on PATH; `None` if there is none that works."""
    try:
        done = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.match(r"cargo (\d+)\.(\d+)", done.stdout)
    # A `cargo` without a toolchain is a proxy of rustup that only says what it lacks.
    return (int(match.group(1)), int(match.group(2))) if match else None


def install(folder: Path, found: tuple[int, int] | None) -> None:
    """Puts the toolchain into `folder`, whose `bin` then has cargo and rustc. On an error nothing of it is left."""
    target = _target()
    why = "there is no Rust here" if found is None else f"Rust {found[0]}.{found[1]} is too old"
    _say(f"== {why}: installing Rust {RUST} into {_shown(folder)} (about 0.6 GB; to avoid it, {_YOURSELF})")
    # Beside its last place, because the rename below must stay within one file system.
    scratch = folder.with_name(folder.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        program = scratch / "rustup-init"
        program.write_bytes(_fetch(f"{_root()}/archive/{RUSTUP}/{target}/rustup-init", RUSTUP_SHA256[target]))
        program.chmod(0o755)
        _run(program, scratch)
        program.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    except OSError as error:
        raise ToolchainError(
            f"Rust cannot be installed into {_shown(folder)} ({error}): make room, or {_YOURSELF}"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(program: Path, folder: Path) -> None:
    """Runs rustup-init for `folder`, and leads to the programs of its toolchain: they need no variable of rustup."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RUSTUP_TOOLCHAIN")},
        "RUSTUP_HOME": str(folder / "rustup"),
        "CARGO_HOME": str(folder / "cargo"),
        # An old Rust on PATH is why this runs, so it is no reason to stop.
        "RUSTUP_INIT_SKIP_PATH_CHECK": "yes",
    }
    options = ["-y", "--no-modify-path", "--profile", "minimal", "--default-toolchain", RUST]
    # `make lint` and `make test` use both.
    options += ["--component", "clippy", "--component", "rustfmt"]
    done = subprocess.run(
        [program, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0:
        said = next((line for line in lines if line.startswith("error")), lines[-1] if lines else "no output")
        raise ToolchainError(f"rustup cannot install Rust {RUST} ({said}): try again, or {_YOURSELF}")
    programs = sorted((folder / "rustup" / "toolchains").glob("*/bin"))
    if len(programs) != 1 or cargo_version(str(programs[0] / "cargo")) is None:
        raise ToolchainError(f"rustup left no cargo that works: try again, or {_YOURSELF}")
    (folder / "bin").symlink_to(programs[0].relative_to(folder))


def _target() -> str:
    libc = "gnu" if platform.libc_ver()[0] == "glibc" else "other"
    target = f"{platform.machine()}-unknown-linux-{libc}"
    if platform.system() != "Linux" or target not in RUSTUP_SHA256:
        machine = f"{platform.system()} on {platform.machine()}" + (" without glibc" if libc == "other" else "")
        raise ToolchainError(f"Rust is missing, and `make` cannot install it on {machine}: {_YOURSELF}")
    return target


def _root() -> str:
    """Where rustup-init is: the variable of rustup's own mirrors, otherwise its home."""
    root = os.environ.get("RUSTUP_UPDATE_ROOT") or "https://static.rust-lang.org/rustup"
    parts = urllib.parse.urlsplit(root)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost"):
        raise ToolchainError(f"RUSTUP_UPDATE_ROOT is {root}, which is not https: name a mirror with TLS, or unset it")
    return root.rstrip("/")


def _fetch(address: str, sha256: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=CONNECT_TIMEOUT_S) as answer:
            content: bytes = answer.read(RUSTUP_INIT_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ToolchainError(
            f"Rust is missing, and {address} cannot be fetched ({reason}): check the network, name a mirror in "
            f"RUSTUP_UPDATE_ROOT and RUSTUP_DIST_SERVER, or {_YOURSELF}"
        ) from error
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ToolchainError(
            f"{address} has sha256 {found}, not {sha256}: it was not run; try again, or find out who changed it"
        )
    return content


def _shown(folder: Path) -> str:
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
