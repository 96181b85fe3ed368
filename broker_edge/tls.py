"""Certificates for TLS: how a client checks the broker, and how it authenticates itself.

They are PEM files, read when a connection is opened, so a renewed certificate is used for the next connection. Without
an authority, those that come with gRPC are trusted. Nothing here opens a connection.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from broker_edge.credentials import REFERENCE, resolve_bytes
from broker_edge.errors import ConfigError
from broker_edge.regular_file import read_regular

if TYPE_CHECKING:
    import ssl

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

    @classmethod
    def from_environment(cls) -> TlsReferences:
        """From HEADWATER_TLS_CA, HEADWATER_TLS_CERT and HEADWATER_TLS_KEY, each a path or a reference."""
        ca, cert, key = (pem_reference(os.environ.get(name)) for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE))
        return cls(ca=ca, cert=cert, key=key)

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


NO_TLS = TlsReferences()
"""No files: the authorities of the system or of gRPC, and no certificate of our own."""


def pem_reference(text: str | None) -> str | None:
    """The reference that `text` is, or `file:` with `text` as the path. None for None and for an empty text."""
    if not text:
        return None
    return text if REFERENCE.fullmatch(text) else f"file:{text}"


def _bytes_of(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}): check the path and its permissions") from error


def ssl_context(tls: TlsReferences) -> ssl.SSLContext:
    """A context that checks the broker's certificate: by `tls.ca`, otherwise by the authorities of the system. Raises
    ConfigError."""
    import ssl  # Most programs that have such references leave the handshake to a library.

    files = tls.read()
    try:
        ca = files.get("tls_root_certs")
        context = ssl.create_default_context(cadata=None if ca is None else ca.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"tls.ca: {tls.ca} contains no certificate that can be read ({error})") from error
    if "cert_chain" not in files:
        return context
    # The library reads a certificate from files only. The folder can be read by this user alone.
    with tempfile.TemporaryDirectory(prefix="headwater-tls-") as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        cert.write_bytes(files["cert_chain"])
        key.write_bytes(files["private_key"])
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"tls.cert: {tls.cert} and tls.key: {tls.key} cannot be used together ({error}): give a certificate "
                "and its key, without a password"
            ) from error
    return context


def _no_password() -> str:
    """Called for an encrypted key, for which OpenSSL would ask on the terminal."""
    return ""


def tls_reason(error: BaseException | str, *, has_certificate: bool) -> str | None:
    """What a failed TLS handshake means and what to do about it; None if the error is about something else.

    `error` is an exception or a message of OpenSSL, BoringSSL (gRPC) or Python.
    """
    text = str(error)
    lower = text.lower().replace("_", " ")
    if "certificate required" in lower or "certificaterequired" in lower:
        what = "another certificate" if has_certificate else "a certificate"
        return f"the broker asks for {what}: give --tls-cert and --tls-key"
    if "has expired" in lower or "certificate expired" in lower:
        return "the certificate has expired: renew it, or check the clock"
    if "not yet valid" in lower:
        return "the certificate is not valid yet: check the clock"
    if any(
        words in lower for words in ("hostname mismatch", "ip address mismatch", "is not in peer cert", "not valid for")
    ):
        return "the certificate is for another name: call the broker by a name in its certificate"
    if "unknown ca" in lower or "bad certificate" in lower:
        return "the broker does not accept our certificate: use one that its authority has signed"
    if "certificate verify failed" in lower or "self signed" in lower or "self-signed" in lower:
        return "the authority of the certificate is unknown: give its file with --tls-ca"
    if "wrong version number" in lower or "record layer failure" in lower or "unexpected message" in lower:
        return "it does not speak TLS: use an address without TLS, or the port with TLS"
    return None
