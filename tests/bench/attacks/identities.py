"""Impersonation: client ids of the other tenant, its topics, and calls that only an operator may make."""

from __future__ import annotations

import time

from attacks.arena import PUBLISH, Arena, Caller, Rogue, as_refusals, request, tell_codes

VICTIMS = 20
"""Connected devices of the other tenant."""
AWAY = 5
"""Offline devices of the other tenant with commands in persistent sessions: those after the connected ones."""
DEVICES = 500
EVERY_S = 0.05


def take_over(arena: Arena) -> None:
    """Connects with client ids of the other tenant, with and without a clean start, and reads what arrives."""
    for number in [*range(VICTIMS), *range(DEVICES, DEVICES + AWAY)]:
        arena.tried()
        user = arena.rogue(1)
        with Rogue(arena, f"north-{number:04}", user, clean=False, expiry_s=600) as thief:
            if thief.code:
                arena.refused(f"0x{thief.code:02x}")
            else:
                arena.breach("client id of a session of another tenant")
                _read_commands(arena, thief)
        time.sleep(EVERY_S)


def _read_commands(arena: Arena, thief: Rogue) -> None:
    thief.link.settimeout(0.2)
    try:
        for first, body in thief.read():
            if first >> 4 == PUBLISH:
                at = 2 + int.from_bytes(body[:2], "big")
                thief.link.sendall(b"\x40\x02" + body[at : at + 2])
                arena.breach("message of another tenant")
    except TimeoutError:
        pass


def squat(arena: Arena) -> None:
    """Takes client ids that devices of the other tenant will use later."""
    user = arena.rogue(2)
    for number in range(DEVICES + AWAY, DEVICES + 2 * AWAY):
        arena.tried()
        with Rogue(arena, f"north-{number:04}", user, expiry_s=3600) as squatter:
            if squatter.code:
                arena.refused(f"0x{squatter.code:02x}")
                continue
            arena.given("a free client id")
            if squatter.publish(f"devices/north-{number:04}/status", b"{}") < 0x80:
                arena.breach("status of a device of another tenant")
        time.sleep(EVERY_S)


def forge(arena: Arena) -> None:
    """Publishes commands, telemetry and statuses in the name of others, and subscribes to their topics."""
    user = arena.rogue(3)
    for client_id in (user, f"north-ghost-{arena.number()}", "pipelines"):
        arena.tried()
        with Rogue(arena, client_id, user) as device:
            if device.code:
                arena.refused(f"0x{device.code:02x}")
                continue
            ghost = client_id if client_id.startswith("north") else "north-0001"
            for topic in (f"devices/{ghost}/actions", f"devices/{ghost}/telemetry/north", f"devices/{ghost}/status"):
                arena.tried()
                code = device.publish(topic, b"forged")
                if code < 0x80:
                    arena.breach(f"publish to {topic.rpartition('/')[2]} of another tenant")
                else:
                    arena.refused(f"0x{code:02x}")
            arena.tried(3)
            codes = device.subscribe(["north/#", "$receipts", "$state/#"])
            if any(code < 0x80 for code in codes):
                arena.breach("subscription to topics of another tenant")
            tell_codes(arena, codes, "subscription")


def operate(arena: Arena) -> None:
    """Calls for operators, made with the password of a device."""
    user = arena.rogue(4)
    headers = {"Authorization": arena.basic(user), "Content-Type": "application/json"}
    for method, path, body in (
        ("PUT", "/api/v1/drain", b""),
        ("DELETE", "/api/v1/drain", b""),
        ("POST", "/api/v1/reload", b""),
        ("PUT", "/api/v1/log-level", b'{"level": "trace"}'),
        ("DELETE", "/api/v1/clients/north-0001?session=true", b""),
        ("GET", "/api/v1/clients?limit=1000", b""),
        ("GET", "/api/v1/refusals", b""),
    ):
        arena.tried()
        status, _ = request(arena, method, path, headers=headers, body=body)
        if status < 300:
            arena.breach(f"{method} {path.partition('?')[0]}")
        else:
            arena.refused(f"http {status}")
    caller = Caller(arena, user)
    try:
        for action, body in (("remove_group", {"group": "north-lake"}), ("backup", {"name": "mine"})):
            arena.tried()
            try:
                caller.act(action, body)
                arena.breach(action)
            except Exception as error:
                as_refusals(arena, error)
    finally:
        caller.close()
