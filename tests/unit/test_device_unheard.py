"""How a command ended is said until the broker acknowledges it, and stored until the disk takes it: both in the run of
the device in which it ended."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.device_line import WAIT_S, Line

from broker_edge.device import Agent, Journal
from broker_edge.device import reports as reports_module
from broker_edge.device.calls import Call, Handler
from broker_edge.device.journal import FINAL, Entry
from broker_edge.device.link import PublishRefused
from broker_edge.device.pauses import pauses


class Broker(Line):
    """Refuses each status that `refuses` picks; keeps the others in `heard`."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []
        self.refuses: Callable[[dict[str, Any]], bool] = lambda status: status["state"] in FINAL

    async def publish(self, topic: str, payload: bytes, **more: Any) -> None:
        await super().publish(topic, payload, **more)
        if self.refuses(self.said[-1]):
            raise PublishRefused(0x97)
        self.heard.append(self.said[-1])

    def ends(self) -> list[tuple[str, int, str]]:
        found = [one for one in self.heard if one["state"] in FINAL]
        return [(one["action_id"], one["attempt"], one["state"]) for one in found]

    def tries(self, action_id: str) -> int:
        return sum(one.get("action_id") == action_id and one["state"] in FINAL for one in self.said)


class FullDisk(Journal):
    """Its disk takes no final state while `is_full`."""

    is_full = True
    tries = 0

    def put(self, entry: Entry) -> None:
        if self.is_full and entry.state in FINAL:
            self.tries += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put(entry)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0)


async def echo(call: Call) -> Any:
    return dict(call.params)


Story = Callable[[Agent, Broker], Awaitable[None]]


def run(story: Story, journal: Journal | None = None, *, handler: Handler = echo) -> None:
    async def whole() -> None:
        broker = Broker()
        agent = Agent("d1", handlers={"echo": handler}, journal=journal, again_s=0.0)
        agent.attach(broker)  # type: ignore[arg-type]
        try:
            await story(agent, broker)
        finally:
            await agent.close()

    asyncio.run(whole())


async def order(agent: Agent, action_id: str, type_: str = "command", attempt: int = 1) -> None:
    body = {"action_id": action_id, "attempt": attempt, "type": type_, "name": "echo"}
    await agent.received(agent.topic, json.dumps(body).encode())


def test_refused_ends_are_said_again_in_their_order_and_noted_once_heard() -> None:
    journal = Journal()

    async def story(agent: Agent, broker: Broker) -> None:
        for number in range(20):  # More than run at once: a refused end takes no place.
            await order(agent, f"a{number}")
            await until(lambda number=number: broker.tries(f"a{number}") >= 1)  # type: ignore[misc]
            await until(lambda: not agent._running)
        await until(lambda: broker.tries("a0") >= 5)
        assert (broker.ends(), len(list(journal.untold()))) == ([], 20)
        broker.refuses = lambda status: not broker.ends() and status.get("action_id") != "a0"
        await until(lambda: not list(journal.untold()))
        assert broker.ends() == [(f"a{number}", 1, "SUCCEEDED") for number in range(20)]
        stamps = [one["seq"] for one in broker.said]
        assert stamps == sorted(set(stamps))

    run(story, journal)


def test_an_end_that_is_never_heard_holds_up_none_behind_it() -> None:
    async def story(agent: Agent, broker: Broker) -> None:
        for action_id in ("a1", "a2"):
            await order(agent, action_id)
            await until(lambda action_id=action_id: broker.tries(action_id) >= 1)  # type: ignore[misc]
        broker.refuses = lambda status: status.get("action_id") == "a1"
        await until(lambda: broker.ends() == [("a2", 1, "SUCCEEDED")])
        tries = broker.tries("a1")
        await until(lambda: broker.tries("a1") >= tries + 3)

    run(story)


def test_repeated_answers_wait_in_one_task() -> None:
    async def story(agent: Agent, broker: Broker) -> None:
        await order(agent, "a1")
        await until(lambda: broker.tries("a1") >= 1 and not agent._running)
        for _ in range(50):
            before = broker.tries("a1")
            await order(agent, "a1", "cancel")
            await until(lambda before=before: broker.tries("a1") > before)  # type: ignore[misc]
        await until(lambda: len(agent._reports.tasks) == 1)

    run(story)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "_UNHEARD_MAX", 2)
    monkeypatch.setattr(reports_module, "pauses", lambda first_s: itertools.repeat(WAIT_S))

    async def story(agent: Agent, broker: Broker) -> None:
        for number in range(5):
            await order(agent, f"a{number}")
            await until(lambda: not agent._running)
        assert list(agent._reports._unheard) == [("a3", 1), ("a4", 1)]

    run(story)


