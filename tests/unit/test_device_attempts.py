"""Only the newest attempt of an action counts: what is under way goes on as that attempt, and nothing is done twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.device_line import Line

from broker_edge.artifacts import Trust
from broker_edge.device import Agent, FileFlash, Firmware, Journal, UpdatePolicy, Updater
from broker_edge.device.calls import Call, Order
from broker_edge.device.flash import Job
from broker_edge.device.journal import Entry


class Device:
    """Its command `work` counts how often it begins, and ends when `end` is set; `broken` then makes it fail."""

    def __init__(self, journal: Journal | None = None, updater: Updater | None = None) -> None:
        self.line, self.journal = Line(), journal or Journal()
        self.begun: list[int] = []
        self.end, self.broken = asyncio.Event(), False
        self.agent = Agent("d1", handlers={"work": self.work}, journal=self.journal, updater=updater)
        self.agent.attach(self.line)  # type: ignore[arg-type]

    async def work(self, call: Call) -> Any:
        self.begun.append(call.attempt)
        await self.end.wait()
        if self.broken:
            raise OSError("no such valve")
        return {"ok": True}

    async def take(self, attempt: int, type_: str = "command", **fields: Any) -> None:
        body = {"action_id": "a1", "attempt": attempt, "type": type_, "name": "work", "params": {}, **fields}
        await self.agent.received(self.agent.topic, json.dumps(body).encode())

    def states(self, attempt: int) -> list[str]:
        return [one["state"] for one in self.line.said if one["attempt"] == attempt]

    async def until(self, attempt: int, state: str) -> None:
        async with asyncio.timeout(30):
            while state not in self.states(attempt):
                await asyncio.sleep(0)


def run(scenario: Callable[[Device], Awaitable[None]]) -> None:
    async def whole() -> None:
        device = Device()
        await scenario(device)
        await device.agent.close()

    asyncio.run(whole())


def test_a_running_command_goes_on_as_the_new_attempt() -> None:
    async def scenario(device: Device) -> None:
        await device.take(1)
        await device.until(1, "IN_PROGRESS")
        await device.take(2)
        await device.take(3)
        device.end.set()
        await device.until(3, "SUCCEEDED")
        assert device.begun == [1]
        assert device.states(3)[-1] == "SUCCEEDED"
        assert "SUCCEEDED" not in device.states(1) + device.states(2)
        assert [one.get("result") for one in device.line.said if one["state"] == "SUCCEEDED"] == [{"ok": True}]

    run(scenario)


def test_an_attempt_that_succeeded_answers_the_next_one() -> None:
    """The engine did not hear of it in time. The device was away and gets three attempts: it reboots once."""

    async def scenario(device: Device) -> None:
        device.end.set()
        await device.take(1)
        await device.until(1, "SUCCEEDED")
        for attempt in (2, 3):
            await device.take(attempt)
            await device.until(attempt, "SUCCEEDED")
        assert device.begun == [1]

    run(scenario)


def test_an_attempt_that_failed_or_was_cancelled_is_followed_by_another() -> None:
    async def scenario(device: Device) -> None:
        device.broken = True
        device.end.set()
        await device.take(1)
        await device.until(1, "FAILED")
        device.end.clear()
        device.broken = False
        await device.take(2)
        await device.until(2, "IN_PROGRESS")
        await device.take(2, "cancel")
        await device.until(2, "CANCELLED")
        device.end.set()
        await device.take(3)
        await device.until(3, "SUCCEEDED")
        assert device.begun == [1, 2, 3]

    run(scenario)


def test_attempts_that_arrive_together_are_one_execution() -> None:
    async def scenario(device: Device) -> None:
        device.end.set()
        for attempt in (1, 2, 3):
            await device.take(attempt)
        await device.until(3, "SUCCEEDED")
        assert (device.begun, device.states(1), device.states(2)) == ([3], [], [])

    run(scenario)


def test_an_older_attempt_that_arrives_later_is_not_carried_out() -> None:
    """A device that has moved gets the newer attempt first, from another log."""

    async def scenario(device: Device) -> None:
        device.end.set()
        await device.take(2)
        await device.until(2, "SUCCEEDED")
        await device.take(1)
        await device.take(3, "cancel")  # Control: a record behind it is handled.
        await device.until(3, "CANCELLED")
        assert (device.begun, device.states(1)) == ([2], [])

    run(scenario)


def test_a_cancel_of_an_older_attempt_does_not_stop_the_newer_one() -> None:
    async def scenario(device: Device) -> None:
        await device.take(1)
        await device.until(1, "IN_PROGRESS")
        await device.take(2)
        await device.take(1, "cancel")
        await device.until(1, "CANCELLED")
        device.end.set()
        await device.until(2, "SUCCEEDED")

    run(scenario)


def test_other_work_under_the_same_action_is_not_taken_for_an_attempt_of_it() -> None:
    async def scenario(device: Device) -> None:
        await device.take(1)
        await device.until(1, "IN_PROGRESS")
        await device.take(2, params={"other": True})
        await device.until(2, "IN_PROGRESS")
        device.end.set()
        await device.until(2, "SUCCEEDED")
        assert device.begun == [1, 2]

    run(scenario)


def test_a_command_that_succeeded_is_not_repeated_by_an_attempt_behind_a_cancelled_one() -> None:
    async def scenario(device: Device) -> None:
        device.end.set()
        await device.take(1)
        await device.until(1, "SUCCEEDED")
        await device.take(2, "cancel")
        await device.take(3)
        await device.until(3, "SUCCEEDED")
        assert device.begun == [1]

    run(scenario)


# -- updates whose device restarted ------------------------------------------------------------------------------------


def pending(folder: Path, attempt: int) -> Updater:
    """A device that restarted in the middle of an update."""
    flash = FileFlash(folder, firmware=Firmware("pump", "1.0"))
    if flash.job() is None:
        flash.set_job(Job("a1", attempt, "forced", "pump", "2.0", None, "confirm", manifest="{}"))
    return Updater(flash, None, policy=UpdatePolicy(Trust(())))  # type: ignore[arg-type]


ORDER = {"artifact": {"name": "pump", "version": "2.0"}, "target_version": "2.0", "mode": "forced"}


def test_a_new_attempt_that_arrives_before_the_device_has_caught_up_takes_over_the_update(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "journal.json")
        journal.put(Entry("a1", 1, "IN_PROGRESS"))
        updater = pending(tmp_path, 1)
        device = Device(journal, updater)
        await device.take(2, "ota", **ORDER)
        order = updater.pending()
        assert order is not None
        assert order.key == ("a1", 2)
        await device.agent.catch_up()
        await device.agent.close()
        assert "another update in progress" not in json.dumps(device.line.said)
        assert device.states(1) == []

    asyncio.run(scenario())


def test_an_attempt_behind_a_cancelled_one_takes_over_the_update_that_goes_on(tmp_path: Path) -> None:
    """The cancel of attempt 2 came first, from another broker, and attempt 1 can no longer be cancelled."""

    async def scenario() -> None:
        journal = Journal(tmp_path / "journal.json")
        journal.put(Entry("a1", 1, "IN_PROGRESS"))
        updater = pending(tmp_path, 1)
        device = Device(journal, updater)
        await device.take(2, "cancel")
        await device.take(3, "ota", **ORDER)
        order = updater.pending()
        assert order is not None
        assert order.key == ("a1", 3)
        await device.agent.catch_up()
        await device.agent.close()
        assert device.states(3) == []

    asyncio.run(scenario())


def test_the_version_of_an_image_on_trial_is_not_reported(tmp_path: Path) -> None:
    """It may be rolled back, and the engine would have taken its version for a success."""
    flash = FileFlash(tmp_path, firmware=Firmware("pump", "1.0"))
    updater = Updater(flash, None, policy=UpdatePolicy(Trust(())))  # type: ignore[arg-type]
    flash.set_boot(replace(flash.boot(), trial=Firmware("pump", "2.0")))
    assert updater.version == "1.0"
    flash.set_boot(flash.boot().confirmed())
    assert updater.version == "2.0"


def test_a_power_cut_while_an_attempt_takes_over_leaves_one_of_both(tmp_path: Path) -> None:
    """The journal has the new attempt, and the update still names the old one."""

    async def scenario() -> None:
        journal = Journal(tmp_path / "journal.json")
        journal.put(Entry("a1", 1, "IN_PROGRESS"))
        journal.put(Entry("a1", 2, "IN_PROGRESS"))
        updater = pending(tmp_path, 1)
        device = Device(journal, updater)
        await device.agent.catch_up()
        order = updater.pending()
        assert order is not None
        assert (order.key, device.line.said) == (("a1", 2), [])
        await device.agent.close()
        assert Journal(tmp_path / "journal.json").get("a1", 1) == Entry(
            "a1", 1, "CANCELLED", "replaced by attempt 2", told=True
        )

    asyncio.run(scenario())


def test_another_artifact_is_no_attempt_of_the_same_update() -> None:
    def order(**fields: Any) -> Order:
        given = {"action_id": "a1", "attempt": 1, "mode": "forced", "name": "pump", "version": "2.0", "sha256": "aa"}
        return Order(**{**given, "target_version": "2.0", **fields})

    assert order().is_same(order(attempt=2))
    assert order().is_same(order(sha256=None))
    assert not order().is_same(order(sha256="bb"))
    assert not order().is_same(order(version="3.0"))
    assert not order().is_same(order(action_id="a2"))
