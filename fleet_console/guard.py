"""What every request passes before it is answered (the address of the caller, `Host`, `Origin`, size), and the headers
of every answer. The rules are those of the broker (docs/security.md, "Browsers").
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker_edge.clear_text import is_loopback
from fleet_console.callers import Callers, Turned

BODY_BYTES_MAX = 64 << 10
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_ALWAYS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
_SAFE = ("GET", "HEAD")
HEALTH = "/healthz"
_OWN_SITES = ("same-origin", "none")


def failure(status: int, code: str, message: str) -> Response:
    """An error as JSON, as the broker gives it."""
    body = json.dumps({"error": code, "message": message})
    return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})


class Guard:
    """Around `app`. `hosts` are names beside those of this machine; `*.example.com` stands for all names below it."""

    def __init__(self, app: ASGIApp, callers: Callers, hosts: Iterable[str]) -> None:
        self._app, self._callers = app, callers
        self._hosts = {one.lower() for one in (*hosts, socket.gethostname())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
            await send(message)

        try:
            self._check(scope)
        except Turned as turned:
            await failure(turned.status, turned.code, str(turned))(scope, receive, send_with_headers)
            return
        await self._app(scope, _limited(receive), send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            raise Turned(400, "invalid_argument", "a request has a length or chunks, not both")
        self._callers.admit(scope["client"][0] if scope.get("client") else None)
        if scope["path"] == HEALTH:
            return
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(_name(hosts[0])):
            raise Turned(421, "misdirected_request", "this name is not one of the console: add it to hosts")
        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site") == "cross-site":
            raise Turned(403, "foreign_origin", "a page of another site asks for this")
        if scope["method"] in _SAFE:
            return
        if not _is_same(headers.get("origin"), hosts[0]) or headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            raise Turned(403, "foreign_origin", "a page of another origin asks for this")
        given = headers.get("content-length", "0")
        if not given.isdecimal() or int(given) > BODY_BYTES_MAX:
            raise Turned(413, "too_large", f"the body has more than {BODY_BYTES_MAX:,} bytes")

    def _is_ours(self, name: str) -> bool:
        """Addresses cannot be made to mean something else, names can (DNS rebinding)."""
        if not name:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            pass
        if is_loopback(name) or name in self._hosts:
            return True
        return any(one.startswith("*.") and name.endswith(one[1:]) for one in self._hosts)


def _name(host: str) -> str:
    """The host that the browser called, in lower case and without its port; empty if the header is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  # raises an error if the port is not a number
    except ValueError:
        return ""
    if host != parts.netloc or parts.username is not None:
        return ""
    return (parts.hostname or "").rstrip(".").lower()


def _is_same(origin: str | None, host: str) -> bool:
    return origin is None or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _limited(receive: Receive) -> Receive:
    """Bodies without a length are counted too."""
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_BYTES_MAX:
            raise Turned(413, "too_large", f"the body has more than {BODY_BYTES_MAX:,} bytes")
        return message

    return receive_limited
