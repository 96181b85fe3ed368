"""The reference device agent: takes commands from `devices/{id}/actions`, reports on `devices/{id}/status`.

A command is looked up by name in a table of handlers. It is acknowledged once the journal has it, carried out once per
(action, attempt), and reported ACCEPTED → IN_PROGRESS → SUCCEEDED | FAILED, or REJECTED. A cancel stops what runs; what
has finished keeps its state. The agent neither knows nor needs the broker's offsets.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker_edge.device.journal import FINAL, Entry, Journal
from broker_edge.device.link import Link

log = logging.getLogger(__name__)


class Rejected(Exception):
    """Raised by a handler that will not carry out the command; the message goes into the status."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler gets: the command, and a way to report how far it is."""

    device_id: str
    action_id: str
    attempt: int
    name: str
    params: Mapping[str, Any]
    progress: Callable[..., Awaitable[None]]
    """`await call.progress(40, "downloading")`: percent, and a message if wanted."""


Handler = Callable[[Call], Awaitable[Any]]
"""Returns the result (anything JSON can hold). An exception is FAILED, `Rejected` is REJECTED."""


@dataclass(frozen=True, slots=True)
class Command:
    """A record of `devices/{id}/actions`, checked."""

    action_id: str
    attempt: int
    type: str
    name: str
    params: Mapping[str, Any]
    deadline_us: int | None

    @classmethod
    def parse(cls, payload: bytes) -> Command:
        """Raises ValueError, in words, for anything that is not a command."""
        try:
            body = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a command: {error}") from error
        if not isinstance(body, dict):
            raise ValueError("not a command: the payload is not a JSON object")
        command = cls(
            action_id=body.get("action_id", ""),
            attempt=body.get("attempt", 0),
            type=body.get("type", ""),
            name=body.get("name", ""),
            params=body.get("params") or {},
            deadline_us=body.get("deadline_us"),
        )
        texts = {"action_id": command.action_id, "type": command.type, "name": command.name}
        wrong = [name for name, value in texts.items() if not isinstance(value, str)]
        wrong += ["action_id"] if command.action_id == "" else []
        wrong += ["attempt"] if type(command.attempt) is not int or command.attempt < 1 else []
        wrong += ["params"] if not isinstance(command.params, dict) else []
        wrong += ["deadline_us"] if type(command.deadline_us) not in (int, type(None)) else []
        if wrong:
            raise ValueError(f"not a command: wrong {', '.join(wrong)}")
        return command


