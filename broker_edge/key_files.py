"""A certificate and its key as two files that are never replaced, and other files that hold a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from broker_edge.authority import KeyPair
from broker_edge.errors import ConfigError


def is_made(cert: Path, key: Path) -> bool:
    """Whether both exist. Raises ConfigError if only one does: neither is ever replaced."""
    if cert.exists() != key.exists():
        raise ConfigError(f"only one of {cert} and {key} exists: put the other back, or remove this one too")
    return cert.exists()


def new_pair(pair: KeyPair, cert: Path, key: Path) -> list[Path]:
    """Writes both, which must not exist, and returns them. Only the owner may read the key."""
    new_file(key, pair.key, mode=0o600)
    new_file(cert, pair.cert, mode=0o644)
    return [cert, key]


def new_file(path: Path, content: bytes, *, mode: int) -> None:
    """Writes a file that does not exist yet; the mode holds from its first byte on. Raises OSError."""
    with opened(path, os.O_EXCL, mode) as file:
        file.write(content)


def opened(path: Path, flags: int, mode: int) -> IO[bytes]:
    """A file for writing, which is created with `mode`; `flags` are further ones of `os.open`. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, mode), "wb")
