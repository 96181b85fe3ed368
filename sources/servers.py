"""The brokers that `servers` names, and the log that each of them holds. Readers identify a log by its id, since
addresses may change.

A log id is asked for once per broker and trusted until a call to that broker fails. A log belongs to one broker
(`broker_edge.log_owners`); another one that says it is left alone. Brokers are asked in parallel, so that a slow one
does not delay the others. A broker that took long to fail is not asked again for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from broker_edge.errors import ConfigError, OptionError, UnavailableError
from broker_edge.log_owners import LogEntry, LogOwners
from sources.broker_errors import left_alone, unusable
from sources.log_server import LogServer
from sources.options import SourceOptions

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25
_THREADS_MAX = 16

# A broker that failed only after this long (it hangs, or its packets are dropped) is asked again after four times the
# duration of that failure, so it takes at most a fifth of a batch's time. One that refuses at once is asked every time.
_SLOW_FAILURE_SECONDS = 1.0
_LEAVE_ALONE_FACTOR = 4


class Servers:
    """Connections of one reader, opened on first use. Not shared between threads."""

    def __init__(
        self, options: SourceOptions, *, fleet: Iterable[LogEntry] | None = None, is_patient: bool = False
    ) -> None:
        """`fleet` are all brokers of the settings, if the options have only some of them. With `is_patient` requests
        wait while a cluster elects its leader, up to `requestTimeoutMs`."""
        self._servers = [
            LogServer(address, access=options.access_of(address), is_patient=is_patient) for address in options.servers
        ]
        try:
            self._owners = LogOwners((server.entry for server in self._servers) if fleet is None else fleet)
        except ConfigError as error:
            raise OptionError(str(error)) from error
        # What the brokers say, by address.
        self._log_ids: dict[str, str] = {}
        self._left_alone: dict[str, tuple[float, UnavailableError]] = {}
        self._threads: ThreadPoolExecutor | None = None

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Within it, requests wait while a cluster elects its leader."""
        before = [server.is_patient for server in self._servers]
        for server in self._servers:
            server.is_patient = True
        try:
            yield
        finally:
            for server, was in zip(self._servers, before, strict=True):
                server.is_patient = was

    @property
    def owners(self) -> Mapping[str, str]:
        """Log id to the entry that it belongs to, as far as it is known here."""
        return self._owners.known

    def all(self, owners: Mapping[str, str] | None = None) -> dict[str, LogServer]:
        """Log id to broker, for every broker; `UnavailableError` names the first one that does not answer, or is left
        alone. Raises OptionError as `reachable` does."""
        self._left_alone.clear()
        found, away = self.reachable(owners)
        if away:
            raise away[0]
        return found

    def reachable(self, owners: Mapping[str, str] | None = None) -> tuple[dict[str, LogServer], list[UnavailableError]]:
        """Log id to broker for those that answer, and the errors of the others. `owners` are those of the checkpoint.
        Raises OptionError if two brokers say one log, and it belongs to neither."""
        self._owners.learn(owners or {})
        unknown = [server for server in self._servers if server.address not in self._log_ids]
        answers = self._side_by_side(unknown, lambda server: server.log_id())
        away = []
        for server, answer in zip(unknown, answers, strict=True):
            if isinstance(answer, UnavailableError):
                away.append(answer)
                continue
            self._log_ids[server.address] = answer
        found, left = {}, []
        said = [(server, self._log_ids[server.address]) for server in self._servers if server.address in self._log_ids]
        try:
            self._owners.require_apart((server.entry, log_id) for server, log_id in said)
        except ConfigError as error:
            raise OptionError(str(error)) from error
        for server, log_id in said:
            refusal = self._owners.claim(server.entry, log_id)
            if refusal is None:
                found[log_id] = server
            else:
                # It is asked again, because its box may have been replaced.
                del self._log_ids[server.address]
                left.append(left_alone(server.address, refusal))
        return found, [*left, *away]

    def ask(
        self, brokers: Mapping[str, LogServer], question: Callable[[str, LogServer], T]
    ) -> tuple[dict[str, T], list[UnavailableError]]:
        """Asks all brokers in parallel. Returns the answers by log id and the errors of the brokers that gave none."""
        by_address = {server.address: log_id for log_id, server in brokers.items()}
        asked = list(brokers.values())
        answers = self._side_by_side(asked, lambda server: question(by_address[server.address], server))
        found: dict[str, T] = {}
        away = []
        for server, answer in zip(asked, answers, strict=True):
            if isinstance(answer, UnavailableError):
                # The broker that answers at this address next may hold another log.
                self._log_ids.pop(server.address, None)
                away.append(answer)
            else:
                found[by_address[server.address]] = answer
        return found, away

    def wait_for(
        self, log_ids: Iterable[str], *, timeout_seconds: float, owners: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Log id to the address for tasks, for each requested log; waits for brokers that cannot be reached. `owners`
        are those of the checkpoint."""
        wanted = set(log_ids)
        deadline = time.monotonic() + timeout_seconds
        while True:
            found, away = self.reachable(owners)
            missing = sorted(wanted - set(found))
            if not missing:
                return {log_id: found[log_id].place for log_id in wanted}
            if not away:
                raise unknown_log(missing[0], found)
            if time.monotonic() >= deadline:
                raise away[0]
            _LOGGER.warning("waiting for log %s: %s", missing[0], away[0])
            time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        for server in self._servers:
            server.close()

    def _side_by_side(self, servers: list[LogServer], call: Callable[[LogServer], T]) -> list[T | UnavailableError]:
        """The answers in the order of the servers. Raises any error other than UnavailableError."""
        if len(servers) < 2:
            return [self._attempt(server, call) for server in servers]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(len(self._servers), _THREADS_MAX), "headwater-source")
        return list(self._threads.map(lambda server: self._attempt(server, call), servers))

    def _attempt(self, server: LogServer, call: Callable[[LogServer], T]) -> T | UnavailableError:
        until, earlier = self._left_alone.get(server.address, (0.0, None))
        began = time.monotonic()
        if earlier is not None and began < until:
            return earlier
        try:
            return call(server)
        except UnavailableError as error:
            server.let_go()
            took = time.monotonic() - began
            if took >= _SLOW_FAILURE_SECONDS and not server.has_other_nodes:
                self._left_alone[server.address] = (time.monotonic() + _LEAVE_ALONE_FACTOR * took, error)
            return error
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise unusable(server.address, f"something is missing or has another type ({error!r:.100})") from error


def unknown_log(log_id: str, found: Mapping[str, LogServer]) -> OptionError:
    """The error for a log that the checkpoint or an option names and no broker holds."""
    holds = ", ".join(f"{server.address} holds {other}" for other, server in sorted(found.items()))
    return OptionError(
        f"no server holds log {log_id}, which this query reads ({holds}): add its broker to option servers, "
        f"or, if that log no longer exists, drop it with retireLogs={log_id}"
    )
