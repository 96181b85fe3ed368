"""The nodes of a cluster in memory: Flight servers of one log, of which one serves, or none."""

from __future__ import annotations

from collections.abc import Callable

from support.flight_server import FlightServer, refusal
from support.memory_log import MemoryLog


class Nodes:
    """Three servers of one log; one of them leads, or nobody."""

    def __init__(self) -> None:
        log = MemoryLog()
        self.all = [FlightServer(log).up() for _ in range(3)]
        self.is_named = True
        self.leader: int | None = 0
        for number, server in enumerate(self.all):
            server.before = self._gate(number)

    @property
    def locations(self) -> list[str]:
        return [server.location for server in self.all]

    @property
    def address(self) -> str:
        """All of them in one address."""
        return "grpc://" + "/".join(location.removeprefix("grpc://") for location in self.locations)

    def calls(self, name: str) -> int:
        return sum(server.calls.get(name, 0) for server in self.all)

    def _gate(self, number: int) -> Callable[[str], None]:
        def before(name: str) -> None:
            # As a real node, which says what it is, whoever leads.
            if number != self.leader and name != "version":
                known = self.leader is not None and self.is_named
                leader = self.all[self.leader or 0].location if known else None
                raise refusal("not_leader", "another node leads", leader=leader)

        return before
