"""Publishes records for devices through a broker's Flight service. Makes no decisions and keeps no state.

Only the driver calls this, after the commit of what it publishes. The idempotency key makes a second call return the
first call's record. A device receives the record over MQTT from its topic `devices/{id}/actions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_edge import BrokerError, Client, Place, RefusedError, Row
from broker_edge.access import BrokerAccess

ROWS_MAX = 1_000
"""Rows per call to the broker: one answer, one sync. Rows stored before a failure are sent again without effect."""


class DevicePublisher:
    """Publishes on the broker `server`; an address alone (`grpc://host:port`) is reached as the environment says. May
    be shared by threads."""

    def __init__(self, server: BrokerAccess | str | None = None, *, timeout_s: float = 30.0) -> None:
        if isinstance(server, BrokerAccess):
            self._client = server.client(timeout_s=timeout_s)
        else:
            self._client = Client(server, timeout_s=timeout_s)

    @property
    def server(self) -> str:
        return self._client.server

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
