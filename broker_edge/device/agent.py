"""The reference device agent: takes commands from `devices/{id}/actions`, reports on `devices/{id}/status`.

A command is looked up by name in a table of handlers; an update goes to the updater. It is acknowledged once the
journal has it, carried out once per (action, attempt), and reported ACCEPTED → IN_PROGRESS → SUCCEEDED | FAILED, or
REJECTED. A cancel stops what runs; what has finished keeps its state, and an update that installs already comes to its
own end.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from broker_edge.device.calls import Call, Command, Handler, Rejected
from broker_edge.device.journal import FINAL, Entry, Journal
from broker_edge.device.link import Link, LinkClosed
from broker_edge.device.ota import Restart, UpdateFailed, Updater
from broker_edge.device.wording import OwnWords, Said, Words

log = logging.getLogger(__name__)


class Agent:
    """Carries out commands for one device. `commands_max` run at once; more are rejected as busy.

    Wire it to a `Link` that subscribes to `agent.topic` with `agent.received` as its `on_message`, then `attach` it.
    `on_restart` is called when an update needs the device to start anew: whoever runs the agent closes it, and begins
    again with the same journal and flash. `on_told` hears of each status that the broker has acknowledged.
    """

    def __init__(
        self,
        device_id: str,
        *,
        handlers: Mapping[str, Handler],
        journal: Journal | None = None,
        commands_max: int = 8,
        updater: Updater | None = None,
        words: Words | None = None,
        on_restart: Callable[[], None] | None = None,
        on_told: Callable[[Said], None] | None = None,
    ) -> None:
        self.device_id = device_id
        self._updater = updater
        self._words = words or OwnWords()
        self._on_restart, self._on_told = on_restart, on_told
        self._handlers = dict(handlers)
        self._journal = journal or Journal()
        self._commands_max = commands_max
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._reporting: dict[tuple[str, int], asyncio.Task[None]] = {}
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
        """After a start: tell what an earlier run could not tell, go on with an update, and fail what else had
        begun."""
        pending = self._updater.pending() if self._updater is not None else None
        if pending is not None and self._updater is not None:
            known = self._journal.get(*pending.key)
            if known is None or known.state in FINAL:
                # Cut off before the journal had it, so it comes again; or between its end and forgetting it.
                self._updater.forget(pending.key)
                pending = None
        for entry in self._journal.untold():
            if pending is not None and (entry.action_id, entry.attempt) == pending.key:
                self._start(pending.key, self._carry_out(Command.again(pending)))
                continue
            if entry.state not in FINAL:
                entry = replace(entry, state="FAILED", message="the device restarted while the command ran")
                self._journal.put(entry)
            await self._tell(entry)

    async def announce(self) -> None:
        """Say that the device has started, and with which firmware."""
        await self._publish("", 0, "ONLINE", None, None, None)

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
        key = command.key
        known = self._journal.get(*key)
        if command.type == "cancel":
            self._cancel(command, known)
        elif command.type == "force":
            if self._updater is not None:
                self._updater.force(key)
        elif known is not None:
            log.debug("device %s has action %s attempt %d already: %s", self.device_id, *key, known.state)
        else:
            if command.order is not None and self._updater is not None:
                self._replace_older(command, self._updater)
                self._updater.take(command.order)
            self._journal.put(Entry(command.action_id, command.attempt, "ACCEPTED"))
            self._start(key, self._carry_out(command))

    def _replace_older(self, command: Command, updater: Updater) -> None:
        """An attempt replaces an older one of the same update that waits for its manifest still."""
        for key, task in list(self._running.items()):
            if key[0] == command.action_id and key[1] < command.attempt and not updater.has_begun(key):
                message = f"replaced by attempt {command.attempt}"
                # Nobody waits for a word of it any more.
                self._journal.put(Entry(*key, "CANCELLED", message, told=True))
                updater.forget(key)
                task.cancel("replaced")

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
        elif self._updater is not None and self._updater.is_past_cancelling(key):
            log.info("device %s installs already: the cancel of %s comes too late", self.device_id, key[0])
        elif running is not None:
            running.cancel("cancel")

    async def _carry_out(self, command: Command) -> None:
        refusal = self._refusal(command)
        if refusal is not None:
            await self._finish(command, "REJECTED", refusal)
            return
        try:
            if command.type != "again":
                await self._say(command, "ACCEPTED")
                await self._say(command, "IN_PROGRESS", progress=0)
            result = await self._result(command)
        except asyncio.CancelledError as stop:
            if "cancel" not in stop.args:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._finish(command, "CANCELLED", "cancelled while it ran")
        except Restart as reason:
            log.info("device %s starts anew %s", self.device_id, reason)
            if self._on_restart is not None:
                self._on_restart()
        except LinkClosed:
            # The device ends or starts anew; the journal says what is still to be told.
            log.info("device %s stops while %s runs", self.device_id, command.action_id)
        except Rejected as error:
            await self._finish(command, "REJECTED", str(error))
        except UpdateFailed as error:
            await self._finish(command, "FAILED", str(error))
        except Exception as error:
            await self._finish(command, "FAILED", f"{type(error).__name__}: {error}")
        else:
            await self._finish(command, "SUCCEEDED", None, result)

    async def _result(self, command: Command) -> Any:
        call = Call(
            device_id=self.device_id,
            action_id=command.action_id,
            attempt=command.attempt,
            name=command.name,
            params=command.params,
            progress=lambda percent, message=None, step=None: self._say(command, "IN_PROGRESS", message, percent, step),
            report=lambda percent, message=None, step=None: self._report(command, percent, message, step),
        )
        if command.order is not None and self._updater is not None:
            return await self._updater.carry_out(command.order, call)
        return await self._handlers[command.name](call)

    def _refusal(self, command: Command) -> str | None:
        if command.type == "again":
            return None
        if command.type not in ("command", "ota"):
            return f"this device does not know the type {command.type!r}"
        if command.order is not None and self._updater is None:
            return "this device takes no firmware"
        if command.order is None and command.name not in self._handlers:
            names = ", ".join(sorted(self._handlers))
            return f"this device does not know the command {command.name!r}; it knows {names}"
        if command.deadline_us is not None and time.time_ns() // 1_000 >= command.deadline_us:
            return "the deadline had passed when the command came"
        if len(self._running) > self._commands_max:
            return f"this device runs {self._commands_max} commands already"
        return None

    async def _say(
        self,
        command: Command,
        state: str,
        message: str | None = None,
        progress: int | None = None,
        step: str | None = None,
    ) -> None:
        self._journal.put(Entry(command.action_id, command.attempt, state, message))
        await self._reported(command.key)
        await self._publish(command.action_id, command.attempt, state, message, None, progress, step)

    def _report(self, command: Command, progress: int, message: str | None, step: str | None) -> None:
        """Progress in passing: one at a time is on its way, and the next one says more."""
        if command.key in self._reporting:
            return
        task = asyncio.ensure_future(
            self._publish(command.action_id, command.attempt, "IN_PROGRESS", message, None, progress, step)
        )
        self._reporting[command.key] = task
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        task.add_done_callback(lambda _: self._reporting.pop(command.key, None))
        task.add_done_callback(self._look_at)

    async def _reported(self, key: tuple[str, int]) -> None:
        """What was reported in passing must not come behind what follows it."""
        if (task := self._reporting.get(key)) is not None:
            await asyncio.wait([task])

    async def _finish(self, command: Command, state: str, message: str | None, result: Any = None) -> None:
        entry = Entry(command.action_id, command.attempt, state, message, result)
        self._journal.put(entry)
        if self._updater is not None:
            self._updater.forget(command.key)
        await self._tell(entry)

    async def _tell(self, entry: Entry) -> None:
        await self._reported((entry.action_id, entry.attempt))
        await self._publish(entry.action_id, entry.attempt, entry.state, entry.message, entry.result, None)
        self._journal.put(replace(entry, told=True))

    async def _publish(
        self,
        action_id: str,
        attempt: int,
        state: str,
        message: str | None,
        result: Any,
        progress: int | None,
        step: str | None = None,
    ) -> None:
        if self._link is None:
            raise RuntimeError(f"device {self.device_id} has no link; call attach first")
        self._seq += 1
        said = Said(
            device_id=self.device_id,
            action_id=action_id,
            attempt=attempt,
            state=state,
            boot=self._boot,
            seq=self._seq,
            ts_us=time.time_ns() // 1_000,
            progress=progress,
            message=message,
            result=result,
            version=None if self._updater is None else self._updater.version,
            step=step,
        )
        record = self._words.record(said)
        if record is None:
            return
        await self._link.publish(*record)
        if self._on_told is not None:
            self._on_told(said)
