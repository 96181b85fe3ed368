"""What one tenant may try against another. Each attack is one bounded turn, which `runner` repeats until it is stopped.

`ATTACKS` lists them by name. An attack takes an `Arena`: the addresses of the broker, credentials of the hostile
tenant, and counts of attempts, refusals and successes. It uses loopback addresses only.
"""

from __future__ import annotations

from collections.abc import Callable

from attacks import browsers, connections, filling, groups, identities, reads, rows, shared, statuses
from attacks.arena import Arena

ATTACKS: dict[str, Callable[[Arena], None]] = {
    "statuses": statuses.poison,
    "client ids": identities.take_over,
    "squatting": identities.squat,
    "forging": identities.forge,
    "operator calls": identities.operate,
    "silent flight": connections.silent_flight,
    "silent admin": connections.silent_admin,
    "silent mqtt": connections.silent_mqtt,
    "http2 streams": connections.bad_password_streams,
    "wrong passwords": connections.wrong_passwords,
    "connections": connections.fill,
    "shared members": shared.away_members,
    "sessions": filling.sessions,
    "shared groups": filling.shared_groups,
    "retained": filling.retained,
    "subscriptions": filling.subscriptions,
    "fencing": groups.fence,
    "group bounds": groups.overflow,
    "idle follows": reads.idle_follows,
    "regexes": reads.regexes,
    "stalled reads": reads.stalled,
    "arrow ipc": rows.malformed,
    "put topics": rows.topics,
    "browsers": browsers.pages,
}
