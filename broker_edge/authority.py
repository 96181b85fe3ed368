"""A certificate authority of one's own: for a first set-up and for tests. Makes keys and certificates in memory.

Keys are ECDSA P-256. Nothing here reads or writes files.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
_CLOCK_SLACK = timedelta(hours=1)
"""A device whose clock is late accepts a new certificate too."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM."""

    cert: bytes
    key: bytes = field(repr=False)


def new_authority(name: str, *, days: int = AUTHORITY_DAYS, now: datetime | None = None) -> KeyPair:
    """An authority that signs its own certificate, and may sign certificates but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), days, now).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def new_certificate(
    authority: KeyPair,
    name: str,
    *,
    hosts: Sequence[str] = (),
    is_node: bool = False,
    days: int = CERTIFICATE_DAYS,
    now: datetime | None = None,
) -> KeyPair:
    """A certificate signed by `authority`: of a broker at `hosts` (names and addresses), or without hosts of a client
    called `name`. With `is_node` it is that of a node of a cluster, which connects to others and is connected to."""
    signer = x509.load_pem_x509_certificate(authority.cert)
    signing_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey), "authorities have keys of this kind"
    key = ec.generate_private_key(ec.SECP256R1())
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    purposes = [server, client] if is_node else [server if hosts else client]
    builder = (
        _builder(_name(name), signer.subject, key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    names = [_general(host) for host in hosts] or [x509.DNSName(name)]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pair(builder.sign(signing_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    start = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _CLOCK_SLACK)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(cert.public_bytes(pem), secret)
