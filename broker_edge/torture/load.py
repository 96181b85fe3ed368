"""QoS 1 and QoS 2 publishers that remember which of their records were acknowledged, and where.

One thread drives all connections over raw sockets until the broker is gone, a limit is reached, or it is stopped. The
load does not reconnect and reads nothing back: publishers with a session continue in the next load with the same
outboxes, and `broker_edge.torture.check` compares.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from broker_edge.torture import wire
from broker_edge.torture.outbox import Outbox
from broker_edge.torture.publisher import Place, Published, PublishingConnection
from broker_edge.torture.records import Publisher, Recipe, RecordName

__all__ = ["LoadResult", "MqttLoad", "Place", "Published"]

TURN_S = 0.05


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The outcome of one run. `recipe` rebuilds the sent records."""

    run: int
    recipe: Recipe
    connections: tuple[Published, ...]

    @property
    def acked(self) -> int:
        return sum(len(one.acked) + len(one.late) for one in self.connections)

    @property
    def sent(self) -> int:
        return sum(one.sent for one in self.connections)

    @property
    def refused(self) -> int:
        return sum(len(one.refused) for one in self.connections)

    def name(self, connection: Published, sequence: int) -> RecordName:
        return RecordName(self.run, connection.publisher.connection, sequence)


class MqttLoad:
    """Runs the publishers against a broker until it is stopped or their limit is reached.

    `with MqttLoad(...) as load:` connects all of them, publishes from its own thread, and stops at the end.
    """

    def __init__(
        self,
        *,
        address: tuple[str, int],
        run: int,
        recipe: Recipe,
        publishers: Sequence[Publisher],
        window: int = 32,
        records_each: int | None = None,
        want_offsets: bool = True,
        pause_s: float = 0.0,
        outboxes: Mapping[int, Outbox] | None = None,
    ) -> None:
        """`pause_s` after each turn limits the rate: one window per connection in that time. `outboxes`, by connection
        number, belong to publishers that continue from an earlier load."""
        self._address = address
        self._pause_s = pause_s
        self._run = run
        self._recipe = recipe
        self._connections = [
            PublishingConnection(
                run=run,
                recipe=recipe,
                publisher=one,
                window=window,
                want_offsets=want_offsets,
                outbox=(outboxes or {}).get(one.connection),
            )
            for one in publishers
        ]
        for one in self._connections:
            one.limit = records_each
        self._selector = selectors.DefaultSelector()
        self._progress = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._drive, name=f"mqtt-load-{run}", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> MqttLoad:
        for one in self._connections:
            try:
                self._selector.register(one.attach(self._address), selectors.EVENT_READ | selectors.EVENT_WRITE, one)
            except OSError as error:
                one.published.closed_because = f"connect: {error}"
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def acked(self) -> int:
        return sum(len(one.published.acked) + len(one.published.late) for one in self._connections)

    @property
    def refused(self) -> int:
        return sum(len(one.published.refused) for one in self._connections)

    @property
    def closed(self) -> int:
        """Connections that the broker ended."""
        return sum(one.published.closed_because is not None for one in self._connections)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen: every connection is closed or has all its answers."""
        return not self._thread.is_alive()

    def pace(self, pause_s: float) -> None:
        """From now on waits for so long after each turn."""
        self._pause_s = pause_s

    def wait(self, condition: Callable[[MqttLoad], bool], *, seconds: float, what: str) -> None:
        """Returns when `condition` holds; raises TimeoutError with `what` otherwise."""
        deadline = time.monotonic() + seconds
        with self._progress:
            while not condition(self):
                left = deadline - time.monotonic()
                if left <= 0 or (self.over and not condition(self)):
                    raise TimeoutError(f"waited {seconds} s for {what}: {self.summary()}")
                self._progress.wait(min(left, 1.0))

    def stop(self) -> LoadResult:
        """Ends the load and returns the outcome of each record. May be called again."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)
        self._selector.close()
        for one in self._connections:
            if one.socket is not None:
                one.socket.close()
        if self._failure is not None:
            raise self._failure
        return LoadResult(self._run, self._recipe, tuple(one.published for one in self._connections))

    def summary(self) -> str:
        reasons = sorted({one.published.closed_because for one in self._connections if one.published.closed_because})
        sent = sum(one.published.sent for one in self._connections)
        return f"sent {sent}, acked {self.acked}, refused {self.refused}, closed {self.closed} {reasons or ''}"

    def _drive(self) -> None:
        try:
            while not self._stopping.is_set() and self._selector.get_map():
                for key, events in self._selector.select(TURN_S):
                    self._turn(key.data, events)
                with self._progress:
                    self._progress.notify_all()
                if self._pause_s:
                    self._stopping.wait(self._pause_s)
        except BaseException as error:  # Stored for stop(), which runs on the caller's thread.
            self._failure = error
        finally:
            with self._progress:
                self._progress.notify_all()

    def _turn(self, one: PublishingConnection, events: int) -> None:
        assert one.socket is not None
        try:
            if events & selectors.EVENT_READ:
                one.receive()
            one.fill()
            one.send()
            if one.finished:
                one.socket.send(wire.disconnect())
                self._selector.unregister(one.socket)
                return
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.wants_to_write() else 0)
            if self._selector.get_key(one.socket).events != wanted:
                self._selector.modify(one.socket, wanted, one)
        except (OSError, wire.WireError) as error:
            if isinstance(error, wire.WireError):
                one.published.violations.append(str(error))
            one.published.closed_because = str(error)
            self._selector.unregister(one.socket)
