"""The certificates by which the nodes of a cluster know each other, in one folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from broker_edge.authority import KeyPair, new_authority, new_certificate
from broker_edge.errors import ConfigError
from broker_edge.key_files import is_made, new_pair
from broker_edge.regular_file import read_regular

_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_AUTHORITY = "ca"


def write_certificates(folder: Path, nodes: Sequence[str]) -> list[Path]:
    """Writes the files that do not exist and returns them: `ca.pem` and `ca.key`, then those of each node. Raises
    ConfigError."""
    for name in nodes:
        if not _NAME.fullmatch(name) or name == _AUTHORITY:
            raise ConfigError(
                f"`{name}` cannot be the name of a node: 1 to 63 letters, digits, '-', '_' or '.', not ca"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = _write(folder, _AUTHORITY, partial(new_authority, "headwater cluster"))
        authority = KeyPair(*(read_regular(folder / f"{_AUTHORITY}.{end}") for end in ("pem", "key")))
        for name in nodes:
            made += _write(folder, name, partial(new_certificate, authority, name, is_node=True))
    except OSError as error:
        raise ConfigError(f"cannot use {error.filename or folder} ({error.strerror})") from error
    return made


def _write(folder: Path, name: str, make: Callable[[], KeyPair]) -> list[Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    return [] if is_made(cert, key) else new_pair(make(), cert, key)
