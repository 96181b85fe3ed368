"""The requests of the page, each as docs/console.md says. What may wait runs on a thread."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from broker_edge.errors import HeadwaterError, NotFoundError, RefusedError
from fleet_console.brokers import Fleet
from fleet_console.callers import Caller, Callers, Turned
from fleet_console.devices import Devices
from fleet_console.files import INDEX, page_files
from fleet_console.guard import HEALTH, Guard, failure
from fleet_console.quality import Quality
from fleet_console.rollouts import LIMIT, LIMIT_MAX, Rollouts
from fleet_console.settings import ConsoleSettings
from fleet_console.streams import STREAMS_MAX, Live, Streams
from fleet_console.tables import Tables
from fleet_console.traces import Traces

log = logging.getLogger(__name__)

PAGES = ("brokers", "rollouts", "devices", "quality", "trace")
_KINDS = ("pause", "resume", "cancel", "approve", "retry", "force", "remove")
_WHOLE = ("pause", "resume", "approve", "remove")
"""Kinds that are about the whole action."""
_REASON_CHARACTERS_MAX = 1_000
_TEXT_CHARACTERS_MAX = 1_000
_ID_CHARACTERS_MAX = 20_000
_NUMBER_MAX = 1 << 31
_PLACE = re.compile(r"-?[0-9]{1,19}")
_PLACE_MAX = (1 << 63) - 1
_BODY_WITHIN_S = 10.0
_READERS_MAX = 16
"""Answers that are made at once: those that wait must not hold up sign-ins and live streams."""
_SIGNING_MAX = 8
"""Callers who sign in or out at once: each waits for the broker, and the pages of others must not."""

Answer = Callable[["Asked"], Response]


class Asked:
    """A request with its caller. The parameters in the address are checked where they are read."""

    def __init__(self, request: Request, caller: Caller, body: Any) -> None:
        self._request, self.caller, self.body = request, caller, body
        self._left = dict(request.query_params)
        if len(request.query_params.multi_items()) > len(self._left):
            raise Turned(400, "invalid_argument", "a parameter is given twice")

    def id(self) -> str:
        """Of the path, or the parameter `id`: no segment of a path can be `.` or `..` or have a slash in it."""
        of_path = self._request.path_params
        found = of_path["id"] if "id" in of_path else self._left.pop("id", "")
        if not found or len(found) > _ID_CHARACTERS_MAX:
            raise Turned(400, "invalid_argument", f"id is a text of 1 to {_ID_CHARACTERS_MAX:,} characters")
        return str(found)

    def text(self, name: str) -> str:
        found = self._left.pop(name, "")
        if len(found) > _TEXT_CHARACTERS_MAX:
            raise Turned(400, "invalid_argument", f"{name} has more than {_TEXT_CHARACTERS_MAX:,} characters")
        return found

    def after(self) -> str | None:
        """`next` of an earlier answer, which may have a whole id in it."""
        found = self._left.pop("after", None)
        if found is not None and len(found) > _ID_CHARACTERS_MAX:
            raise Turned(400, "invalid_argument", f"after has more than {_ID_CHARACTERS_MAX:,} characters")
        return found

    def flag(self, name: str) -> bool:
        found = self._left.pop(name, "false")
        if found not in ("true", "false"):
            raise Turned(400, "invalid_argument", f"{name} is true or false")
        return found == "true"

    def number(self, name: str, default: int | None, most: int) -> int | None:
        given = self._left.pop(name, None)
        if given is None or given == "":
            return default
        if not (given.isascii() and given.isdecimal() and len(given) < 12 and int(given) <= most):
            raise Turned(400, "invalid_argument", f"{name} is not a whole number up to {most:,}")
        return int(given)

    def limit(self) -> int:
        return max(1, self.number("limit", LIMIT, LIMIT_MAX) or LIMIT)

    def require_no_more(self) -> None:
        if self._left:
            raise Turned(400, "invalid_argument", f"unknown parameter {next(iter(self._left)):.100}")


class Web:
    def __init__(self, settings: ConsoleSettings, fleet: Fleet, tables: Tables) -> None:
        self._callers, self._fleet, self._tables = Callers(settings), fleet, tables
        self._files, self._version = page_files(), version("headwater")
        self._streams, self._signing = Streams(), CapacityLimiter(_SIGNING_MAX)
        self._readers = CapacityLimiter(_READERS_MAX)
        self._rollouts, self._devices, self._quality = Rollouts(tables), Devices(tables), Quality(tables)
        self._traces = Traces(fleet, tables)
        self._hosts = settings.hosts

    def end(self) -> None:
        """Ends the live streams, which do not end by themselves."""
        self._streams.is_ending = True

    def app(self) -> ASGIApp:
        """Everything, with the checks around it."""
        looked = {
            "/api/v1/live/history": lambda asked: _json(self._fleet.history()),
            "/api/v1/brokers": lambda asked: _json({"brokers": self._fleet.rows()}),
            "/api/v1/rollouts": self._list_rollouts,
            "/api/v1/rollout": self._one(self._rollouts.one),
            "/api/v1/rollouts/{id}": self._one(self._rollouts.one),
            "/api/v1/rollout/targets": self._list_targets,
            "/api/v1/rollouts/{id}/targets": self._list_targets,
            "/api/v1/devices": self._list_devices,
            "/api/v1/device": self._one(self._devices.one),
            "/api/v1/devices/{id}": self._one(self._devices.one),
            "/api/v1/quality": lambda asked: _made(self._quality.answer()),
            "/api/v1/trace": self._trace,
        }
        routes = [
            Route("/", self._file),
            Route("/ui/{path:path}", self._file),
            Route(HEALTH, _health),
            Route("/api/v1/console", self._asked(self._console)),
            Route("/api/v1/session", self._sign_in, methods=["POST"]),
            Route("/api/v1/session", self._sign_out, methods=["DELETE"]),
            Route("/api/v1/live", self._live),
            *(Route(path, self._asked(answer, looks=True)) for path, answer in looked.items()),
            *(
                Route(path, self._asked(self._request, acts=True), methods=["POST"])
                for path in ("/api/v1/rollout/requests", "/api/v1/rollouts/{id}/requests")
            ),
        ]
        handlers = {
            HTTPException: _no_route,
            Turned: _turned,
            HeadwaterError: _of_package,
            ClientDisconnect: _nobody,
            Exception: _unexpected,
        }
        return Guard(Starlette(routes=routes, exception_handlers=handlers), self._callers, self._hosts)

    def _asked(
        self, answer: Answer, *, looks: bool = False, acts: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that answers on a thread, once the caller is known and may do it."""

        async def endpoint(request: Request) -> Response:
            body = await _body_of(request) if acts else None

            def work() -> Response:
                caller = self._caller(request)
                if looks and not caller.may_look:
                    raise _without_right(caller, "viewer or operator")
                if acts and not caller.operator:
                    raise _without_right(caller, "operator")
                return answer(Asked(request, caller, body))

            return await to_thread.run_sync(work, limiter=self._readers)

        return endpoint

    def _caller(self, request: Request) -> Caller:
        return self._callers.who(request.headers, self._cookie(request))

    def _cookie(self, request: Request) -> str | None:
        return request.cookies.get(self._callers.cookie_name(request.headers))

    async def _file(self, request: Request) -> Response:
        found = self._files.get(request.path_params.get("path", INDEX))
        if found is None:
            raise Turned(404, "not_found", "the console has no such file")
        headers = {"ETag": found.tag, "Cache-Control": "no-cache"}
        if found.tag in [one.strip() for one in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        headers |= {"Content-Encoding": "gzip", "Content-Type": found.kind}
        return Response(found.compressed, headers=headers)

    def _console(self, asked: Asked) -> Response:
        return _json(self._told(asked.caller))

    def _told(self, caller: Caller) -> dict[str, Any]:
        return {
            "scope": "fleet",
            "version": self._version,
            "log_id": None,
            "pages": PAGES,
            "user": caller.user,
            "tenant": self._tables.settings.tenant if caller.may_look else None,
            "tables_root": self._tables.settings.root if caller.may_look else None,
            "operator": caller.operator,
            "viewer": caller.viewer,
            "has_users": caller.has_users,
            "cluster": False,
            "partitions": [],
        }

    async def _sign_in(self, request: Request) -> Response:
        proof = await _body_of(request)

        def work() -> Response:
            old = self._cookie(request)
            caller, cookie = self._callers.sign_in(request.headers, proof)
            if old is not None:
                self._callers.sign_out(request.headers, old)
            return _json(self._told(caller), {"Set-Cookie": cookie})

        return await to_thread.run_sync(work, limiter=self._signing)

    async def _sign_out(self, request: Request) -> Response:
        old = self._cookie(request)
        cookie = await to_thread.run_sync(self._callers.sign_out, request.headers, old, limiter=self._signing)
        return Response(status_code=204, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})

    async def _live(self, request: Request) -> Live:
        def may_look() -> bool:
            try:
                return self._caller(request).may_look
            except Turned:
                return False

        cookie = self._cookie(request)
        had_session = self._callers.has_session(cookie)

        def is_signed_in() -> bool:
            return not had_session or self._callers.has_session(cookie)

        caller = await run_in_threadpool(self._caller, request)
        if not caller.may_look:
            raise _without_right(caller, "viewer or operator")
        if self._streams.open >= STREAMS_MAX:
            raise Turned(503, "unavailable", f"{STREAMS_MAX} streams are open, which is the limit: close a page")
        return Live(self._streams, self._fleet.stats, self._tables.versions.of, is_signed_in, may_look)

    def _list_rollouts(self, asked: Asked) -> Response:
        contains, phase, after, limit = asked.text("contains"), asked.text("phase"), asked.after(), asked.limit()
        asked.require_no_more()
        place = "0" if after is None else after.partition(":")[0]
        if not _PLACE.fullmatch(place) or abs(int(place)) > _PLACE_MAX:
            raise Turned(400, "invalid_argument", "after is not what an earlier answer had as next")
        return _made(self._rollouts.page(contains=contains, phase=phase, after=after, limit=limit))

    def _one(self, read: Callable[[str], bytes]) -> Answer:
        def answer(asked: Asked) -> Response:
            found = asked.id()
            asked.require_no_more()
            return _made(read(found))

        return answer

    def _list_targets(self, asked: Asked) -> Response:
        action_id, state, contains, after = asked.id(), asked.text("state"), asked.text("contains"), asked.after()
        reason, wave, limit = asked.text("reason"), asked.number("wave", None, _NUMBER_MAX), asked.limit()
        asked.require_no_more()
        found = self._rollouts.targets(
            action_id, state=state, reason=reason, wave=wave, contains=contains, after=after, limit=limit
        )
        return _made(found)

    def _list_devices(self, asked: Asked) -> Response:
        contains, version, after, limit = asked.text("contains"), asked.text("version"), asked.after(), asked.limit()
        is_untold = asked.flag("untold")
        asked.require_no_more()
        return _made(
            self._devices.page(contains=contains, version=version, is_untold=is_untold, after=after, limit=limit)
        )

    def _trace(self, asked: Asked) -> Response:
        at, log_id = asked.text("at"), asked.text("log_id")
        asked.require_no_more()
        return _json(self._traces.answer(at, log_id))

    def _request(self, asked: Asked) -> Response:
        """Inserts a row into `action_requests`."""
        kind, device_id, wave, reason = _wanted(asked.body)
        action_id, caller = asked.id(), asked.caller
        self._tables.read(lambda: self._rollouts.row(action_id))
        if not caller.author:
            raise Turned(403, "permission_denied", "you have no name here, and a request needs one: sign in")
        desk = self._tables.desk_of(caller.author, caller.confirmed_by)
        if kind == "approve":
            request_id = desk.approve(action_id, wave=wave, reason=reason)
        else:
            request_id = desk.ask(kind, action_id, device_id=device_id, reason=reason)
        log.info("%r asked for %s of %r, device %r: request %s", caller.author, kind, action_id, device_id, request_id)
        return _json({"request_id": request_id}, status=202)


