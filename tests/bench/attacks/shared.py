"""A shared group whose members are offline, and messages for it."""

from __future__ import annotations

import time

from attacks.arena import Arena, Rogue, tell_codes

MEMBERS = 3000
MESSAGES = 2000


def away_members(arena: Arena) -> None:
    """Members that subscribe and disconnect, in persistent sessions; then some hundreds of messages per second to the
    group."""
    user = arena.rogue(6)
    for number in range(MEMBERS):
        arena.tried()
        with Rogue(arena, f"{user}-member-{number}", user, expiry_s=3600, clean=False) as member:
            if member.code:
                arena.refused(f"0x{member.code:02x}")
                if number > 100:
                    break
                continue
            tell_codes(arena, member.subscribe(["$share/crowd/south/shared/#"]), "member")
            member.leave()
        if number % 10 == 9:
            time.sleep(0.02)
    with Rogue(arena, f"{user}-live", user) as live, Rogue(arena, f"{user}-source", user) as source:
        if live.code or source.code:
            arena.refused(f"0x{live.code or source.code:02x}")
            return
        tell_codes(arena, live.subscribe(["$share/crowd/south/shared/#"]), "member")
        for start in range(0, MESSAGES, 100):
            arena.tried(100)
            messages = [(f"south/shared/{start + n}", b"x" * 100) for n in range(100)]
            tell_codes(arena, source.publish_many(messages), "message to the group")
            time.sleep(0.1)
