"""Who looks, and what they may do: what a broker says of them, or a proxy.

A session is a random cookie, of which only the digest is kept, in memory. It stands for a session at the broker that
has verified the name; the console keeps that one's cookie and no password, and asks again each minute whether it still
holds.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import ipaddress
import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from broker_edge.admin import Admin, Answer
from broker_edge.clear_text import is_loopback
from broker_edge.errors import HeadwaterError, RefusedError
from fleet_console.settings import ANYBODY, ConsoleSettings

SESSION_S = 12 * 3600
SESSIONS_MAX = 1_024
ASK_AGAIN_S = 60.0
_OPEN_S = 5.0
"""How long the answer counts that a broker has no users, or has some."""
_WAIT_S = 2.0
_ANSWER_S = 4.0
"""In which the broker that verifies names must answer: people wait for it."""
_USER_CHARACTERS_MAX = 256
_COOKIE_CHARACTERS_MAX = 4_096


class Turned(Exception):
    """The caller gets this status, code and sentence in place of an answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Caller:
    """`user` is None for a caller without a name. `confirmed_by` is the log id of the broker that verified it."""

    user: str | None
    operator: bool
    viewer: bool
    has_users: bool = True
    confirmed_by: str | None = None
    author: str = ""
    """The name in the rows that the caller inserts."""

    @property
    def may_look(self) -> bool:
        return self.operator or self.viewer


@dataclass(slots=True)
class _Session:
    caller: Caller
    cookie: str
    """That of the broker."""
    until_s: float
    ask_s: float
    """When the broker is asked again."""