def _without_right(caller: Caller, needed: str) -> Turned:
    message = f"{caller.user or 'without a name'}: this needs the right {needed}"
    return Turned(403, "permission_denied", message)


def _wanted(body: Any) -> tuple[str, str | None, int | None, str]:
    known = {"kind", "device_id", "wave", "reason"}
    if not isinstance(body, dict) or not set(body) <= known:
        raise Turned(400, "invalid_argument", f"a request is a JSON object with {', '.join(sorted(known))}")
    kind, device_id = body.get("kind"), body.get("device_id")
    wave, reason = body.get("wave"), body.get("reason")
    if kind not in _KINDS:
        raise Turned(400, "invalid_argument", f"kind is one of {', '.join(_KINDS)}")
    if device_id is not None and (not _is_text(device_id, _ID_CHARACTERS_MAX) or not device_id or kind in _WHOLE):
        raise Turned(400, "invalid_argument", f"device_id is a text, and null for {', '.join(_WHOLE)}")
    if wave is not None and (type(wave) is not int or not 1 <= wave < _NUMBER_MAX or kind != "approve"):
        raise Turned(400, "invalid_argument", "wave is a whole number from 1, and null for all but approve")
    if reason is not None and not _is_text(reason, _REASON_CHARACTERS_MAX):
        raise Turned(400, "invalid_argument", f"reason is a text of at most {_REASON_CHARACTERS_MAX:,} characters")
    return str(kind), device_id, wave, reason or ""


