"""The reference device agent: receives commands from `devices/{id}/actions`, reports on `devices/{id}/status`.

The agent looks a command up by name in a table of handlers and passes an update to the updater. It acknowledges a
command once the journal has it, executes it once per (action, attempt), and reports ACCEPTED → IN_PROGRESS → SUCCEEDED
| FAILED, or REJECTED. Only the newest attempt of an action counts. A cancel stops a running command. A finished one
keeps its state, and an update that is already being installed runs to its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from broker_edge.device.calls import Call, Command, Handler, Rejected
from broker_edge.device.guard import CommandRefused
from broker_edge.device.journal import FINAL, Entry, Journal
from broker_edge.device.key_feed import KeyFeed
from broker_edge.device.link import Link, LinkClosed, PublishRefused
from broker_edge.device.ota import Restart, UpdateFailed, Updater
from broker_edge.device.pauses import AGAIN_FIRST_S, until_stored
from broker_edge.device.reports import Key, Reports
from broker_edge.device.wording import OwnWords, Said, Words

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Work:
    """A command that is carried out. A new attempt of it may take its place while it runs."""

    command: Command
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    """Whether the first step of the task has been taken."""
    is_over: bool = False
    """Whether its result is certain, although the journal may not have it yet."""

    @property
    def key(self) -> Key:
        return self.command.key

    def stop(self, why: str) -> None:
        if self.task is not None:
            self.task.cancel(why)


class Agent:
    """Executes commands for one device. At most `commands_max` run at once; further ones are rejected as busy.

    Connect it to a `Link` that subscribes to `agent.topic` and has `agent.received` as its `on_message`, then call
    `attach`. `on_restart` is called when an update needs a restart of the device: the owner of the agent then closes it
    and starts a new one with the same journal and flash. `on_told` is called with each status that the broker has
    acknowledged. With `keys`, commands must be signed if the key list has the role `director`. `again_s` is the first
    pause before what the disk or the broker refused is stored or said again.
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
        keys: KeyFeed | None = None,
        again_s: float = AGAIN_FIRST_S,
    ) -> None:
        self.device_id = device_id
        self._again_s = again_s
        self._updater, self._keys = updater, keys
        self._on_restart = on_restart
        self._handlers = dict(handlers)
        self._journal = journal or Journal()
        self._commands_max = commands_max
        self._running: dict[Key, _Work] = {}
        self._in_turn = asyncio.Lock()
        version = (lambda: None) if updater is None else lambda: updater.version
        guard = None if keys is None else keys.guard
        self._reports = Reports(
            device_id,
            self._journal,
            words or OwnWords(),
            version=version,
            on_told=on_told,
            product=None if guard is None else guard.product,
            hardware=None if guard is None else guard.hardware,
            again_s=again_s,
        )

    @property
    def topic(self) -> str:
        return f"devices/{self.device_id}/actions"

    @property
    def boot(self) -> str:
        return self._reports.boot

    def attach(self, link: Link) -> None:
        self._reports.attach(link)

    def begin_boot(self) -> None:
        """Begin a new run of the device: new boot id, seq starts again."""
        self._reports.begin_boot()

    async def catch_up(self) -> None:
        """After a start: report what an earlier run could not report, resume an update, and fail other commands that
        had begun."""
        if self._keys is not None:
            self._keys.start()
        pending = self._pending()
        if pending is not None and pending.key not in self._running:
            self._start(pending)
        for entry in self._journal.untold():
            if (entry.action_id, entry.attempt) in self._running:
                continue  # The update, or the link was open already, and this run began it.
            if entry.state not in FINAL:
                entry = replace(entry, state="FAILED", message="the device restarted while the command ran")
                await until_stored(partial(self._journal.put, entry), self._again_s)
            await self._reports.tell(entry)

    def _pending(self) -> Command | None:
        """The update that an earlier run did not finish, as its newest attempt."""
        order = self._updater.pending() if self._updater is not None else None
        if order is None or self._updater is None:
            return None
        newest = self._journal.newest(order.action_id)
        if newest is not None and newest.attempt > order.attempt and newest.state not in FINAL:
            # Interrupted while the new attempt took over.
            self._note_replaced(order.key, newest.attempt)
            order = replace(order, attempt=newest.attempt)
            self._updater.adopt(order)
        known = self._journal.get(*order.key)
        if known is None or known.state in FINAL:
            # Interrupted before the journal had the order, so it is delivered again; or between its end and `forget`.
            self._updater.forget(order.key)
            return None
        return Command.again(order)

    async def announce(self) -> None:
        """Report that the device has started, and its firmware."""
        await self._reports.online()

    async def close(self) -> None:
        """Stop running commands without a report; a journal on disk reports them at the next start."""
        running = [work.task for work in self._running.values() if work.task is not None] + self._reports.tasks
        for task in running:
            task.cancel("closing")
        await asyncio.gather(*running, return_exceptions=True)
        if self._keys is not None:
            await self._keys.close()

    async def received(self, topic: str, payload: bytes) -> None:
        """Handle one record. The link acknowledges it when this returns, so the journal has it by then.

        Records are handled in the order of arrival, also while one of them waits for a newer key list.
        """
        async with self._in_turn:
            try:
                command = Command.parse(payload)
                if self._keys is not None:
                    command = Command.parse(await self._keys.command(payload, self.device_id))
            except CommandRefused as error:
                self._refuse(command, str(error))
            except ValueError as error:
                log.warning("device %s ignores a record on %s: %s", self.device_id, topic, error)
            else:
                self._handle(command)

    def _handle(self, command: Command) -> None:
        known = self._journal.get(*command.key)
        if command.type == "cancel":
            self._cancel(command, known)
        elif command.type == "force":
            if self._updater is not None:
                self._updater.force(command.key)
        elif known is not None:
            log.debug("device %s already has action %s attempt %d: %s", self.device_id, *command.key, known.state)
        else:
            self._take(command)

    def _refuse(self, command: Command, reason: str) -> None:
        """Answers a command that nobody with the right to it has signed. The journal does not get it: the real command
        may still come. An answer to a cancel, or about a command that this device has, would change its state."""
        log.warning("device %s refuses action %s attempt %d: %s", self.device_id, *command.key, reason)
        if command.type not in ("cancel", "force") and self._journal.get(*command.key) is None:
            self._reports.answer_soon(command.key, "REJECTED", reason)

    # -- attempts --------------------------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        """Begins a command, unless another attempt of the same action makes that unnecessary."""
        newest = self._journal.newest(command.action_id)
        if newest is not None and newest.attempt > command.attempt:
            log.info("device %s ignores action %s attempt %d: it has a newer one", self.device_id, *command.key)
            return
        # The newest one may have been cancelled before its command arrived, behind one that succeeded.
        older = self._under_way(command.action_id) or self._journal.succeeded(command.action_id) or newest
        if older is not None and self._is_settled_by(command, older):
            return
        if command.order is not None and self._updater is not None:
            self._updater.take(command.order)
        self._journal.put(Entry(*command.key, "ACCEPTED"))
        self._start(command)

    def _under_way(self, action_id: str) -> Entry | None:
        """The attempt that is carried out. It need not be the newest: one behind it may have been cancelled before its
        command arrived, while this one could no longer be cancelled."""
        pending = None if self._updater is None else self._updater.pending()
        keys = [*self._running, *([] if pending is None else [pending.key])]
        found = [entry for key in keys if key[0] == action_id and (entry := self._journal.get(*key)) is not None]
        return max((one for one in found if one.state not in FINAL), key=lambda one: one.attempt, default=None)

    def _is_settled_by(self, command: Command, older: Entry) -> bool:
        """Whether an older attempt does what the command asks for: it has succeeded, or it is under way."""
        work = self._running.get((older.action_id, older.attempt))
        if older.state == "SUCCEEDED" and command.order is None:
            entry = Entry(*command.key, "SUCCEEDED", f"done by attempt {older.attempt}", older.result)
            self._journal.put(entry)
            self._reports.tell_soon(entry)
            return True
        if older.state in FINAL:
            return False
        if work is None:
            return self._adopt_pending(command)
        if not self._has_begun(work):
            self._note_replaced(work.key, command.attempt)
            if self._updater is not None:
                self._updater.forget(work.key)
            work.stop("replaced")
            return False
        if not command.is_same(work.command):
            return False
        self._adopt(command, work)
        return True

    def _has_begun(self, work: _Work) -> bool:
        if work.command.order is not None and self._updater is not None:
            return self._updater.has_begun(work.key)
        return work.has_begun

    def _adopt(self, command: Command, work: _Work) -> None:
        """Lets the work go on as another attempt."""
        before = work.key
        self._journal.put(Entry(*command.key, "IN_PROGRESS"))
        if command.order is not None and self._updater is not None:
            self._updater.adopt(command.order)
        self._note_replaced(before, command.attempt)
        del self._running[before]
        work.command = command
        self._running[command.key] = work
        self._reports.progress(command.key, None, f"continues attempt {before[1]}")

    def _adopt_pending(self, command: Command) -> bool:
        """Lets an update that an earlier run began go on as another attempt, before `catch_up` has looked at it."""
        pending = None if self._updater is None else self._updater.pending()
        if self._updater is None or pending is None or command.order is None or not command.order.is_same(pending):
            return False
        self._journal.put(Entry(*command.key, "ACCEPTED"))
        self._updater.adopt(command.order)
        self._note_replaced(pending.key, command.attempt)
        self._start(Command.again(replace(pending, attempt=command.attempt)))
        return True

    def _note_replaced(self, key: Key, attempt: int) -> None:
        # The engine no longer expects a status of the older attempt.
        self._journal.put(Entry(*key, "CANCELLED", f"replaced by attempt {attempt}", told=True))

    def _cancel(self, command: Command, known: Entry | None) -> None:
        key = command.key
        work = self._running.get(key)
        if known is None:
            # The command may arrive later or never; it is stored as cancelled either way.
            self._note_cancelled(key)
        elif known.state in FINAL:
            self._reports.tell_soon(known)
        elif self._updater is not None and self._updater.is_past_cancelling(key):
            log.info("device %s is already installing: the cancel of %s is too late", self.device_id, key[0])
        elif work is not None and work.is_over:
            log.info("device %s has finished: the cancel of %s is too late", self.device_id, key[0])
        elif work is not None and work.has_begun:
            work.stop("cancel")
        elif work is not None:
            # The cancel came right behind the command: the task has not run yet, so it cannot answer.
            work.stop("replaced")
            if self._updater is not None:
                self._updater.forget(key)
            self._note_cancelled(key)

    def _note_cancelled(self, key: Key) -> None:
        entry = Entry(*key, "CANCELLED", "cancelled before it began")
        self._journal.put(entry)
        self._reports.tell_soon(entry)

    # -- carrying out ----------------------------------------------------------------------------------------------

    def _start(self, command: Command) -> None:
        work = _Work(command)
        work.task = asyncio.ensure_future(self._carry_out(work))
        self._running[command.key] = work

        def ended(task: asyncio.Task[None]) -> None:
            if self._running.get(work.key) is work:
                del self._running[work.key]
            self._reports.look_at(task)

        work.task.add_done_callback(ended)

    async def _carry_out(self, work: _Work) -> None:
        work.has_begun = True
        refusal = self._refusal(work.command)
        if refusal is not None:
            await self._finish(work, "REJECTED", refusal)
            return
        try:
            if work.command.type != "again":
                await self._reports.say(work.key, "ACCEPTED")
                await self._reports.say(work.key, "IN_PROGRESS", progress=0)
            result = await self._result(work)
        except asyncio.CancelledError as stop:
            if "cancel" not in stop.args:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            await self._finish(work, "CANCELLED", "cancelled while it ran")
        except Restart as reason:
            log.info("device %s restarts %s", self.device_id, reason)
            if self._on_restart is not None:
                self._on_restart()
        except LinkClosed:
            # The device stops or restarts; the journal records what is still to be reported.
            log.info("device %s stops while %s is running", self.device_id, work.command.action_id)
        except Rejected as error:
            await self._finish(work, "REJECTED", str(error))
        except UpdateFailed as error:
            await self._finish(work, "FAILED", str(error))
        except Exception as error:
            await self._finish(work, "FAILED", f"{type(error).__name__}: {error}")
        else:
            await self._finish(work, "SUCCEEDED", None, result)

    async def _result(self, work: _Work) -> Any:
        command = work.command

        async def progress(percent: int, message: str | None = None, step: str | None = None) -> None:
            try:
                await self._reports.say(work.key, "IN_PROGRESS", message, percent, step)
            except PublishRefused as error:
                # It must not end the work: an image on trial would stay without a confirmation or a rollback.
                log.warning("device %s goes on with %s unheard: %s", self.device_id, work.key[0], error)

        def report(percent: int, message: str | None = None, step: str | None = None) -> None:
            self._reports.progress(work.key, percent, message, step)

        call = Call(
            device_id=self.device_id,
            action_id=command.action_id,
            attempt=command.attempt,
            name=command.name,
            params=command.params,
            progress=progress,
            report=report,
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

    async def _finish(self, work: _Work, state: str, message: str | None, result: Any = None) -> None:
        work.is_over = True
        # Another attempt may take the work over until the journal has its end.
        await until_stored(lambda: self._journal.put(Entry(*work.key, state, message, result)), self._again_s)
        if self._updater is not None:
            await until_stored(partial(self._updater.forget, work.key), self._again_s)
        await self._reports.tell(Entry(*work.key, state, message, result))
