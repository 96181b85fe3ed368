"""Signed commands: who may command a device, what an unsigned record does, and how engine and agent agree."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.device_line import Line
from support.signing import DAY, FOR_EVER, NOW, Maker, new_keys

from broker_edge import RefusedError
from broker_edge.artifacts import SigningKey
from broker_edge.device import Agent, Journal, KeyFeed
from broker_edge.device.calls import Call, Command
from broker_edge.device.guard import CommandRefused
from broker_edge.policy import chain_bytes, sign_command


@pytest.fixture
def maker() -> Maker:
    return Maker()


def record(type_: str = "command", *, attempt: int = 1, device_id: str = "d1", **fields: Any) -> bytes:
    body = {"action_id": "a1", "device_id": device_id, "attempt": attempt, "type": type_, "name": "echo", **fields}
    return json.dumps(body).encode()


def signed(maker: Maker, payload: bytes, *, key: SigningKey | None = None, expires_us: int = FOR_EVER) -> bytes:
    return sign_command(payload, key or maker.director, expires_us=expires_us)


def test_a_command_of_the_director_counts(maker: Maker) -> None:
    assert maker.guard().command(signed(maker, record()), "d1") == record()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda m: record(), "this command is not signed: set actions.signing_key"),
        (lambda m: signed(m, record(), key=m.targets[0]), "which is no director"),
        (lambda m: signed(m, record(), expires_us=NOW), "this command expired on 2024-10-04 00:00; it is 2024-10-04"),
        (lambda m: signed(m, record(device_id="d2")), "this command is for the device d2, not for d1"),
        (lambda m: signed(m, record()).replace(b"echo", b"wipe"), "this command has 0 of the 1 valid signatures"),
        (lambda m: signed(m, record()).replace(b"%d" % FOR_EVER, b"%d" % (FOR_EVER + 1)), "has 0 of the 1 valid"),
    ],
)
def test_a_command_that_does_not_count_is_refused_in_a_sentence(
    maker: Maker, make: Callable[[Maker], bytes], said: str
) -> None:
    with pytest.raises(CommandRefused, match=said):
        maker.guard().command(make(maker), "d1")


def test_without_a_director_every_command_counts(maker: Maker) -> None:
    maker.root = maker.next_root(director=[], version=1)
    assert maker.guard().command(record(), "d1") == record()
    assert maker.guard().command(signed(maker, record()), "d1") == record()


def test_an_agent_of_an_older_version_reads_a_signed_command(maker: Maker) -> None:
    assert Command.parse(signed(maker, record())) == Command.parse(record())


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b'"a"', b"no json"])
def test_only_an_object_with_fields_is_signed(maker: Maker, payload: bytes) -> None:
    with pytest.raises(RefusedError, match="only an unsigned JSON object"):
        signed(maker, payload)
    with pytest.raises(RefusedError, match="only an unsigned JSON object"):
        signed(maker, signed(maker, record()))


# -- the agent ---------------------------------------------------------------------------------------------------------


class Device:
    """An agent with a guard on a link that keeps what the device reports, and shows the key lists of `chain`."""

    def __init__(self, maker: Maker, chain: bytes | None = None, **fields: Any) -> None:
        self.done: list[int] = []
        self.line = Line(chain)
        self.keys = KeyFeed(maker.guard(), self.line, **{"answer_s": 0.05, **fields})  # type: ignore[arg-type]
        self.journal = Journal()

        async def echo(call: Call) -> Any:
            self.done.append(call.attempt)
            return {}

        self.agent = Agent("d1", handlers={"echo": echo}, keys=self.keys, journal=self.journal)
        self.agent.attach(self.line)  # type: ignore[arg-type]

    async def take(self, payload: bytes) -> None:
        await self.agent.received(self.agent.topic, payload)


def test_a_forged_command_is_answered_and_does_not_take_the_place_of_the_real_one(maker: Maker) -> None:
    async def scenario() -> None:
        device = Device(maker)
        await device.take(record(name="wipe"))
        await device.line.until("REJECTED")
        assert "not signed" in device.line.said[-1]["message"]
        assert (device.done, device.journal.get("a1", 1)) == ([], None)
        await device.take(signed(maker, record()))
        await device.line.until("SUCCEEDED")
        assert device.done == [1]
        said = len(device.line.said)
        await device.take(record())  # It has that command: an answer would end it in the tables.
        await device.agent.close()
        assert len(device.line.said) == said

    asyncio.run(scenario())


@pytest.mark.parametrize("type_", ["cancel", "force"])
def test_a_forged_cancel_or_force_does_nothing_and_gets_no_answer(maker: Maker, type_: str) -> None:
    async def scenario() -> None:
        device = Device(maker)
        await device.take(record(type_))
        assert device.journal.get("a1", 1) is None
        # Control: the real one is taken, and its answer would be behind that of the forged one.
        await device.take(signed(maker, record("cancel")))
        await device.line.until("CANCELLED")
        await device.agent.close()
        assert [one["state"] for one in device.line.said] == ["CANCELLED"]

    asyncio.run(scenario())


def test_a_command_of_a_new_director_waits_for_the_key_list_that_names_it(maker: Maker) -> None:
    """The key was rotated while the device was away, and the command arrives before the key list."""

    async def scenario() -> None:
        (new,) = new_keys(1)
        device = Device(maker, chain_bytes([maker.root, maker.next_root(director=[new])]))
        await device.take(signed(maker, record(), key=new))
        await device.line.until("SUCCEEDED")
        assert device.done == [1]
        await device.take(signed(maker, record(attempt=2)))
        await device.line.until("REJECTED")
        assert "which is no director" in device.line.said[-1]["message"]
        await device.agent.close()

    asyncio.run(scenario())


def test_a_command_of_a_revoked_director_waits_for_the_key_list_that_revokes_it(maker: Maker) -> None:
    """It lies in the session of a device that was away, and arrives before the key list."""

    async def scenario() -> None:
        device = Device(maker, chain_bytes([maker.root, maker.next_root(director=new_keys(1))]))
        await device.take(signed(maker, record()))
        await device.line.until("REJECTED")
        assert device.done == []
        assert "which is no director" in device.line.said[-1]["message"]
        await device.agent.close()

    asyncio.run(scenario())


def test_a_key_list_that_the_disk_does_not_take_counts_all_the_same(
    maker: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A device with a full disk must not carry out what a revoked director signs."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        device = Device(maker, chain_bytes([maker.root, maker.next_root(director=new_keys(1))]))
        monkeypatch.setattr("broker_edge.device.guard.MemoryHeld.save", full)
        await device.take(signed(maker, record()))
        await device.line.until("REJECTED")
        assert (device.done, device.line.asked) == ([], 1)
        await device.agent.close()

    asyncio.run(scenario())
    assert "is not stored (No space left on device): after a restart the device asks for it again" in caplog.text


def test_records_are_handled_in_order_while_one_waits_for_a_key_list(maker: Maker) -> None:
    async def scenario() -> None:
        device = Device(maker)
        handled: list[int] = []

        async def take(attempt: int, key: SigningKey) -> None:
            await device.take(signed(maker, record(attempt=attempt), key=key))
            handled.append(attempt)

        await asyncio.gather(take(1, maker.targets[0]), take(2, maker.director))
        await device.line.until("SUCCEEDED")
        assert handled == [1, 2]
        await device.agent.close()

    asyncio.run(scenario())


def test_unknown_keys_make_a_device_ask_once_in_a_while(maker: Maker) -> None:
    async def scenario() -> None:
        device = Device(maker)
        for attempt in range(1, 20):
            await device.take(signed(maker, record(attempt=attempt), key=maker.targets[0]))
        assert (device.line.asked, device.line.qos) == (1, {0})
        await device.agent.close()

    asyncio.run(scenario())


def test_a_key_list_arrives_while_the_device_runs(maker: Maker) -> None:
    async def scenario() -> None:
        device = Device(maker)
        await device.agent.catch_up()
        await device.keys.settled()
        device.line.show(chain_bytes([maker.next_root(director=new_keys(1))]))
        await device.take(signed(maker, record()))
        await device.line.until("REJECTED")
        await device.agent.close()

    asyncio.run(scenario())


def test_an_expired_key_list_refuses_commands_until_there_is_a_newer_one(maker: Maker) -> None:
    async def scenario() -> None:
        maker.root = maker.next_root(version=1, expires_us=NOW + DAY)
        maker.now_us = NOW + 2 * DAY
        device = Device(maker, ask_every_s=0.0)
        await device.take(signed(maker, record()))
        await device.line.until("REJECTED")
        assert "version 1 of the key list expired" in device.line.said[-1]["message"]
        device.line.chain = chain_bytes([maker.next_root()])
        await device.take(signed(maker, record()))
        await device.line.until("SUCCEEDED")
        await device.agent.close()

    asyncio.run(scenario())
