"""Posts JSON to the address of a receiver: alerts of jobs, announcements of actions. Neither logs nor repeats."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from http.client import HTTPException
from typing import Any

from broker_edge.credentials import REFERENCE, resolve
from broker_edge.errors import SettingsError

POST_S = 5.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without the body, and look accepted."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _UntilThen(io.RawIOBase):
    """The bytes of a socket, for as long in all as the socket would wait for one of them. A receiver that sends a byte
    now and then, or `100 Continue` again and again, would otherwise be waited for without end."""

    def __init__(self, source: socket.socket) -> None:
        self._socket = source
        self._bytes = source.makefile("rb", buffering=0)
        self._until_s = time.monotonic() + (source.gettimeout() or POST_S)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        self._bytes.close()
        super().close()


class _Source:
    """What `HTTPResponse` asks of a socket."""

    def __init__(self, source: socket.socket) -> None:
        self._socket = source

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_UntilThen(self._socket))


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(_Source(sock), *arguments, **options)  # type: ignore[arg-type]


class _Http(http.client.HTTPConnection):
    response_class = _Response


class _Https(http.client.HTTPSConnection):
    response_class = _Response


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Http, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Https, req)


_opener = urllib.request.build_opener(_NoRedirect, _HttpHandler, _HttpsHandler)


def is_address(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def address_of(given: str, *, what: str) -> str:
    """The address that a setting is, or to which it refers. Raises ConfigError, which does not repeat it: whoever knows
    such an address can post to it."""
    if not is_address(given) and not REFERENCE.fullmatch(given):
        raise SettingsError(f"{what} must be an http:// or https:// address, or a reference to it: file:PATH, env:NAME")
    url = given if is_address(given) else resolve(given, what=what)
    if not is_address(url):
        raise SettingsError(f"{what} refers to a text that is not an http:// or https:// address")
    return url


def post(url: str, body: bytes, *, timeout_s: float = POST_S) -> None:
    """Raises OSError or ValueError unless the receiver answers with 2xx. Connecting, sending and the answer may each
    take `timeout_s`."""
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"}, method="POST")
    try:
        with _opener.open(request, timeout=timeout_s):
            pass
    except HTTPException as error:
        # Its text may repeat the address, which may contain a token.
        raise OSError(f"no valid HTTP answer ({type(error).__name__})") from None
