"""The live stream: sums of the brokers once a second, and the versions of the tables when one has changed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from broker_edge.errors import HeadwaterError
from fleet_console.callers import Turned
from fleet_console.tables import LOOK_LOCAL_S

STREAMS_MAX = 64
_STATS_EVERY = 4
"""Looks at the tables."""
_BEAT_EVERY = 60
_SEND_WITHIN_S = 30.0
"""A reader that takes nothing for so long is closed."""
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Streams:
    """Counts the streams that are open, and ends them with the server."""

    def __init__(self) -> None:
        self.open = 0
        self.is_ending = False


class Live:
    """One stream as an answer, which ends with the session. `may_look` is asked again once a minute: a user may have
    lost the right."""

    def __init__(
        self,
        streams: Streams,
        stats: Callable[[], dict[str, Any]],
        versions: Callable[[], dict[str, int | None]],
        is_signed_in: Callable[[], bool],
        may_look: Callable[[], bool],
    ) -> None:
        self._streams, self._stats, self._versions = streams, stats, versions
        self._is_signed_in, self._may_look = is_signed_in, may_look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open += 1
        try:
            async with anyio.create_task_group() as both:

                async def until_it_leaves() -> None:
                    # A body, which a GET does not have, ends the stream too.
                    with contextlib.suppress(Turned):
                        while (await receive())["type"] != "http.disconnect":
                            pass
                    both.cancel_scope.cancel()

                both.start_soon(until_it_leaves)
                await self._write(send)
                both.cancel_scope.cancel()
        finally:
            self._streams.open -= 1

    async def _write(self, send: Send) -> None:
        with contextlib.suppress(TimeoutError):
            await self._write_events(send)

    async def _write_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        known: dict[str, int | None] | None = None
        turn = 0
        while not self._streams.is_ending and self._is_signed_in():
            if turn % _STATS_EVERY == 0:
                await _put(send, _event("stats", await run_in_threadpool(self._stats)))
            versions = await run_in_threadpool(self._looked)
            if versions is not None and versions != known:
                known = versions
                await _put(send, _event("tables", {"tables": versions}))
            turn += 1
            if turn % _BEAT_EVERY == 0:
                await _put(send, b": beat\n\n")
            if turn % (4 * _BEAT_EVERY) == 0 and not await run_in_threadpool(self._may_look):
                break
            await anyio.sleep(LOOK_LOCAL_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _looked(self) -> dict[str, int | None] | None:
        """None if a table cannot be read now. Its page shows the error, so the stream goes on."""
        try:
            return self._versions()
        except HeadwaterError:
            return None


def _event(name: str, value: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'), allow_nan=False)}\n\n".encode()


async def _put(send: Send, block: bytes) -> None:
    message: Message = {"type": "http.response.body", "body": block, "more_body": True}
    with anyio.fail_after(_SEND_WITHIN_S):
        await send(message)
