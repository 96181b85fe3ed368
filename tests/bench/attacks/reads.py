"""Reads over Flight that use up read slots, processor time or memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from attacks.arena import APP, Arena, Caller, Rogue, as_refusals

READERS = 32
HOLD_S = 8.0
PATTERN = "a/.*a.{800}c.*"
LONG_TOPICS = 20
LONG_BYTES = 60_000
BULK_MESSAGES = 200
BULK_BYTES = 60_000


def _at_once(arena: Arena, count: int, work: Callable[[int], None]) -> None:
    def one(number: int) -> None:
        arena.tried()
        try:
            work(number)
        except Exception as error:
            as_refusals(arena, error)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _telemetry(caller: Caller) -> int:
    """The number of a partition of telemetry; fixed, as the settings of this benchmark have two of them."""
    return 3


def idle_follows(arena: Arena) -> None:
    """As many follow reads as `flight.max_reads`, with a filter that matches nothing."""
    caller = Caller(arena, APP)

    def follow(_number: int) -> None:
        ticket = {"partition": _telemetry(caller), "filters": ["south/nothing"], "start": 0, "follow": True}
        reader = caller.get(ticket, wait_s=HOLD_S)
        reader.read_chunk()
        arena.given("follow")
        while True:
            reader.read_chunk()

    try:
        _at_once(arena, READERS, follow)
    finally:
        caller.close()


def regexes(arena: Arena) -> None:
    """Expressions that cost a step per state and byte, on topics of 60 KB; the client disconnects after two seconds."""
    user = arena.rogue(0)
    with Rogue(arena, f"{user}-topics", user) as device:
        if not device.code and arena.number() < 3:
            for number in range(LONG_TOPICS):
                arena.tried()
                topic = f"a/{number}/" + "a" * LONG_BYTES
                code = device.publish(topic, b"x")
                arena.given("long topic") if code < 0x80 else arena.refused(f"0x{code:02x}")
    caller = Caller(arena, APP)
    try:
        _at_once(arena, 8, lambda n: _topics(arena, caller, PATTERN.replace("800", str(800 + n))))
    finally:
        caller.close()


def _topics(arena: Arena, caller: Caller, pattern: str) -> None:
    caller.act("topics", {"pattern": pattern}, wait_s=2.0)
    arena.given("listing")


def stalled(arena: Arena) -> None:
    """Reads from the beginning without taking any rows."""
    user = arena.rogue(0)
    with Rogue(arena, f"{user}-bulk", user) as device:
        if not device.code and arena.number() < 10:
            # Slowly: the readers should cause the load, not a burst of writes to the disk.
            for start in range(0, BULK_MESSAGES, 10):
                device.publish_many([(f"south/bulk/{start + n}", b"b" * BULK_BYTES) for n in range(10)])
                time.sleep(0.1)
    callers = [Caller(arena, APP) for _ in range(8)]

    def stall(number: int) -> None:
        for partition in (3, 4):
            ticket = {"partition": partition, "filters": ["south/#"], "start": 0, "follow": True}
            reader = callers[number % len(callers)].get(ticket, wait_s=HOLD_S)
            reader.read_chunk()
            arena.given("stalled read")
        time.sleep(HOLD_S)

    try:
        _at_once(arena, READERS, stall)
    finally:
        for caller in callers:
            caller.close()
