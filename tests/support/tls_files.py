"""Certificate authorities and certificates for tests, made by openssl: for localhost and a month, unless a test wants
others."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

WAIT_S = 60
NAMES = "DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate and its key, and the authority that signed it."""

    ca: Path
    cert: Path
    key: Path


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=WAIT_S)


def new_key(path: Path) -> Path:
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)
    return path


def new_authority(folder: Path, name: str) -> Path:
    ca = folder / f"{name}.pem"
    subject = ["-subj", f"/CN={name}", "-days", "30"]
    openssl("req", "-x509", "-new", "-key", new_key(folder / f"{name}.key"), "-out", ca, *subject)
    return ca


def sign(ca: Path, name: str, *, names: str = NAMES, days: int = 30) -> Files:
    """A certificate for these `names`; with negative `days` it has expired."""
    folder = ca.parent
    key, request, cert, extensions = (folder / f"{name}.{end}" for end in ("key", "csr", "crt", "ext"))
    extensions.write_text(f"subjectAltName={names}\n")
    openssl("req", "-new", "-key", new_key(key), "-subj", f"/CN={name}", "-out", request)
    signer: list[str | Path] = [
        "-CA",
        ca,
        "-CAkey",
        ca.with_suffix(".key"),
        "-CAcreateserial",
        "-days",
        str(days),
        "-extfile",
        extensions,
    ]
    openssl("x509", "-req", "-in", request, "-out", cert, *signer)
    return Files(ca=ca, cert=cert, key=key)
