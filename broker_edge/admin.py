"""HTTP requests to the admin listener, for the command line: one request, one answer, the package's own errors.

It keeps nothing between requests and never retries.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from broker_edge.clear_text import is_loopback, warn_in_clear
from broker_edge.credentials import REFERENCE, Credentials, resolve
from broker_edge.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from broker_edge.tls import TlsReferences, ssl_context, tls_reason

_LOGGER = logging.getLogger(__name__)

OLD_VARIABLE = "HEADWATER_ADMIN_AUTH"
DEFAULT_ADMIN = "http://127.0.0.1:8080"
DEFAULT_PORT = 8080
_PAGE = 1000
_ANSWER_BYTES_MAX = 256 << 20
"""Room for a page of clients with long names. Whoever answers in the place of a broker must not fill the memory."""
_EVENT_BYTES_MAX = 1 << 20
_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers with names in lower case (of several with one name, the last), and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_admin(text: str) -> str:
    """`host`, `host:port`, `http://…` or `https://…` as a base address; raises ConfigError."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.path.strip("/"):
        raise ConfigError(f"`{text}` is not an admin address: write http://HOST:PORT, for example {DEFAULT_ADMIN}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or DEFAULT_PORT}"


class Admin:
    """The admin listener of one broker.

    Without `credentials` and `tls` it uses those that the environment names (`HEADWATER_USER`, `HEADWATER_TLS_CA` and
    the others). `HEADWATER_ADMIN_AUTH` comes first: a reference to `user:password` or to a token. A literal there works
    for one more release, with a warning. Raises ConfigError.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 30.0,
        credentials: Credentials | None = None,
        tls: TlsReferences | None = None,
    ) -> None:
        self.address = parse_admin(address)
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._tls = TlsReferences.from_environment() if tls is None else tls

    def clients(
        self, *, contains: str | None = None, connected: bool | None = None, limit: int | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Clients in the order of their ids, at most `limit`, fetched page by page."""
        query: dict[str, str] = {}
        if contains is not None:
            query["filter"] = contains
        if connected is not None:
            query["connected"] = str(connected).lower()
        left = limit
        while left is None or left > 0:
            page = self.ask("GET", "/api/v1/clients", {**query, "limit": str(min(left or _PAGE, _PAGE))})
            yield from page["clients"]
            if left is not None:
                left -= len(page["clients"])
            if page["next"] is None:
                return
            if "after" in query and page["next"] <= query["after"]:
                raise BrokerError(f"{self.address} returned the same page of clients again")
            query["after"] = page["next"]

    def whoami(self) -> Mapping[str, Any]:
        """The name that the broker has verified: `user` (None without credentials), `log_id`, `tenant`, `operator`,
        `viewer`. Raises NotFoundError or RefusedError at a broker of an older version."""
        return self.ask("GET", "/api/v1/whoami")

    def client(self, client_id: str) -> Mapping[str, Any]:
        """One client with its subscriptions and cursors."""
        return self.ask("GET", f"/api/v1/clients/{quote(client_id, safe='')}")

    def kick(self, client_id: str, *, session: bool = False) -> Mapping[str, Any]:
        """Closes the client's connection; with `session` its session ends too."""
        query = {"session": "true"} if session else {}
        return self.ask("DELETE", f"/api/v1/clients/{quote(client_id, safe='')}", query)

    def events(self, *, client_id: str | None = None, limit: int | None = None) -> Iterator[Mapping[str, Any]]:
        """What happened to clients recently, or to one of them, the newest first, fetched page by page."""
        query = {} if client_id is None else {"client_id": client_id}
        left = limit
        while left is None or left > 0:
            page = self.ask("GET", "/api/v1/events", {**query, "limit": str(min(left or _PAGE, _PAGE))})
            yield from page["events"]
            if left is not None:
                left -= len(page["events"])
            if page["next"] is None or not page["events"]:
                return
            query["after"] = str(page["next"])

    def segments(self, *, partition: str | None = None, limit: int | None = None) -> Mapping[str, Any]:
        """`partitions` with what retention removes next, and at most `limit` of their `segments` in the order of their
        offsets, fetched page by page."""
        query = {} if partition is None else {"partition": partition}
        found: dict[str, Any] = {}
        while True:
            left = _PAGE if limit is None else limit - len(found.get("segments", ()))
            page = self.ask("GET", "/api/v1/segments", {**query, "limit": str(min(left, _PAGE))})
            if not found:
                found = {"partitions": page["partitions"], "segments": []}
            found["segments"] += page["segments"]
            if page["next"] is None or not page["segments"] or len(found["segments"]) == limit:
                return found
            query["after"] = page["next"]

    def trace(self, at: str) -> Mapping[str, Any]:
        """Where the record of `NAME:OFFSET` is, and whose place has passed it."""
        return self.ask("GET", "/api/v1/trace", {"at": at})

    def access(
        self, access: str, topic: str, *, user: str | None = None, client_id: str | None = None
    ) -> Mapping[str, Any]:
        """Whether the files of the broker allow `access` (publish, subscribe, receive or replay), and why. Without
        `user`: of a client without credentials."""
        given = {"user": user, "client_id": client_id, "access": access, "topic": topic}
        return self.ask("GET", "/api/v1/access", {name: text for name, text in given.items() if text})

    def ready(self) -> tuple[bool, str]:
        """Whether the broker accepts clients and records (`GET /readyz`), and its own words."""
        status, body = self._answer("GET", "/readyz", None)
        if status not in (200, 503):
            self._read(status, body)
        return status == 200, body.decode(errors="replace").strip()

    def metrics(self) -> str:
        """What `GET /metrics` answers, in the text format of Prometheus."""
        status, body = self._answer("GET", "/metrics", None)
        if status >= 300:
            self._read(status, body)
        return body.decode(errors="replace")

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Sends one request and returns the JSON object of its answer. `timeout_s` limits all of it, also an answer
        that comes byte by byte."""
        return self._read(*self._answer(method, path, query))

    def follow(self, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Names and values of the events of a stream, until it ends. An answer that stops for `timeout_s` raises
        DeadlineError; the broker sends something each 15 s."""
        connection = self._connection()
        try:
            connection.request("GET", path, headers=self._headers())
            answer = connection.getresponse()
            if answer.status != 200 or not answer.headers.get("Content-Type", "").startswith(_STREAM):
                self._read(answer.status, answer.read(_EVENT_BYTES_MAX))
                raise BrokerError(f"{self.address}{path} is no stream of events: is it a broker of this version?")
            yield from self._streamed(answer)
        except TimeoutError as error:
            raise DeadlineError(f"{self.address} sends nothing any more") from error
        except (OSError, http.client.HTTPException) as error:
            raise ConnectError(self._why(error), server=self.address) from error
        finally:
            connection.close()

    def _streamed(self, answer: http.client.HTTPResponse) -> Iterator[tuple[str, Mapping[str, Any]]]:
        name, data = "message", b""
        while line := answer.readline(_EVENT_BYTES_MAX + 1):
            if len(line) + len(data) > _EVENT_BYTES_MAX:
                raise BrokerError(f"{self.address} sends an event of more than {_EVENT_BYTES_MAX:,} bytes")
            key, _, value = line.rstrip(b"\r\n").partition(b":")
            if key == b"event":
                name = value.strip().decode(errors="replace")
            elif key == b"data":
                data += value.strip()
            elif not key and not value and data:
                yield name, self._read(200, data)
                name, data = "message", b""

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> Answer:
        """One request with these headers and nothing else: the credentials of this object are not sent. For programs
        that speak for their own callers. Raises ConnectError and DeadlineError; any status is an answer."""
        content = None if body is None else json.dumps(body).encode()
        given = {**headers, **({} if content is None else {"Content-Type": "application/json"})}
        return self._exchange(method, path, given, content)

    def _answer(self, method: str, path: str, query: Mapping[str, str] | None) -> tuple[int, bytes]:
        """Status and body."""
        target = f"{path}?{urlencode(query)}" if query else path
        answer = self._exchange(method, target, self._headers(), None)
        return answer.status, answer.body

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=ssl_context(self._tls))
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _exchange(self, method: str, target: str, headers: Mapping[str, str], content: bytes | None) -> Answer:
        connection, late = self._connection(), threading.Event()
        timer = threading.Timer(min(self._timeout_s, threading.TIMEOUT_MAX), _give_up, (connection, late))
        timer.daemon = True
        timer.start()
        try:
            connection.connect()
            if late.is_set():
                raise TimeoutError
            connection.request(method, target, body=content, headers=dict(headers))
            answer = connection.getresponse()
            status, body = answer.status, answer.read(_ANSWER_BYTES_MAX + 1)
            if late.is_set():
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise DeadlineError(f"{self.address} did not answer in time: ask again or allow more time") from error
            raise ConnectError(self._why(error), server=self.address) from error
        finally:
            timer.cancel()
            connection.close()
        if len(body) > _ANSWER_BYTES_MAX:
            raise BrokerError(f"{self.address} answers with more than {_ANSWER_BYTES_MAX:,} bytes: is it a broker?")
        return Answer(status, {name.lower(): value for name, value in answer.getheaders()}, body)

    @property
    def sends_in_clear(self) -> bool:
        """Whether a request would carry a password or a token to another machine without TLS. Raises ConfigError."""
        return not self._is_tls and not is_loopback(self._host) and self._authorization() is not None

    @property
    def _is_tls(self) -> bool:
        return self.address.startswith("https://")

    @property
    def _host(self) -> str:
        return urlsplit(self.address).hostname or ""

    def _headers(self) -> dict[str, str]:
        """The credentials, read for each request."""
        authorization = self._authorization()
        if authorization is None:
            return {}
        if not self._is_tls:
            warn_in_clear(self.address, self._host, "https")
        return {"Authorization": authorization}

    def _authorization(self) -> str | None:
        old = _old_header() if self._credentials is None else None
        if old is not None:
            return old
        header = (self._credentials or Credentials.from_environment()).header()
        return None if header is None else header.decode()

    def _why(self, error: Exception) -> str:
        """Why there was no answer, in one sentence."""
        is_tls = self._is_tls
        reason = tls_reason(error, has_certificate=self._tls.cert is not None) if is_tls else None
        if reason is not None:
            return f"cannot connect to {self.address}: {reason}"
        advice = "is the broker running, and is this its admin address (port 8080 by default)?"
        if isinstance(error, (http.client.BadStatusLine, ConnectionResetError)) and not is_tls:
            advice = "is this its admin address? If the port speaks TLS, write https://"
        elif isinstance(error, (ssl.SSLError, ConnectionResetError)):
            advice = "does this port speak TLS?"
        cause = getattr(error, "strerror", None) or error
        return f"cannot connect to {self.address}: {cause}; {advice}"

    def _read(self, status: int, body: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if status < 300 and isinstance(found, dict):
            return found
        message = str(found["message"]) if isinstance(found, dict) and "message" in found else f"HTTP {status}"
        sentence = f"{message} ({self.address})"
        match status:
            case 404:
                raise NotFoundError(sentence)
            case 400 | 401 | 403:
                raise RefusedError(sentence)
            case 503:
                raise UnavailableError(sentence)
            case _:
                raise BrokerError(sentence)


def _give_up(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    """Ends the wait of the thread that reads the answer."""
    late.set()
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _old_header() -> str | None:
    """The credentials of HEADWATER_ADMIN_AUTH, which older versions read; None if it is not set."""
    given = os.environ.get(OLD_VARIABLE, "")
    if REFERENCE.fullmatch(given):
        given = resolve(given, what=OLD_VARIABLE)
    elif given:
        _LOGGER.warning(
            "%s holds a secret, which the next release refuses: write a reference (file:PATH or env:NAME) into it, or "
            "use HEADWATER_USER with HEADWATER_PASSWORD_FROM, or HEADWATER_TOKEN_FROM",
            OLD_VARIABLE,
        )
    if not given:
        return None
    if ":" in given:
        return "Basic " + base64.b64encode(given.encode()).decode()
    return f"Bearer {given}"
