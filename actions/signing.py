"""Signs commands with the key of the director, as they are published.

The engine decides about unsigned records and stays a pure function of rows and time. Two publishes of one record may
differ in the expiry of their signature; the first one counts in a log, and each is valid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from actions.outbound import Publisher
from broker_edge import Place, Row
from broker_edge.artifacts import SigningKey
from broker_edge.credentials import resolve_bytes
from broker_edge.policy import sign_command
from sinks.rows import now_us

log = logging.getLogger(__name__)

_SECOND_US = 1_000_000


class SignedPublisher:
    """A publisher whose records are signed, and expire `valid_s` seconds after they were published."""

    def __init__(
        self, publisher: Publisher, key: SigningKey, *, valid_s: int, clock_us: Callable[[], int] = now_us
    ) -> None:
        self._publisher, self._key = publisher, key
        self._valid_s, self._clock_us = valid_s, clock_us

    @property
    def name(self) -> str | None:
        return self._publisher.name

    def log_id(self) -> str:
        return self._publisher.log_id()

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        expires_us = self._clock_us() + self._valid_s * _SECOND_US
        return self._publisher.publish(
            [replace(row, value=sign_command(row.value, self._key, expires_us=expires_us)) for row in rows]
        )


def signing(publishers: Sequence[Publisher], reference: str | None, *, valid_s: int) -> Sequence[Publisher]:
    """The publishers, which sign what they publish if there is a reference such as `file:director.key`.

    Raises ConfigError, which never repeats the key.
    """
    if reference is None:
        return publishers
    what = "actions.signing_key"
    key = SigningKey.of_pem(resolve_bytes(reference, what=what), where=f"{what}: {reference}")
    log.info("commands are signed with key %s", key.key_id)
    return [SignedPublisher(one, key, valid_s=valid_s) for one in publishers]