class Agent:
    """Carries out commands for one device. `commands_max` run at once; more are rejected as busy.

    Wire it to a `Link` that subscribes to `agent.topic` with `agent.received` as its `on_message`, then `attach` it.
    """

    def __init__(
        self,
        device_id: str,
        *,
        handlers: Mapping[str, Handler],
        journal: Journal | None = None,
        commands_max: int = 8,
    ) -> None:
        self.device_id = device_id
        self._handlers = dict(handlers)
        self._journal = journal or Journal()
        self._commands_max = commands_max
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._link: Link | None = None
        self._boot = uuid.uuid4().hex[:12]
        self._seq = 0

    @property
    def topic(self) -> str:
        return f"devices/{self.device_id}/actions"

    @property
    def boot(self) -> str:
        return self._boot

    def attach(self, link: Link) -> None:
        self._link = link

    def begin_boot(self) -> None:
        """A new run of the device: another boot id, seq from the start."""
        self._boot = uuid.uuid4().hex[:12]
        self._seq = 0

    async def catch_up(self) -> None:
        """After a start: tell what an earlier run could not tell, and fail what it had begun."""
        for entry in self._journal.untold():
            if entry.state not in FINAL:
                entry = replace(entry, state="FAILED", message="the device restarted while the command ran")
                self._journal.put(entry)
            await self._tell(entry)

    async def close(self) -> None:
        """Stop what runs without a report; a journal on disk reports it at the next start."""
        running = [*self._running.values(), *self._telling]
        for task in running:
            task.cancel("closing")
        await asyncio.gather(*running, return_exceptions=True)

    async def received(self, topic: str, payload: bytes) -> None:
        """Take one record. Returning lets the link acknowledge it, so the journal has it by then."""
        try:
            command = Command.parse(payload)
        except ValueError as error:
            log.warning("device %s ignores a record on %s: %s", self.device_id, topic, error)
            return
        key = (command.action_id, command.attempt)
        known = self._journal.get(*key)
        if command.type == "cancel":
            self._cancel(command, known)
        elif known is not None:
            log.debug("device %s has action %s attempt %d already: %s", self.device_id, *key, known.state)
        else:
            self._journal.put(Entry(command.action_id, command.attempt, "ACCEPTED"))
            self._start(key, self._carry_out(command))

    def _start(self, key: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        task.add_done_callback(self._look_at)

    def _tell_soon(self, entry: Entry) -> None:
        """Tell without keeping the link from its next record. Bounded by the link: it has one answer per record in
        flight."""
        task = asyncio.ensure_future(self._tell(entry))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        task.add_done_callback(self._look_at)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("device %s could not report: %s", self.device_id, error)

    def _cancel(self, command: Command, known: Entry | None) -> None:
        key = (command.action_id, command.attempt)
        running = self._running.get(key)
        if known is None:
            # The command may still come, or never: it is remembered as cancelled either way.
            entry = Entry(*key, "CANCELLED", "cancelled before it began")
            self._journal.put(entry)
            self._tell_soon(entry)
        elif known.state in FINAL:
            self._tell_soon(known)
        elif running is not None:
            running.cancel("cancel")

    async def _carry_out(self, command: Command) -> None:
        refusal = self._refusal(command)
        if refusal is not None:
            await self._finish(command, "REJECTED", refusal)
            return
        try:
            await self._say(command, "ACCEPTED")
            await self._say(command, "IN_PROGRESS", progress=0)
            call = Call(
                device_id=self.device_id,
                action_id=command.action_id,
                attempt=command.attempt,
                name=command.name,
                params=command.params,
                progress=lambda percent, message=None: self._say(command, "IN_PROGRESS", message, percent),
            )
            result = await self._handlers[command.name](call)
        except asyncio.CancelledError as stop:
            if "cancel" not in stop.args:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._finish(command, "CANCELLED", "cancelled while it ran")
        except Rejected as error:
            await self._finish(command, "REJECTED", str(error))
        except Exception as error:
            await self._finish(command, "FAILED", f"{type(error).__name__}: {error}")
        else:
            await self._finish(command, "SUCCEEDED", None, result)

    def _refusal(self, command: Command) -> str | None:
        if command.type != "command":
            return f"this device does not know the type {command.type!r}"
        if command.name not in self._handlers:
            names = ", ".join(sorted(self._handlers))
            return f"this device does not know the command {command.name!r}; it knows {names}"
        if command.deadline_us is not None and time.time_ns() // 1_000 >= command.deadline_us:
            return "the deadline had passed when the command came"
        if len(self._running) > self._commands_max:
            return f"this device runs {self._commands_max} commands already"
        return None

    async def _say(self, command: Command, state: str, message: str | None = None, progress: int | None = None) -> None:
        self._journal.put(Entry(command.action_id, command.attempt, state, message))
        await self._publish(command.action_id, command.attempt, state, message, None, progress)

    async def _finish(self, command: Command, state: str, message: str | None, result: Any = None) -> None:
        entry = Entry(command.action_id, command.attempt, state, message, result)
        self._journal.put(entry)
        await self._tell(entry)

    async def _tell(self, entry: Entry) -> None:
        await self._publish(entry.action_id, entry.attempt, entry.state, entry.message, entry.result, None)
        self._journal.put(replace(entry, told=True))

    async def _publish(
        self, action_id: str, attempt: int, state: str, message: str | None, result: Any, progress: int | None
    ) -> None:
        if self._link is None:
            raise RuntimeError(f"device {self.device_id} has no link; call attach first")
        self._seq += 1
        body: dict[str, Any] = {
            "action_id": action_id,
            "attempt": attempt,
            "state": state,
            "boot": self._boot,
            "seq": self._seq,
            "ts": time.time_ns() // 1_000,
        }
        optional = {"progress": progress, "message": message, "result": result}
        body.update({name: value for name, value in optional.items() if value is not None})
        payload = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        await self._link.publish(f"devices/{self.device_id}/status", payload)
