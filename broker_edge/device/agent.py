"""The reference device agent: receives commands from `devices/{id}/actions`, reports on `devices/{id}/status`.

The agent looks a command up by name in a table of handlers and passes an update to the updater. It acknowledges a
command once the journal has it, executes it once per (action, attempt), and reports ACCEPTED → IN_PROGRESS → SUCCEEDED
| FAILED, or REJECTED. A cancel stops a running command. A finished one keeps its state, and an update that is already
being installed runs to its end.
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
    """Executes commands for one device. At most `commands_max` run at once; further ones are rejected as busy.

    Connect it to a `Link` that subscribes to `agent.topic` and has `agent.received` as its `on_message`, then call
    `attach`. `on_restart` is called when an update needs a restart of the device: the owner of the agent then closes it
    and starts a new one with the same journal and flash. `on_told` is called with each status that the broker has
    acknowledged.
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
        self._begun: set[tuple[str, int]] = set()
        """The running tasks whose first step has been taken."""
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
        """Begin a new run of the device: new boot id, seq starts again."""
        self._boot = uuid.uuid4().hex[:12]
        self._seq = 0

    async def catch_up(self) -> None:
        """After a start: report what an earlier run could not report, resume an update, and fail other commands that
        had begun."""
        pending = self._updater.pending() if self._updater is not None else None
        if pending is not None and self._updater is not None:
            known = self._journal.get(*pending.key)
            if known is None or known.state in FINAL:
                # Interrupted before the journal had the order, so it is delivered again; or between its end and
                # `forget`.
                self._updater.forget(pending.key)
                pending = None
        for entry in self._journal.untold():
            if (entry.action_id, entry.attempt) in self._running:
                continue  # The link was open already, and this run began it.
            if pending is not None and (entry.action_id, entry.attempt) == pending.key:
                self._start(pending.key, self._carry_out(Command.again(pending)))
                continue
            if entry.state not in FINAL:
                entry = replace(entry, state="FAILED", message="the device restarted while the command ran")
                self._journal.put(entry)
            await self._tell(entry)

    async def announce(self) -> None:
        """Report that the device has started, and its firmware."""
        await self._publish("", 0, "ONLINE", None, None, None)

    async def close(self) -> None:
        """Stop running commands without a report; a journal on disk reports them at the next start."""
        running = [*self._running.values(), *self._telling]
        for task in running:
            task.cancel("closing")
        await asyncio.gather(*running, return_exceptions=True)

    async def received(self, topic: str, payload: bytes) -> None:
        """Handle one record. The link acknowledges it when this returns, so the journal has it by then."""
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
            log.debug("device %s already has action %s attempt %d: %s", self.device_id, *key, known.state)
        else:
            if command.order is not None and self._updater is not None:
                self._replace_older(command, self._updater)
                self._updater.take(command.order)
            self._journal.put(Entry(command.action_id, command.attempt, "ACCEPTED"))
            self._start(key, self._carry_out(command))

    def _replace_older(self, command: Command, updater: Updater) -> None:
        """Replaces an older attempt of the same update that still waits for its manifest."""
        for key, task in list(self._running.items()):
            if key[0] == command.action_id and key[1] < command.attempt and not updater.has_begun(key):
                message = f"replaced by attempt {command.attempt}"
                # The engine no longer expects a status of the older attempt.
                self._journal.put(Entry(*key, "CANCELLED", message, told=True))
                updater.forget(key)
                task.cancel("replaced")

    def _start(self, key: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        task.add_done_callback(lambda _: self._begun.discard(key))
        task.add_done_callback(self._look_at)

    def _tell_soon(self, entry: Entry) -> None:
        """Report without delaying the link's next record. The link bounds these tasks: one answer per record in
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
            # The command may arrive later or never; it is stored as cancelled either way.
            entry = Entry(*key, "CANCELLED", "cancelled before it began")
            self._journal.put(entry)
            self._tell_soon(entry)
        elif known.state in FINAL:
            self._tell_soon(known)
        elif self._updater is not None and self._updater.is_past_cancelling(key):
            log.info("device %s is already installing: the cancel of %s is too late", self.device_id, key[0])
        elif running is not None and key in self._begun:
            running.cancel("cancel")
        elif running is not None:
            # The cancel came right behind the command: the task has not run yet, so it cannot answer.
            running.cancel("replaced")
            if self._updater is not None:
                self._updater.forget(key)
            entry = Entry(*key, "CANCELLED", "cancelled before it began")
            self._journal.put(entry)
            self._tell_soon(entry)

    async def _carry_out(self, command: Command) -> None:
        self._begun.add(command.key)
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
            log.info("device %s restarts %s", self.device_id, reason)
            if self._on_restart is not None:
                self._on_restart()
        except LinkClosed:
            # The device stops or restarts; the journal records what is still to be reported.
            log.info("device %s stops while %s is running", self.device_id, command.action_id)
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
            return "this device does not accept firmware"
        if command.order is None and command.name not in self._handlers:
            names = ", ".join(sorted(self._handlers))
            return f"this device does not know the command {command.name!r}; it knows {names}"
        if command.deadline_us is not None and time.time_ns() // 1_000 >= command.deadline_us:
            return "the deadline had passed when the command arrived"
        if len(self._running) > self._commands_max:
            return f"this device already runs {self._commands_max} commands"
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
        """Reports progress without waiting. Skipped while an earlier report is being sent; the next one is newer
        anyway."""
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
        """Waits for progress reports, so that none of them arrives after a later status."""
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
            raise RuntimeError(f"device {self.device_id} has no link: call attach first")
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