def test_pauses_grow_while_nothing_is_heard_and_begin_again_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def counted(first_s: float) -> Any:
        for number in itertools.count():
            waited.append(number)
            yield 0.0

    monkeypatch.setattr(reports_module, "pauses", counted)

    async def story(agent: Agent, broker: Broker) -> None:
        for action_id in ("a1", "a2"):
            await order(agent, action_id)
            await until(lambda: not agent._running)
        await until(lambda: len(waited) >= 5)
        assert waited == list(range(len(waited)))
        broker.refuses = lambda status: status.get("action_id") == "a2"
        await until(lambda: 0 in waited[1:-2])
        assert broker.ends() == [("a1", 1, "SUCCEEDED")]
        again = waited.index(0, 1)
        assert waited == [*range(again), *range(len(waited) - again)]

    run(story)


def test_pauses_double_up_to_five_minutes_and_differ_by_up_to_a_quarter() -> None:
    nominal = [5.0, 10, 20, 40, 80, 160, 300, 300]
    shares = [wait / plain for _ in range(50) for wait, plain in zip(pauses(), nominal, strict=False)]
    assert all(0.75 <= share <= 1.25 for share in shares)
    assert len(set(shares)) > 1
    assert next(itertools.islice(pauses(), 5_000, None)) <= 375


def test_a_device_starts_although_the_broker_refuses_what_it_says_first() -> None:
    journal = Journal()
    journal.put(Entry("a1", 1, "FAILED", "of an earlier run"))
    journal.put(Entry("a2", 1, "IN_PROGRESS"))

    async def story(agent: Agent, broker: Broker) -> None:
        broker.refuses = lambda status: True
        await agent.announce()
        await agent.catch_up()
        await until(lambda: broker.tries("a2") >= 2)
        assert broker.heard == []
        broker.refuses = lambda status: False
        await until(lambda: len(broker.heard) == 3)
        assert [one["state"] for one in broker.heard if "action_id" not in one] == ["ONLINE"]
        assert broker.ends() == [("a1", 1, "FAILED"), ("a2", 1, "FAILED")]

    run(story, journal)


def test_an_end_that_the_journal_does_not_take_is_stored_and_said_in_the_same_run() -> None:
    journal = FullDisk()

    async def story(agent: Agent, broker: Broker) -> None:
        broker.refuses = lambda status: False
        await order(agent, "a1")
        await until(lambda: journal.tries >= 3)
        await order(agent, "a1", "cancel")  # Too late: it has ended.
        tries = journal.tries
        await until(lambda: journal.tries >= tries + 3)
        assert broker.ends() == []
        journal.is_full = False
        await until(lambda: broker.ends() == [("a1", 1, "SUCCEEDED")])
        await until(lambda: journal.get("a1", 1) == Entry("a1", 1, "SUCCEEDED", result={}, told=True))

    run(story, journal)


def test_the_end_of_an_earlier_run_that_the_journal_does_not_take_is_said_too() -> None:
    journal = FullDisk()
    journal.put(Entry("a1", 1, "IN_PROGRESS"))

    async def story(agent: Agent, broker: Broker) -> None:
        broker.refuses = lambda status: False
        starts = asyncio.ensure_future(agent.catch_up())
        await until(lambda: journal.tries >= 3)
        journal.is_full = False
        await starts
        assert broker.ends() == [("a1", 1, "FAILED")]

    run(story, journal)


def test_another_attempt_takes_over_the_end_that_is_not_stored() -> None:
    class NoEnd(FullDisk):
        def put(self, entry: Entry) -> None:
            # The note that another attempt replaces it has space; the end has not.
            if entry.state == "CANCELLED":
                Journal.put(self, entry)
            else:
                super().put(entry)

    journal, calls = NoEnd(), list[int]()

    async def count(call: Call) -> Any:
        calls.append(call.attempt)

    async def story(agent: Agent, broker: Broker) -> None:
        broker.refuses = lambda status: False
        await order(agent, "a1")
        await until(lambda: journal.tries >= 1)
        await order(agent, "a1", attempt=2)
        journal.is_full = False
        await until(lambda: broker.ends() == [("a1", 2, "SUCCEEDED")])
        assert calls == [1]
        entry = journal.get("a1", 1)
        assert entry is not None
        assert (entry.state, entry.told) == ("CANCELLED", True)

    run(story, journal, handler=count)


def test_an_end_that_is_heard_but_not_noted_is_said_once() -> None:
    class NoNote(Journal):
        tries = 0

        def put(self, entry: Entry) -> None:
            if entry.told:
                self.tries += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            super().put(entry)

    journal = NoNote()

    async def story(agent: Agent, broker: Broker) -> None:
        await order(agent, "a1")
        await until(lambda: broker.tries("a1") >= 2)
        broker.refuses = lambda status: False
        await until(lambda: not agent._reports.tasks)
        assert (broker.ends(), journal.tries) == ([("a1", 1, "SUCCEEDED")], 1)
        entry = journal.get("a1", 1)
        assert entry is not None
        assert replace(entry, told=True) != entry

    run(story, journal)
