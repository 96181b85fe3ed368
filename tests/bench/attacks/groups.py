"""Consumer groups: those of the other tenant, and oversized bodies."""

from __future__ import annotations

import time

from attacks.arena import APP, Arena, Caller, as_refusals

FAR = 10**18
PARTITIONS = 300_000
GROUPS = 200
VICTIM = "north-lake"


def _commit(arena: Arena, caller: Caller, body: dict[str, object], breach: str | None) -> None:
    arena.tried()
    try:
        caller.act("commit", body)
    except Exception as error:
        as_refusals(arena, error)
        return
    if breach:
        arena.breach(breach)
    else:
        arena.given("group")


def fence(arena: Arena) -> None:
    """Fences and moves the group of the other tenant, and reads it."""
    caller = Caller(arena, APP)
    try:
        for epoch in (1, 2**40, 2**62):
            _commit(arena, caller, {"group": VICTIM, "reader_epoch": epoch}, "fenced the group of another tenant")
            body = {"group": VICTIM, "reader_epoch": epoch, "offsets": {"3": {"committed": 1}}}
            _commit(arena, caller, body, "moved the group of another tenant")
        arena.tried()
        try:
            caller.act("committed", {"group": VICTIM})
            arena.breach("read the group of another tenant")
        except Exception as error:
            as_refusals(arena, error)
        time.sleep(0.2)
    finally:
        caller.close()


def overflow(arena: Arena) -> None:
    """Offsets beyond the log, partitions that do not exist, and many groups."""
    caller = Caller(arena, APP)
    try:
        own = {"group": "south-own", "reader_epoch": 1}
        _commit(arena, caller, {**own, "offsets": {"3": {"committed": FAR}}}, "committed an offset beyond the log")
        _commit(arena, caller, {**own, "initial": {"3": FAR}}, "began beyond the log")
        _commit(arena, caller, {**own, "offsets": {"99": {"committed": 1}}}, "committed an invented partition")
        invented = {str(number): {"committed": 1} for number in range(PARTITIONS)}
        _commit(arena, caller, {**own, "offsets": invented}, "committed 300,000 invented partitions")
        for _ in range(GROUPS):
            group = f"south-{arena.seed}-{arena.number()}"
            _commit(arena, caller, {"group": group, "reader_epoch": 1, "initial": {"3": 0}}, None)
            time.sleep(0.005)
        arena.tried()
        try:
            listing = caller.act("groups", {})
            arena.given("KiB of group listings", sum(map(len, listing)) // 1024)
            if any(VICTIM.encode() in one for one in listing):
                arena.breach("listed a group of another tenant")
        except Exception as error:
            as_refusals(arena, error)
    finally:
        caller.close()
