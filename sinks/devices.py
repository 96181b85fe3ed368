"""Publishes records for devices through the brokers' Flight services. Makes no decisions and keeps no state.

Only the driver calls this, after the commit of what it publishes. The idempotency key makes a second call return the
first call's record. A device receives the record over MQTT from its topic `devices/{id}/actions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_edge import BrokerError, Client, Place, RefusedError, Row
from broker_edge.access import BrokerAccess

ROWS_MAX = 1_000
"""Rows per call to the broker: one answer, one sync. Rows stored before a failure are sent again without effect."""
_ASK_S = 10.0
"""Time for the question which log a broker serves."""


class DevicePublisher:
    """Publishes on one broker: its access, or its address (`grpc://host:port`) with the credentials of the environment.
    May be shared by threads."""

    def __init__(self, broker: BrokerAccess | str | None = None, *, timeout_s: float = 30.0) -> None:
        self._name: str | None = None
        self._log_id: str | None = None
        if isinstance(broker, BrokerAccess):
            self._client, self._name = broker.client(timeout_s=timeout_s, retries=0), broker.name
            self._log_id = broker.log_id
        else:
            self._client = Client(broker, timeout_s=timeout_s, retries=0)

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def server(self) -> str:
        return self._client.server

    @property
    def client(self) -> Client:
        return self._client

    def log_id(self) -> str:
        """The log that the broker serves now. Raises the errors of `Client.version`, and BrokerError if the settings
        name another log."""
        said = self._client.version(timeout_s=_ASK_S).log_id
        if self._log_id is not None and said != self._log_id:
            raise BrokerError(
                f"{self.server} says that it holds log {said:.100}, and the settings name {self._log_id}: correct them "
                "if the box was replaced"
            )
        return said

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        """The log positions of the rows, in their order, once they are on disk.

        Raises RefusedError for a row without an idempotency key or for another topic, before anything is sent.
        Otherwise raises the errors of `Client.produce`; then some rows may already be in the log: publish all of them
        again.
        """
        for row in rows:
            if not row.idempotency_key:
                raise RefusedError(f"a record for `{row.topic}` has no idempotency key", field="idempotency_key")
            level = row.topic.split("/")
            if len(level) != 3 or level[0] != "devices" or level[2] != "actions":
                raise RefusedError(f"`{row.topic}` is not a topic devices/<id>/actions", field="topic")
        places: list[Place] = []
        for start in range(0, len(rows), ROWS_MAX):
            places += self._client.produce(rows[start : start + ROWS_MAX])
        if len(places) != len(rows):
            raise BrokerError(f"{self.server} confirmed {len(places)} of {len(rows)} records")
        return places

    def close(self) -> None:
        self._client.close()


class Fleet:
    """One publisher per broker, in the order given."""

    def __init__(self, brokers: Iterable[BrokerAccess | str]) -> None:
        self.publishers = tuple(DevicePublisher(broker) for broker in brokers)

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()