class Callers:
    """Decides by `settings`. All methods may wait for a broker, and may be called from several threads."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._header = settings.sign_in.header
        self._from = settings.sign_in.networks()
        self._operators, self._viewers = set(settings.sign_in.operators), set(settings.sign_in.viewers)
        verifier = settings.verifier(timeout_s=_ANSWER_S)
        self._verifier = None if verifier is None else verifier.admin
        self._is_local = is_loopback(settings.place()[0])
        self._is_secure = settings.tls.cert is not None
        self._sessions = OrderedDict[bytes, _Session]()
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._open: tuple[float, Caller | Turned | None] = (float("-inf"), None)

    def cookie_name(self, headers: Mapping[str, str]) -> str:
        """At the address that the browser has called. Browsers do not separate the cookies of a host by port, so the
        name does. `Guard` lets no malformed `Host` through."""
        name = "__Host-headwater-console" if self._is_secure else "headwater-console"
        port = urlsplit(f"//{headers.get('host', '')}").port
        return name if port is None else f"{name}-{port}"

    def admit(self, address: str | None) -> None:
        """Raises Turned for a connection that does not come from the proxy that names users."""
        if self._header is None:
            return
        try:
            found = ipaddress.ip_address(address or "")
            found = getattr(found, "ipv4_mapped", None) or found
        except ValueError:
            found = None
        if found is None or not any(found in network for network in self._from):
            raise Turned(403, "permission_denied", "this console answers only the proxy in sign_in.header_from")

    def who(self, headers: Headers, cookie: str | None) -> Caller:
        """Who sends this request. Raises Turned if they must sign in first."""
        if self._header is not None:
            return self._named(headers.getlist(self._header))
        if cookie is not None:
            found = self._of_session(cookie)
            if found is not None:
                return found
        anybody = self._without_name()
        if anybody is None:
            raise Turned(401, "unauthenticated", "sign in with the name and password of a broker's user")
        return anybody

    def has_session(self, cookie: str | None) -> bool:
        """Whether the session of this cookie has not ended, as far as the console knows without asking the broker."""
        with self._lock:
            session = None if cookie is None else self._sessions.get(_digest(cookie))
        return session is not None and time.monotonic() < session.until_s

    def sign_in(self, headers: Mapping[str, str], proof: Mapping[str, Any]) -> tuple[Caller, str]:
        """The caller, and the cookie to set for a browser that has sent these headers. Raises Turned."""
        if self._verifier is None:
            raise Turned(400, "invalid_argument", "the proxy before this console signs people in")
        body = _one_proof(proof)
        try:
            answer = self._verifier.send("POST", "/api/v1/session", headers={"X-Headwater": "1"}, body=body)
        except HeadwaterError as error:
            raise _silent(error) from error
        told = _object(answer)
        if answer.status != 200:
            status = answer.status if answer.status in (400, 401, 403, 503) else 503
            raise Turned(status, str(told.get("error", "unauthenticated")), str(told.get("message", "not signed in")))
        caller = _caller(told)
        if not caller.user:
            raise Turned(503, "unavailable", "the broker that verifies names does not say who this is")
        cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        key, now_s = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            self._forget(now_s)
            self._sessions[_digest(key)] = _Session(caller, cookie, now_s + SESSION_S, now_s + ASK_AGAIN_S)
        return caller, self._set_cookie(headers, key, SESSION_S)

    def sign_out(self, headers: Mapping[str, str], cookie: str | None) -> str:
        """The cookie to set for a browser that has sent these headers."""
        with self._lock:
            session = None if cookie is None else self._sessions.pop(_digest(cookie), None)
        if session is not None and self._verifier is not None:
            # Without an answer it ends there after 12 hours.
            with contextlib.suppress(HeadwaterError):
                self._verifier.send("DELETE", "/api/v1/session", headers={"Cookie": session.cookie})
        return self._set_cookie(headers, "", 0)

    def _named(self, values: Sequence[str]) -> Caller:
        """A proxy that adds the header leaves that of the browser beside it, so one alone counts."""
        user = _utf8(values[0]) if len(values) == 1 else None
        if not user or len(user) > _USER_CHARACTERS_MAX or not user.isprintable():
            raise Turned(401, "unauthenticated", f"the proxy has not sent one name of a user in {self._header}")
        operator = user in self._operators
        viewer = operator or bool({user, ANYBODY} & self._viewers)
        return Caller(user, operator, viewer, has_users=False, author=user)

    def _of_session(self, cookie: str) -> Caller | None:
        key, now_s = _digest(cookie[:_COOKIE_CHARACTERS_MAX]), time.monotonic()
        with self._lock:
            session = self._sessions.get(key)
            if session is None or session.until_s <= now_s:
                self._sessions.pop(key, None)
                return None
            is_due = session.ask_s <= now_s
            if is_due:
                session.ask_s = now_s + ASK_AGAIN_S
        if is_due:
            self._ask_again(key, session)
        with self._lock:
            return session.caller if key in self._sessions else None

    def _ask_again(self, key: bytes, session: _Session) -> None:
        """A broker that does not answer ends no session."""
        assert self._verifier is not None
        try:
            answer = self._verifier.send("GET", "/api/v1/whoami", headers={"Cookie": session.cookie})
        except HeadwaterError:
            return
        with self._lock:
            if answer.status == 200:
                session.caller = _caller(_object(answer))
            elif answer.status in (401, 403):
                self._sessions.pop(key, None)

    def _without_name(self) -> Caller | None:
        """Who may do what without signing in; None if the broker has users. It is asked with the console's own
        credentials: a question without any would count there as a refusal."""
        assert self._verifier is not None
        # While the broker does not answer, one request waits for it; the others take what it said last, if it did.
        is_known = self._open[0] > float("-inf")
        if not self._asking.acquire(timeout=0 if is_known else _WAIT_S):
            return self._last_said()
        try:
            now_s = time.monotonic()
            if now_s >= self._open[0]:
                self._open = (now_s + _OPEN_S, self._if_open(self._verifier))
        finally:
            self._asking.release()
        return self._last_said()

    def _last_said(self) -> Caller | None:
        until_s, known = self._open
        if until_s == float("-inf"):
            raise Turned(503, "unavailable", "the broker that verifies names does not answer")
        if isinstance(known, Turned):
            raise Turned(known.status, known.code, str(known))
        return known

    def _if_open(self, verifier: Admin) -> Caller | Turned | None:
        try:
            told = verifier.ask("GET", "/api/v1/console")
        except RefusedError:
            return None
        except HeadwaterError as error:
            # As with a session: a broker that does not answer changes nothing.
            before = self._open[1]
            return before if isinstance(before, Caller) else _silent(error)
        if told.get("has_users"):
            return None
        if not self._is_local:
            message = (
                "the broker that verifies names has no users, so everybody in the network could act here: give it "
                "users, or listen on 127.0.0.1"
            )
            return Turned(403, "permission_denied", message)
        operator, viewer = told.get("operator") is True, told.get("viewer") is True
        return Caller(None, operator, viewer, has_users=False, author=_login())

    def _forget(self, now_s: float) -> None:
        """Makes room for one more session: those that have ended go, and then the oldest."""
        for key in [key for key, one in self._sessions.items() if one.until_s <= now_s]:
            del self._sessions[key]
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)

    def _set_cookie(self, headers: Mapping[str, str], value: str, seconds: int) -> str:
        name, secure = self.cookie_name(headers), "; Secure" if self._is_secure else ""
        return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"


def _utf8(value: str) -> str | None:
    """Headers are bytes, which the server reads as Latin-1; proxies send UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return None


def _silent(error: HeadwaterError) -> Turned:
    return Turned(503, "unavailable", f"the broker that verifies names does not answer: {error}")


def _one_proof(proof: Mapping[str, Any]) -> dict[str, str]:
    names = set(proof)
    if names not in ({"user", "password"}, {"token"}) or not all(isinstance(one, str) for one in proof.values()):
        message = "signing in needs a JSON object with `user` and `password`, or with `token`, and nothing else"
        raise Turned(400, "invalid_argument", message)
    return {name: str(value) for name, value in proof.items()}


def _caller(told: Mapping[str, Any]) -> Caller:
    user = told.get("user")
    log_id = told.get("log_id")
    return Caller(
        None if user is None else str(user),
        told.get("operator") is True,
        told.get("viewer") is True,
        confirmed_by=None if log_id is None else str(log_id),
        author="" if user is None else str(user),
    )


def _object(answer: Answer) -> Mapping[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode(errors="replace")).digest()


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # A container may run as a number without a name.
