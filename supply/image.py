"""`make image`: the broker as an OCI image from scratch, an archive that needs no container engine to be made.

    python -m supply.image --binary FILE [--to dist/headwaterd-image.tar]

The archive has the layout of the OCI image specification, which `podman load` and `skopeo copy oci-archive:…` read. The
image has the program, its user and its folders: no shell, no other program. A static binary is taken as it is; the
libraries of another one are copied from this machine. The same binary makes the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supply.packages import ROOT, PackageError, epoch, inspect, project_version, strip

UID = 10001
"""The user of the chart (`podSecurityContext`), which owns the data."""
CONF = "/etc/headwater/broker.yaml"
DATA = "/var/lib/headwater"
_USER = f"headwater:x:{UID}:{UID}:headwater edge broker:{DATA}:/sbin/nologin\n"
_FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\n{_USER}",
    "etc/group": f"root:x:0:\nheadwater:x:{UID}:\n",
    # Replaced by a mounted file; without one the broker starts with defaults.
    CONF[1:]: f"data_dir: {DATA}/data\n",
}
_TAR = "application/vnd.oci.image.layer.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder (no content) or a file of the image. `private` ones belong to the broker's user alone."""

    path: str
    content: bytes | None = None
    mode: int = 0o755
    private: bool = False


def libraries(binary: Path) -> dict[str, Path]:
    """The shared libraries of a program and its loader, by the path at which it looks for them."""
    done = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False)
    if done.returncode != 0 or "not found" in done.stdout:
        said = (done.stdout + done.stderr).strip()
        raise PackageError(f"the libraries of {binary} are not on this machine: build it static (make image): {said}")
    found = re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout)
    return {path: Path(path).resolve() for path in sorted(found)}


def entries(binary: Path) -> Iterator[Entry]:
    """What is in the image, folders before what they hold."""
    linked = {} if inspect(binary).glibc is None or _is_static(binary) else libraries(binary)
    files = {path.lstrip("/"): source.read_bytes() for path, source in linked.items()}
    with tempfile.TemporaryDirectory() as folder:
        strip(binary, Path(folder) / "headwaterd")
        files["usr/bin/headwaterd"] = (Path(folder) / "headwaterd").read_bytes()
    folders = {str(parent) for path in (*files, *_FILES) for parent in Path(path).parents} - {"."}
    for name in sorted(folders):
        if name != "etc/headwater":
            yield Entry(name)
    yield Entry("etc/headwater", mode=0o700, private=True)
    yield Entry("var")
    yield Entry("var/lib")
    yield Entry(DATA[1:], mode=0o700, private=True)
    yield Entry("tmp", mode=0o1777)
    for name, text in sorted(_FILES.items()):
        private = name == CONF[1:]
        yield Entry(name, text.encode(), 0o600 if private else 0o644, private)
    for name, content in sorted(files.items()):
        yield Entry(name, content)


def _is_static(binary: Path) -> bool:
    """Whether the program names no loader: a static one has no segment PT_INTERP."""
    data = binary.read_bytes()
    start, size, count = (int.from_bytes(data[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    return all(data[at : at + 4] != b"\x03\0\0\0" for at in range(start, start + size * count, size))


def layer(contents: Iterator[Entry], at: int) -> bytes:
    """The entries as a tar, with one time for all."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in contents:
            info = tarfile.TarInfo(entry.path)
            info.type = tarfile.DIRTYPE if entry.content is None else tarfile.REGTYPE
            info.size, info.mode, info.mtime = len(entry.content or b""), entry.mode, at
            info.uid = info.gid = UID if entry.private else 0
            archive.addfile(info, io.BytesIO(entry.content or b""))
    return out.getvalue()


def config(architecture: str, version: str, diff_id: str, at: int) -> dict[str, Any]:
    """How the image is run. `Healthcheck` is Docker's field; Kubernetes asks `/readyz` itself."""
    created = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "User": f"{UID}:{UID}",
            "ExposedPorts": {f"{port}/tcp": {} for port in (1883, 8080, 8815)},
            "Env": ["PATH=/usr/bin", f"HEADWATER_DATA_DIR={DATA}/data"],
            "Entrypoint": ["/usr/bin/headwaterd"],
            "Cmd": ["--config", CONF],
            "Volumes": {DATA: {}},
            "WorkingDir": DATA,
            "StopSignal": "SIGTERM",
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/headwaterd", "ready", "--config", CONF],
                # In nanoseconds.
                "Interval": 30_000_000_000,
                "Timeout": 5_000_000_000,
                "StartPeriod": 60_000_000_000,
            },
            "Labels": {
                "org.opencontainers.image.title": "headwaterd",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "headwater: make image"}],
    }


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def build(binary: Path, to: Path, version: str | None = None) -> Path:
    """Writes the archive of the image."""
    architecture, at = inspect(binary).architecture, epoch()
    version = version or project_version()
    plain = layer(entries(binary), at)
    packed = gzip.compress(plain, 6, mtime=0)
    about = _json(config(architecture, version, digest(plain), at))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, about),
            "layers": [_descriptor(_TAR, packed)],
        }
    )
    named = _descriptor(_MANIFEST, manifest) | {
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": version},
    }
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [named]}
    blobs = {f"blobs/sha256/{digest(data)[7:]}": data for data in (packed, about, manifest)}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs}
    folders = (Entry("blobs"), Entry("blobs/sha256"))
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(layer(iter([*folders, *(Entry(name, data, 0o644) for name, data in files.items())]), at))
    return to


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


def main() -> int | str:
    parser = argparse.ArgumentParser(description="The broker as an OCI image.")
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "headwaterd-image.tar", help="the archive")
    options = parser.parse_args()
    try:
        image = build(options.binary, options.to)
    except PackageError as error:
        return f"image: {error}"
    sys.stdout.write(f"{image} ({image.stat().st_size / 1e6:.1f} MB)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
