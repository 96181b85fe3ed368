"""Fills what all tenants share: sessions, shared groups, retained messages, subscriptions."""

from __future__ import annotations

import time

from attacks.arena import Arena, Rogue, tell_codes

TURN = 500
PAUSE_S = 0.01


def sessions(arena: Arena) -> None:
    """Persistent sessions under new client ids."""
    user = arena.rogue(7)
    for _ in range(TURN):
        arena.tried()
        with Rogue(arena, f"{user}-{arena.seed}-{arena.number()}", user, expiry_s=3600) as session:
            if session.code:
                arena.refused(f"0x{session.code:02x}")
                time.sleep(PAUSE_S)
            else:
                arena.given("session")
                session.leave()


def shared_groups(arena: Arena) -> None:
    """Many groups from each of some connections."""
    user = arena.rogue(8)
    for turn in range(5):
        with Rogue(arena, f"{user}-groups-{turn}", user, expiry_s=600) as session:
            if session.code:
                arena.refused(f"0x{session.code:02x}")
                continue
            filters = [f"$share/g{turn}-{n}/south/groups" for n in range(TURN)]
            for start in range(0, TURN, 50):
                arena.tried(50)
                tell_codes(arena, session.subscribe(filters[start : start + 50]), "shared group")
                time.sleep(PAUSE_S)


def retained(arena: Arena) -> None:
    """Retained messages on new topics, and large ones."""
    user = arena.rogue(9)
    with Rogue(arena, user, user) as session:
        for size in (10, 10, 10, 10, 20_000):
            arena.tried(100)
            messages = [(f"south/retained/{arena.seed}/{arena.number()}", b"r" * size) for _ in range(100)]
            tell_codes(arena, session.publish_many(messages, retain=True), "retained message")
            time.sleep(0.1)


def subscriptions(arena: Arena) -> None:
    """As many filters as sessions take, with wildcards in many places."""
    user = arena.rogue(8)
    for turn in range(10):
        with Rogue(arena, f"{user}-filters-{turn}", user, expiry_s=600) as session:
            if session.code:
                arena.refused(f"0x{session.code:02x}")
                continue
            for start in range(0, 1000, 100):
                arena.tried(100)
                filters = [f"south/+/{turn}/{start + n}/+/x/#" for n in range(100)]
                tell_codes(arena, session.subscribe(filters), "subscription")
                time.sleep(PAUSE_S)
