"""The listeners of a broker as a stranger finds them: over the network, without credentials, without leaving a trace.

Refused attempts count in the metrics and the audit log of the broker, as those of any stranger do.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping, Sequence

from broker_edge.errors import MissingExtraError
from broker_edge.security.check import Check, severe
from broker_edge.security.doors import USUAL, Door
from broker_edge.security.handshake import handshakes, speaks_tls, wants_certificate
from broker_edge.security.stranger import unchecked, visit
from broker_edge.tls import NO_TLS, TlsReferences

_READABLE = {
    "$SYS/#": "the figures of the broker",
    "devices/+/telemetry/#": "the telemetry of devices",
    "devices/+/actions": "the commands of devices",
    "#": "some topics",
}
"""What a stranger asks for. A filter is granted if it may match something readable."""
_REFUSED = (401, 403, 421)
_USERS = "set auth.password_file (headwater init), and auth.allow_anonymous to false"
_ACL = "remove the lines before the first `user` from the ACL file"


def outside(doors: Sequence[Door], tls: TlsReferences = NO_TLS, *, timeout_s: float = 10.0) -> list[Check]:
    """What a stranger gets at each door. `tls.ca` is the authority of the broker; no certificate of ours is shown."""
    found: list[Check] = []
    for door in doors:
        found += _at(door, tls, timeout_s)
    return found


def neighbours(doors: Sequence[Door], *, ports: Mapping[str, int] = USUAL, timeout_s: float = 1.0) -> list[Door]:
    """Listeners at the usual ports of the same hosts that nobody named. Only of other machines: on this one such a port
    may belong to another broker, which its own settings describe."""
    known = {(door.host, door.port) for door in doors}
    found = []
    for host in dict.fromkeys(door.host for door in doors if door.is_beyond and door.is_named):
        for name, port in ports.items():
            if (host, port) not in known and _answers(host, port, timeout_s):
                door = Door(name, host, port, has_tls=True, is_beyond=True)
                has_tls = name in ("mqtts", "wss") or speaks_tls(door, timeout_s)
                found.append(Door(name, host, port, has_tls=has_tls, is_beyond=True))
    return found


def _answers(host: str, port: int, timeout_s: float) -> bool:
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True


def _at(door: Door, tls: TlsReferences, timeout_s: float) -> Iterator[Check]:
    if door.needs_proxy:
        found = "it expects the header of a proxy, so it was not asked"
        yield Check("warn", "listener", door.where, found, "check the address of the proxy from outside, with --mqtt")
        return
    asked = {"flight": _flight, "admin": _admin}.get(door.listener, _mqtt)
    checks = list(asked(door, timeout_s))
    is_away = any(check.name == "listener" for check in checks)
    if door.has_tls and not is_away:
        yield from handshakes(door, tls, timeout_s=timeout_s)
    # Settings say that there is no TLS, also where the broker does not run yet.
    if not door.has_tls and (not is_away or not door.is_named):
        yield from _in_clear(door)
    yield from checks


def _away(door: Door, why: str) -> Check:
    return Check("warn", "listener", door.where, f"not reached ({why})", "start the broker, or give its addresses")


def _in_clear(door: Door) -> Iterator[Check]:
    if not door.is_beyond:
        yield Check("ok", "plain text", door.where, "no TLS, and only this machine can connect")
        return
    secure = {"mqtt": "mqtts", "ws": "wss"}.get(door.listener)
    listener = secure or door.listener
    remedy = f"set listeners.{listener}.bind, .tls.cert and .tls.key" if secure else f"set listeners.{listener}.tls"
    if secure:
        remedy += f", and bind listeners.{door.listener} to 127.0.0.1"
    found = "no TLS: whoever can read the network reads passwords and records"
    yield Check("fail", "plain text", door.where, found, remedy)


def _mqtt(door: Door, timeout_s: float) -> Iterator[Check]:
    seen = visit(door, list(_READABLE), timeout_s=timeout_s)
    if not seen.reached:
        yield _away(door, seen.why)
    elif seen.answer is None and not (door.has_tls and wants_certificate(door, timeout_s)):
        # It may be anything, so this is no refusal.
        found = "it does not answer CONNECT"
        remedy = "is it an MQTT port, and does it speak TLS (mqtts://) or not (mqtt://)?"
        yield Check("warn", "listener", door.where, found, remedy)
    elif not seen.is_in:
        yield Check(
            "ok", "stranger", door.where, f"CONNECT without credentials is refused ({seen.answer or 'no certificate'})"
        )
    else:
        state = severe(door.is_beyond)
        yield Check(state, "stranger", door.where, "CONNECT without credentials is accepted", _USERS)
        for how, granted in (("read", seen.granted), ("read the past of", seen.replayed)):
            for topic in (one for one in _READABLE if one in granted):
                found = f"a stranger may {how} {_READABLE[topic]} (`{topic}`)"
                yield Check(state, "stranger", door.where, found, _ACL)
        if not seen.granted | seen.replayed:
            yield Check("ok", "stranger", door.where, "without credentials no topic can be read")


def _flight(door: Door, timeout_s: float) -> Iterator[Check]:
    """`offsets` and `topics` need a right to read, `groups` one to replay."""
    try:
        from broker_edge._arrow import flight
    except MissingExtraError as error:
        found, _, remedy = str(error).partition(": ")
        yield Check("warn", "stranger", door.where, f"calls of strangers were not tried: {found}", remedy)
        return
    scheme = "grpc+tls" if door.has_tls else "grpc"
    host = f"[{door.host}]" if ":" in door.host else door.host
    options = flight.FlightCallOptions(timeout=timeout_s)
    granted = []
    try:
        with flight.FlightClient(f"{scheme}://{host}:{door.port}", disable_server_verification=door.has_tls) as client:
            for name in ("offsets", "topics", "groups"):
                try:
                    list(client.do_action(flight.Action(name, b"{}"), options=options))
                    granted.append(name)
                except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError):
                    continue
    except (flight.FlightError, OSError) as error:
        # gRPC does not say why a connection has ended.
        if door.has_tls and wants_certificate(door, timeout_s):
            yield Check("ok", "stranger", door.where, "calls without a certificate are refused")
        else:
            yield _away(door, str(error).partition(".")[0])
        return
    if granted:
        found = f"a stranger may ask for {', '.join(granted)}"
        yield Check(severe(door.is_beyond), "stranger", door.where, found, _USERS)
    else:
        yield Check("ok", "stranger", door.where, "calls without credentials are refused")


def _admin(door: Door, timeout_s: float) -> Iterator[Check]:
    try:
        status = {path: _get(door, path, timeout_s) for path in ("/healthz", "/metrics", "/api/v1/status")}
    except (OSError, http.client.HTTPException) as error:
        if "certificate required" in str(error).lower().replace("_", " "):
            yield Check("ok", "stranger", door.where, "requests without a certificate are refused")
        else:
            yield _away(door, str(error))
        return
    if status["/healthz"] == 200:
        yield Check("ok", "health", door.where, "/healthz answers without credentials, so a probe needs none")
    else:
        found = f"/healthz answers {status['/healthz']}"
        yield Check("warn", "health", door.where, found, "is this the admin address, and is a proxy between?")
    if status["/metrics"] == 200:
        state, remedy = severe(door.is_beyond), "set auth.open_metrics to false, and give the scraper a user"
        yield Check(state, "metrics", door.where, "/metrics answers without credentials", remedy)
    if status["/api/v1/status"] == 200:
        found = "strangers may inspect and administer the broker"
        yield Check(severe(door.is_beyond), "stranger", door.where, found, _USERS)
    elif status["/api/v1/status"] in _REFUSED:
        yield Check("ok", "stranger", door.where, "/api/v1 is refused without credentials")
    else:
        # It may be anything, so this is no refusal.
        found = f"/api/v1/status answers {status['/api/v1/status']}"
        yield Check("warn", "listener", door.where, found, "is this the admin address, and is a proxy between?")


def _get(door: Door, path: str, timeout_s: float) -> int:
    connection = (
        http.client.HTTPSConnection(door.host, door.port, timeout=timeout_s, context=unchecked())
        if door.has_tls
        else http.client.HTTPConnection(door.host, door.port, timeout=timeout_s)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
