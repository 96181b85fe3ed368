"""TLS of a listener, judged by handshakes alone: certificate, chain, host name, old versions, client certificates."""

from __future__ import annotations

import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from broker_edge.security.certificates import ends
from broker_edge.security.check import Check
from broker_edge.security.doors import Door
from broker_edge.security.stranger import unchecked
from broker_edge.tls import TlsReferences, ssl_context, tls_reason

_RSA_BITS_MIN = 2048
_REFUSAL_S = 1.0
_OLD = (("1.0", ssl.TLSVersion.TLSv1), ("1.1", ssl.TLSVersion.TLSv1_1))


def handshakes(door: Door, tls: TlsReferences, *, timeout_s: float) -> Iterator[Check]:
    """The checks of one door with TLS. `tls` has the authority of the broker, if the caller knows it."""
    try:
        with _shaken(door, unchecked(), timeout_s) as link:
            der, version = link.getpeercert(binary_form=True), str(link.version())
    except OSError as error:
        yield Check("fail", "TLS", door.where, f"no handshake ({error})", "check the listener's tls.cert and tls.key")
        return
    try:
        certificate = x509.load_der_x509_certificate(der or b"")
    except ValueError:
        yield Check("fail", "certificate", door.where, "it cannot be read", "make a new one (headwater init)")
        return
    yield Check("ok", "TLS", door.where, f"it speaks {version}")
    yield ends(door.where, certificate, datetime.now(UTC))
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _RSA_BITS_MIN:
        found = f"an RSA key of {key.key_size} bits can be broken"
        yield Check("fail", "certificate", door.where, found, "make a new key (headwater init makes P-256)")
    yield _trusted(door, tls, timeout_s)
    for name, old in _OLD:
        yield _refused(door, name, old, timeout_s)
    wants = wants_certificate(door, timeout_s)
    found = "clients need a certificate" if wants else "clients need no certificate; a password or token counts"
    yield Check("ok", "client certificates", door.where, found)


@contextmanager
def _shaken(door: Door, context: ssl.SSLContext, timeout_s: float) -> Iterator[ssl.SSLSocket]:
    """A connection after its handshake."""
    with socket.create_connection((door.host, door.port), timeout_s) as plain:
        with context.wrap_socket(plain, server_hostname=door.host) as link:
            yield link


def speaks_tls(door: Door, timeout_s: float) -> bool:
    """Whether a handshake succeeds."""
    try:
        with _shaken(door, unchecked(), timeout_s):
            return True
    except OSError:
        return False


def wants_certificate(door: Door, timeout_s: float) -> bool:
    """Whether a client without a certificate is sent away; False also where nothing answers.

    With TLS 1.3 the refusal follows the handshake, as the first thing that is read. A listener that lets us in waits
    for us to speak first, so the wait has an end: several times what the handshake took, on a slow way or a busy
    machine.
    """
    started = time.monotonic()
    try:
        with _shaken(door, unchecked(), timeout_s) as link:
            link.settimeout(max(_REFUSAL_S, 4 * (time.monotonic() - started)))
            link.recv(1)
    except TimeoutError:
        return False
    except OSError as error:
        return "certificate required" in str(error).lower().replace("_", " ")
    return False


def _trusted(door: Door, tls: TlsReferences, timeout_s: float) -> Check:
    """Chain and host name as a client checks them. The settings know an address and no name, so there only the chain
    counts."""
    context = ssl_context(TlsReferences(ca=tls.ca))
    context.check_hostname = door.is_named
    try:
        with _shaken(door, context, timeout_s):
            pass
    except OSError as error:
        reason = tls_reason(error, has_certificate=False) or str(error)
        is_unknown = tls.ca is None and "authority" in reason
        what, _, advice = reason.partition(": ")
        remedy = advice or "use a certificate that clients accept"
        return Check("warn" if is_unknown else "fail", "chain", door.where, what, remedy)
    name = f", for `{door.host}`" if door.is_named else "; the name is checked with --mqtt, --server and --admin"
    return Check("ok", "chain", door.where, f"signed by an authority that we trust{name}")


def _refused(door: Door, name: str, version: ssl.TLSVersion, timeout_s: float) -> Check:
    context = unchecked()
    with warnings.catch_warnings():
        # That it is old is the question.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    check = f"TLS {name}"
    try:
        with _shaken(door, context, timeout_s):
            found = f"TLS {name} is accepted"
            return Check("fail", check, door.where, found, "set tls.min_version to 1.2 or 1.3, also in a proxy")
    except ssl.SSLError as error:
        if error.reason in ("NO_PROTOCOLS_AVAILABLE", "NO_CIPHERS_AVAILABLE"):
            found = f"this machine cannot speak TLS {name}, so it was not tried"
            return Check("warn", check, door.where, found, "run the check on a machine with another OpenSSL")
    except (ConnectionResetError, BrokenPipeError):
        # The listener closed the connection, which is a refusal too.
        pass
    except OSError as error:
        found = f"no answer ({error}), so it is not known whether it is refused"
        return Check("warn", check, door.where, found, "run the check again")
    return Check("ok", check, door.where, "refused")
