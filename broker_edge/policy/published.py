"""The key lists in the log of a broker: one retained record on `artifacts/root` with the whole chain.

A device that was away for a year reads one record and takes the versions that it does not have, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker_edge.errors import RefusedError
from broker_edge.policy.roots import Root, chain_bytes, check_chain, parse_chain
from broker_edge.policy.signed import PolicyError
from broker_edge.values import Row

if TYPE_CHECKING:
    from broker_edge.client import Client

KEYS_TOPIC = "artifacts/root"


def published_roots(client: Client) -> tuple[Root, ...]:
    """The chain that devices of this broker get, oldest first; empty if there is none. Raises HeadwaterError."""
    _, payload = _newest(client)
    return parse_chain(payload) if payload else ()


def publish_roots(client: Client, roots: Sequence[Root], *, replace: bool = False) -> bool:
    """Adds key lists, oldest first, to the chain of the broker. Returns False if they are already there.

    `replace` puts them in place of a chain that is damaged or foreign. Raises PolicyError if they are not signed as
    successors, RefusedError if somebody else published meanwhile.
    """
    offset, payload = _newest(client)
    there = parse_chain(payload) if payload and not replace else ()
    known = {one.version: one for one in there}
    other = next(
        (one.version for one in roots if one.version in known and known[one.version].signed.body != one.signed.body),
        None,
    )
    if other is not None:
        raise PolicyError(
            f"{client.server} has another version {other} of the key list: make the version after {there[-1].version}"
        )
    merged = known | {one.version: one for one in roots}
    chain = [merged[version] for version in sorted(merged)]
    check_chain(chain)
    record = chain_bytes(chain)
    if record == payload:
        return False
    # Of two people who publish at once only one succeeds.
    key = f"root/after/{'none' if offset is None else offset}"
    (at,) = client.produce([Row(KEYS_TOPIC, record, retain=True, idempotency_key=key)])
    if at.duplicate:
        raise RefusedError(f"somebody else has just published a key list on {client.server}: look at it, then repeat")
    return True


def _newest(client: Client) -> tuple[int | None, bytes]:
    """Offset and payload of the newest record."""
    offset, payload = None, b""
    for topic in client.topics(KEYS_TOPIC):
        with client.fetch(topic.partition, topic.first, topic.next, filters=KEYS_TOPIC) as batches:
            for batch in batches:
                for at, value in zip(batch.column("offset"), batch.column("value"), strict=True):
                    offset, payload = at.as_py(), value.as_py()
    return offset, payload