def _is_text(value: object, most: int) -> bool:
    """JSON may have halves of characters, which no table can hold."""
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


async def _body_of(request: Request) -> Any:
    # Browsers send this type to another origin only after asking, and the console never allows it.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Turned(415, "invalid_argument", "the body is JSON: send Content-Type: application/json")
    try:
        with anyio.fail_after(_BODY_WITHIN_S):
            body = await request.body()
    except TimeoutError:
        raise Turned(408, "invalid_argument", f"the body did not come within {_BODY_WITHIN_S:.0f} s") from None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        # Without the text: it may hold a password.
        raise Turned(400, "invalid_argument", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Turned(400, "invalid_argument", "the body is not a JSON object")
    return found


def _made(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


def _json(value: Any, headers: Mapping[str, str] | None = None, *, status: int = 200) -> Response:
    body = json.dumps(value, separators=(",", ":"), allow_nan=False)
    given = {"Cache-Control": "no-store", **(headers or {})}
    return Response(body, status, media_type="application/json", headers=given)


async def _health(request: Request) -> Response:
    return Response("ok\n", media_type="text/plain")


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "invalid_argument"}.get(status, "invalid_argument")
    said = {404: "there is no such path", 405: "this path does not take this method"}.get(status, "not understood")
    return failure(status, code, said)


async def _turned(request: Request, error: Exception) -> Response:
    assert isinstance(error, Turned)
    return failure(error.status, error.code, str(error))


async def _of_package(request: Request, error: Exception) -> Response:
    if isinstance(error, NotFoundError):
        return failure(404, "not_found", str(error))
    if isinstance(error, RefusedError):
        return failure(409, "refused", str(error))
    return failure(503, "unavailable", str(error))


async def _nobody(request: Request, error: Exception) -> Response:
    return failure(400, "invalid_argument", "the request has ended early")


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("cannot answer %s", request.url.path, exc_info=error)
    return failure(500, "internal", "the console cannot answer this: its log says why")
