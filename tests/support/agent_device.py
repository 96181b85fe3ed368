"""A device whose decisions are those of `broker_edge.device.Agent`, driven step by step and without MQTT or time.

Which attempt counts, what is adopted, what a cancel stops and what the journal says is the real agent, journal, updater
and flash. The model replaces what waits: the connection, the download, and the work itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, cast

from actions.engine import Publish
from broker_edge.device.agent import Agent, _Work
from broker_edge.device.calls import Command, Order
from broker_edge.device.flash import Firmware, MemoryFlash
from broker_edge.device.guard import CommandRefused
from broker_edge.device.journal import Entry, Journal
from broker_edge.device.link import Link
from broker_edge.device.ota import UpdatePolicy, Updater
from broker_edge.device.wording import OwnWords
from support.model_device import Key, Log

BUSY = "this device has another update in progress"
_STATUS_PARTITION = 5


@dataclass(slots=True, eq=False)
class Work(_Work):
    """A command that the model carries out."""

    stopped: str | None = None

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why


class Told:
    """Stands for `device.reports.Reports`: statuses wait here until the device has a broker."""

    def __init__(self, device: AgentDevice) -> None:
        self._device = device
        self.outgoing: list[tuple[Key, str, str | None, Entry | None]] = []

    def say(self, key: Key, state: str, message: str | None = None, **_: Any) -> None:
        self._device.journal.put(Entry(*key, state, message))
        self.outgoing.append((key, state, message, None))

    async def tell(self, entry: Entry) -> None:
        self.tell_soon(entry)

    def tell_soon(self, entry: Entry) -> None:
        self.outgoing.append(((entry.action_id, entry.attempt), entry.state, entry.message, entry))

    def answer_soon(self, key: Key, state: str, message: str) -> None:
        self.outgoing.append((key, state, message, None))

    def progress(self, key: Key, percent: int | None, message: str | None = None, step: str | None = None) -> None:
        self.outgoing.append((key, "IN_PROGRESS", message, None))


class SteppedAgent(Agent):
    """The agent's decisions; the device takes the steps of its work."""

    def __init__(self, device: AgentDevice) -> None:
        policy = UpdatePolicy(trust=cast(Any, None), allow_unsigned=True)
        self.updater = Updater(device.flash, cast(Link, None), policy=policy)
        handlers = {"echo": cast(Any, None)}
        super().__init__(device.id, handlers=handlers, journal=device.journal, updater=self.updater, words=OwnWords())
        self._device = device
        self._reports = cast(Any, device.told)

    @property
    def running(self) -> dict[Key, Work]:
        return cast(dict[Key, Work], self._running)

    def _start(self, command: Command) -> None:
        self._running[command.key] = Work(command)

    def handle(self, payload: bytes) -> None:
        """What `received` does with a record, up to the moment at which the link would acknowledge it."""
        try:
            self._handle(Command.parse(payload))
        except CommandRefused as error:
            self._refuse(Command.parse(payload), str(error))
        self._let_go()

    def _let_go(self) -> None:
        """The tasks that were stopped end at the next step of the event loop."""
        for key, work in list(self.running.items()):
            if work.stopped is not None:
                if work.stopped == "cancel":
                    self.finish(work, "CANCELLED", "cancelled while it ran")
                self.running.pop(key, None)

    def refusal(self, command: Command, now_us: int) -> str | None:
        if command.deadline_us is not None and now_us >= command.deadline_us:
            return "the deadline had passed when the command arrived"
        return self._refusal(replace(command, deadline_us=None))

    def finish(self, work: Work, state: str, message: str | None) -> None:
        _at_once(self._finish(work, state, message))
        self.running.pop(work.key, None)


