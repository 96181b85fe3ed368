"""The brokers that `servers` names, and which log each of them holds. Readers address logs; addresses may change.

A log id is learned from its broker once and believed until a call to that broker fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from sources.errors import OptionError, UnavailableError
from sources.flight import LogServer
from sources.options import SourceOptions

_LOGGER = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25


class Servers:
    """Connections of one reader, made on first use."""

    def __init__(self, options: SourceOptions) -> None:
        self._servers = [LogServer(address, token=options.token) for address in options.servers]
        self._log_ids: dict[str, str] = {}

    def all(self) -> dict[str, LogServer]:
        """Log id to broker, of every broker; `UnavailableError` names the first that does not answer."""
        return {self._log_id(server): server for server in self._servers}

    def reachable(self) -> tuple[dict[str, LogServer], list[UnavailableError]]:
        """Log id to broker of those that answer, and why the others do not."""
        found: dict[str, LogServer] = {}
        away = []
        for server in self._servers:
            try:
                found[self._log_id(server)] = server
            except UnavailableError as error:
                away.append(error)
        return found, away

    def forget(self, server: LogServer) -> None:
        """A call failed: whoever answers there next may hold another log."""
        self._log_ids.pop(server.address, None)
        server.close()

    def wait_for(self, log_ids: Iterable[str], *, timeout_seconds: float) -> dict[str, str]:
        """Log id to address, of each log asked for; waits for brokers that are away."""
        wanted = set(log_ids)
        deadline = time.monotonic() + timeout_seconds
        while True:
            found, away = self.reachable()
            missing = sorted(wanted - set(found))
            if not missing:
                return {log_id: found[log_id].address for log_id in wanted}
            if not away:
                raise unknown_log(missing[0], found)
            if time.monotonic() >= deadline:
                raise away[0]
            _LOGGER.warning("waiting for log %s: %s", missing[0], away[0])
            time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def _log_id(self, server: LogServer) -> str:
        known = self._log_ids.get(server.address)
        if known is None:
            known = self._log_ids[server.address] = server.log_id()
        return known


def unknown_log(log_id: str, found: dict[str, LogServer]) -> OptionError:
    """No broker holds a log that the checkpoint or an option names."""
    holds = ", ".join(f"{server.address} holds {other}" for other, server in sorted(found.items()))
    return OptionError(
        f"no server holds log {log_id}, which this query reads ({holds}): name its broker in option servers, "
        "or use a new checkpoint if that log is gone for good"
    )
