"""Certificates, authorities and revocation lists in the files of a broker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from broker_edge.security.check import Check
from broker_edge.security.reading import Unreadable, read_bytes

SOON = timedelta(days=30)
"""A certificate that ends within this time is a warning."""
_CRL_SOON = timedelta(days=3)
_CRL_BLOCK = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


def certificates(settings: Mapping[str, Any], now: datetime | None = None) -> Iterator[Check]:
    now = now or datetime.now(UTC)
    seen: set[str] = set()
    for name, listener in settings["listeners"].items():
        tls = listener.get("tls")
        if not tls or not tls["cert"] or not listener["bind"]:
            continue
        if tls["cert"] not in seen:
            seen.add(tls["cert"])
            yield from _cert(f"listeners.{name}.tls.cert", Path(tls["cert"]), now)
        if tls["client_auth"] == "none":
            continue
        if tls["crl"] is None:
            found = "a stolen certificate of a client stays valid until it ends"
            key = f"listeners.{name}.tls.crl"
            yield Check("warn", "revocation", key, found, f"set {key} to the revocation lists of the authority")
        elif tls["crl"] not in seen:
            seen.add(tls["crl"])
            yield from _crls(Path(tls["crl"]), now)


def _cert(key: str, path: Path, now: datetime) -> Iterator[Check]:
    where = f"{key} {path}"
    try:
        chain = x509.load_pem_x509_certificates(read_bytes(path))
    except Unreadable as error:
        yield Check("fail", "certificate", where, str(error), "check the path and its permissions")
        return
    except ValueError:
        yield Check("fail", "certificate", where, "it has no certificate", "write the certificate as PEM there")
        return
    for certificate in chain:
        yield ends(where, certificate, now)


def ends(where: str, certificate: x509.Certificate, now: datetime) -> Check:
    """Whether a certificate is valid, and for how long."""
    until = certificate.not_valid_after_utc
    renew = "renew it (headwater init FOLDER --force after removing it), and send SIGHUP to the broker"
    if now > until:
        return Check("fail", "certificate", where, f"it ended on {until:%Y-%m-%d}", renew)
    if now < certificate.not_valid_before_utc:
        found = f"it begins on {certificate.not_valid_before_utc:%Y-%m-%d}"
        return Check("fail", "certificate", where, found, "check the clock of this machine, or " + renew)
    if until - now < SOON:
        return Check("warn", "certificate", where, f"it ends on {until:%Y-%m-%d}", renew)
    return Check("ok", "certificate", where, f"valid until {until:%Y-%m-%d}")


def _crls(path: Path, now: datetime) -> Iterator[Check]:
    try:
        lists = [x509.load_pem_x509_crl(block) for block in _CRL_BLOCK.findall(read_bytes(path))]
    except (Unreadable, ValueError) as error:
        yield Check("fail", "revocation", str(path), f"it has no list that can be read ({error})", "fetch it again")
        return
    if not lists:
        yield Check("fail", "revocation", str(path), "it has no revocation list", "write the lists as PEM there")
    for one in lists:
        where = f"{path}, {one.issuer.rfc4514_string()}"
        until = one.next_update_utc
        remedy = "fetch a new list of this authority, and send SIGHUP to the broker"
        if until is None:
            yield Check("warn", "revocation", where, "the list has no end, so its age is unknown", remedy)
        elif now > until:
            found = f"the list ended on {until:%Y-%m-%d}: clients of this authority are refused"
            yield Check("fail", "revocation", where, found, remedy)
        elif until - now < _CRL_SOON:
            yield Check("warn", "revocation", where, f"the list ends on {until:%Y-%m-%d %H:%M} UTC", remedy)
        else:
            yield Check("ok", "revocation", where, f"valid until {until:%Y-%m-%d}")