def _at_once(steps: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine that waits for nothing."""
    try:
        steps.send(None)
    except StopIteration:
        return
    raise AssertionError("the agent waits for something that the model does not have")


@dataclass(slots=True)
class Truth:
    """What really happened on one device, whatever anybody reports."""

    begun: Counter[Key] = field(default_factory=Counter)
    ended: dict[Key, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The results that it reported, by attempt."""
    refused_busy: list[tuple[Key, Key]] = field(default_factory=list)
    """Updates that it refused, and the one that it had."""
    acknowledged: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    versions: set[str] = field(default_factory=set)
    """The firmware that it has reported."""
    lost_journal: bool = False


class AgentDevice:
    """`carries_out(action_id)` says whether the work of an action succeeds here."""

    def __init__(self, id_: str, agent: type[SteppedAgent] = SteppedAgent) -> None:
        self.id, self._agent_type = id_, agent
        self.flash = MemoryFlash(firmware=Firmware("fw", "1"))
        self.journal = Journal()
        self.truth = Truth()
        self.log: Log | None = None
        """The log of the broker to which it is connected."""
        self.is_willing = False
        """Whether a soft update may install now."""
        self._cursors: dict[str, int] = {}
        self._boots, self._seq = 0, 0
        self.told = Told(self)
        self.agent = agent(self)

    @property
    def version(self) -> str:
        return self.agent.updater.version

    # -- the connection ----------------------------------------------------------------------------------------------

    def connect(self, log: Log | None) -> None:
        self.log = log
        if log is not None and log.id not in self._cursors:
            self._cursors[log.id] = len(log.records)

    def restart(self) -> None:
        """The process starts again, with what its journal and its flash hold."""
        self._boots, self._seq = self._boots + 1, 0
        self.told = Told(self)
        self.agent = self._agent_type(self)
        self.agent.updater.start()
        _at_once(self.agent.catch_up())
        self.told.outgoing.append((("", 0), "ONLINE", None, None))

    def lose_journal(self) -> None:
        """Factory reset: journal and update are gone, the firmware stays."""
        self.journal = Journal()
        self.flash.set_job(None)
        self.truth.lost_journal = True
        self.restart()

    def flush(self, at_us: int, *, twice: bool = False) -> None:
        """Publishes what waits. `twice`: the PUBACK of the last one was lost, so it is sent again."""
        if self.log is None:
            return
        sent, self.told.outgoing = self.told.outgoing, []
        for number, (key, state, message, entry) in enumerate(sent):
            self._seq += 1
            about = {"source": "status", "device_id": self.id, "action_id": key[0], "attempt": key[1], "state": state}
            self.truth.versions.add(self.version)
            run = {"boot": f"{self.id}-{self._boots}", "seq": self._seq, "version": self.version, "message": message}
            for _ in range(2 if twice and number == len(sent) - 1 else 1):
                self.log.report(_STATUS_PARTITION + ord(self.id[-1]) % 2, **about, **run, at_us=at_us)
            if state in ("SUCCEEDED", "FAILED", "REJECTED", "CANCELLED"):
                self.truth.ended[key].append(state)
            if entry is not None:
                self.journal.put(replace(entry, told=True))

    # -- records and work --------------------------------------------------------------------------------------------

    def read(self, most: int, at_us: int, begins: Callable[[Publish, Log], None]) -> int:
        """Takes the next records of its log. `begins` is called with each command that it will carry out."""
        log = self.log
        if log is None:
            return 0
        taken = 0
        for offset in range(self._cursors[log.id], len(log.records)):
            publish = log.records[offset]
            if publish.device_id == self.id:
                if taken == most:
                    break
                taken += 1
                self._take(publish, log, at_us, begins)
            self._cursors[log.id] = offset + 1
        return taken

    def _take(self, publish: Publish, log: Log, at_us: int, begins: Callable[[Publish, Log], None]) -> None:
        key, before = (publish.action_id, publish.attempt), set(self.agent.running)
        self.agent.handle(publish.value)
        if publish.kind == "command":
            place = {"command_partition": 2, "command_offset": log.places[publish.idempotency_key]}
            about = {"source": "receipt", "device_id": self.id, "action_id": key[0], "attempt": key[1]}
            log.report(0, **about, state="DELIVERED", at_us=at_us, **place)
            self.truth.acknowledged[key].add(log.id)
            if key in self.agent.running and key not in before:
                begins(publish, log)

    def work(self, succeeds: Callable[[Command], bool], now_us: int) -> None:
        """One step of everything that runs."""
        for work in list(self.agent.running.values()):
            if not work.has_begun:
                self._begin(work, now_us)
            elif work.command.order is None:
                done = succeeds(work.command)
                self.agent.finish(work, "SUCCEEDED" if done else "FAILED", None if done else "it did not work")
            else:
                self._install(work, work.command.order, succeeds(work.command))
                if self.agent.running.get(work.key) is not work:
                    return  # It has restarted, and everything else with it.

    def _begin(self, work: Work, now_us: int) -> None:
        work.has_begun = True
        refusal = self.agent.refusal(work.command, now_us)
        if refusal is not None:
            self.agent.finish(work, "REJECTED", refusal)
            return
        if work.command.type != "again":
            self.told.say(work.key, "ACCEPTED")
            self.told.say(work.key, "IN_PROGRESS")
            self.truth.begun[work.key] += 1
        if work.command.order is not None and not self.agent.updater.take(work.command.order):
            job = self.flash.job()
            self.truth.refused_busy.append((work.key, job.key if job is not None else work.key))
            self.agent.finish(work, "REJECTED", BUSY)

    def _install(self, work: Work, order: Order, works: bool) -> None:
        job = self.flash.job()
        if job is None or job.key != work.key:
            self.agent.finish(work, "FAILED", "the device lost its update")
        elif job.step == "download" and job.mode != "download_only" and self.version == order.target_version:
            self.agent.finish(work, "SUCCEEDED", None)
        elif job.step == "download":
            self.flash.set_job(replace(job, step="wait", manifest="accepted"))
        elif job.step == "wait" and job.mode == "download_only":
            self.agent.finish(work, "SUCCEEDED", None)
        elif job.step == "wait" and (job.mode == "forced" or self.is_willing):
            boot = replace(self.flash.boot(), trial=Firmware(job.name, job.version), boots=0)
            self.flash.set_boot(boot)
            self.flash.set_job(replace(job, step="confirm"))
            self.restart()
        elif job.step == "confirm" and works and self.flash.boot().trial is not None:
            self.flash.set_boot(self.flash.boot().confirmed())
            self.agent.finish(work, "SUCCEEDED", None)
        elif job.step == "confirm":
            self.flash.set_boot(self.flash.boot().rolled_back())
            self.flash.set_job(replace(job, step="rollback"))
            self.restart()
        elif job.step == "rollback":
            self.agent.finish(work, "FAILED", "rolled back")
