"""Certificates for TLS: how a client checks the broker, and how it authenticates itself.

They are PEM files, read when a connection is opened, so a renewed certificate is used for the next connection. Without
an authority, those that come with gRPC are trusted. Nothing here opens a connection.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker_edge.credentials import resolve_bytes
from broker_edge.errors import ConfigError

# Default variables, if the program gives no files.
CA_VARIABLE = "HEADWATER_TLS_CA"
CERT_VARIABLE = "HEADWATER_TLS_CERT"
KEY_VARIABLE = "HEADWATER_TLS_KEY"


class Tls(Protocol):
    """The TLS settings of a connection."""

    @property
    def is_given(self) -> bool:
        """Whether any file is given."""

    def read(self) -> dict[str, bytes]:
        """The TLS arguments of a Flight client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The authority of the broker's certificate, and the client's own certificate with its key, if the broker asks for
    one."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a certificate and its key belong together: give tls_cert and tls_key, or neither")

    @property
    def is_given(self) -> bool:
        """Whether any file is given."""
        return self != TlsFiles()

    @classmethod
    def from_environment(cls) -> TlsFiles:
        """The files named by HEADWATER_TLS_CA, HEADWATER_TLS_CERT and HEADWATER_TLS_KEY."""
        ca, cert, key = (os.environ.get(name) for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE))
        return cls(ca=Path(ca) if ca else None, cert=Path(cert) if cert else None, key=Path(key) if key else None)

    def read(self) -> dict[str, bytes]:
        """The TLS arguments of a Flight client. Raises ConfigError for a file that cannot be read."""
        named = {"tls_root_certs": self.ca, "cert_chain": self.cert, "private_key": self.key}
        return {name: _bytes_of(path) for name, path in named.items() if path is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsReferences:
    """Like `TlsFiles`, but by reference (`file:PATH`, `env:NAME`, `secret:SCOPE/KEY`), for files on other machines."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a certificate and its key belong together: give tls.cert and tls.key, or neither")

    @property
    def is_given(self) -> bool:
        return self != TlsReferences()

    def read(self) -> dict[str, bytes]:
        named = {
            "tls_root_certs": ("tls.ca", self.ca),
            "cert_chain": ("tls.cert", self.cert),
            "private_key": ("tls.key", self.key),
        }
        found = {name: resolve_bytes(reference, what=what) for name, (what, reference) in named.items() if reference}
        for name, content in found.items():
            if b"-----BEGIN" not in content:
                raise ConfigError(f"{named[name][0]}: {named[name][1]} contains no PEM block")
        return found


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}): check the path and its permissions") from error
