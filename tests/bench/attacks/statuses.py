"""Hostile statuses from a device on its own topic, which no parser should fail on."""

from __future__ import annotations

from attacks.arena import Arena, Rogue, tell_codes

DIGITS = "9" * 5000
POISON = (
    rb'{"action_id":"a","attempt":1,"state":"SUCCEEDED","result":"\ud800"}',
    rb'{"action_id":"\udfff\ud800","attempt":1,"state":"FAILED","message":"\u0000"}',
    f'{{"action_id":"a","attempt":{DIGITS},"state":"SUCCEEDED"}}'.encode(),
    f'{{"action_id":"a","attempt":1,"state":"ACCEPTED","seq":-{DIGITS},"boot":1e{DIGITS}}}'.encode(),
    f'{{"action_id":"a/{DIGITS}","attempt":1,"state":"ACCEPTED"}}'.encode(),
    f'[{{"id":"a/{DIGITS}","sequence":1,"timestamp":1,"state":"Completed","progress":1,"errors":[]}}]'.encode(),
    b"[" * 20_000,
    b'{"a":' * 5_000,
    b"\xff\xfe\x00",
    b'{"action_id":"a","attempt":NaN,"state":"SUCCEEDED","ts":Infinity}',
)


def poison(arena: Arena) -> None:
    """Sends a hundred of them in a second."""
    user = arena.rogue(0)
    with Rogue(arena, user, user) as device:
        for _ in range(10):
            arena.tried(len(POISON))
            codes = device.publish_many([(f"devices/{user}/status", payload) for payload in POISON])
            tell_codes(arena, codes, "stored")
