"""What a tick has to know about all targets of an action, kept beside them, so that it looks only at what changes.

An index is derived: it says nothing that a scan of the targets would not. It belongs to one mapping of targets, which
is never modified. `apply` makes a new mapping from an old one and some updates, and moves the index along. Whoever asks
for the index of another mapping (an older state, targets that a test has replaced) gets one that is built by a scan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple, TypeVar

from .model import SECOND_US, TERMINAL, EngineState, Target, TargetState
from .queue import Queue

T = TypeVar("T")

SPAN_BITS = 24
"""Targets that may time out are held by spans of 2**24 µs, about 17 s, of the time since which they wait."""


class Kind(NamedTuple):
    """What counts of a target. Targets of one kind differ in nothing that is ever summed."""

    state: TargetState
    wave: int
    owes: str | None
    erred: bool

    @property
    def is_open(self) -> bool:
        return self.state not in TERMINAL

    @property
    def unsent(self) -> bool:
        return self.state is TargetState.PENDING and self.owes is None

    @property
    def in_flight(self) -> bool:
        return self.is_open and not self.unsent


_kind = attrgetter("state", "wave", "outbox", "erred")


def kinds_of(targets: Iterable[Target]) -> Counter[Kind]:
    """The number of targets of each kind."""
    return Counter({Kind(*kind): count for kind, count in Counter(map(_kind, targets)).items()})


Grouped = Mapping[tuple[TargetState, int], Collection[str]]
"""Ids of targets by their state and the moment since which they are in it: many change in one tick, to the same."""


class Spans:
    """Ids of targets by (state, span of the moment since which they are in it)."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: dict[TargetState, dict[int, set[str]]] = {}

    def add(self, found: Grouped) -> None:
        for (state, moment_us), ids in found.items():
            self._spans.setdefault(state, {}).setdefault(moment_us >> SPAN_BITS, set()).update(ids)

    def discard(self, found: Grouped) -> None:
        for (state, moment_us), gone in found.items():
            spans, span = self._spans[state], moment_us >> SPAN_BITS
            spans[span].difference_update(gone)
            if not spans[span]:
                del spans[span]

    def until(self, state: TargetState, moment_us: int) -> Iterator[str]:
        """The ids of this state of which the moment may be at or before this one."""
        last = moment_us >> SPAN_BITS
        for span, ids in self._spans.get(state, {}).items():
            if span <= last:
                yield from ids

    def first(self, state: TargetState) -> Collection[str]:
        """The ids of the earliest span of this state."""
        spans = self._spans.get(state)
        return spans[min(spans)] if spans else ()

    def ids(self) -> Iterator[str]:
        for spans in self._spans.values():
            for ids in spans.values():
                yield from ids

    def states(self) -> Collection[TargetState]:
        return self._spans.keys()

    def content(self) -> dict[tuple[TargetState, int], frozenset[str]]:
        return {(state, span): frozenset(ids) for state, spans in self._spans.items() for span, ids in spans.items()}


class Index:
    """The index of `of`. Sets hold device ids."""

    __slots__ = ("_queue", "again", "begun", "claimed", "kinds", "of", "owing", "removed", "sent", "since")

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self.of = targets
        self.kinds: Counter[Kind] = Counter()
        self.owing: set[str] = set()
        """Something is owed to them."""
        self.claimed: set[str] = set()
        """Open, and they have reported a success that must still be proven."""
        self.again: set[str] = set()
        """Unsent, after an earlier attempt: those that may have to wait for a time."""
        self.removed: set[str] = set()
        self.sent: Counter[int] = Counter()
        """By second: targets whose command became owed, or reached the log, then."""
        self.since = Spans()
        """Those in flight, by state and time of their last news."""
        self.begun = Spans()
        """Those of them that are in progress, by the time at which they began."""
        self._queue: Queue | None = None
        self._add(targets.values())

    def unsent(self) -> Queue:
        """The unsent targets. Made when they are first asked for: an action may begin with all that it has."""
        if self._queue is None:
            self._queue = Queue((target.wave, target.device_id) for target in self.of.values() if target.unsent)
        return self._queue

    def note_facts(self, before: object, device_ids: Collection[str], after: object) -> None:
        """The facts `before` became `after` by what these devices report."""
        if self._queue is not None and self._queue.seen and self._queue.seen[0] is before:
            self._queue.wake(device_ids)
            self._queue.seen = (after, *self._queue.seen[1:])

    def move(self, updates: Mapping[str, Target], targets: Mapping[str, Target]) -> None:
        """The index now belongs to `targets`, which is the mapping so far with these updates."""
        before = self.of
        self._drop([old for id_ in updates if (old := before.get(id_)) is not None])
        self._add(updates.values())
        self.of = targets

    def kinds_with(self, updates: Mapping[str, Target]) -> Mapping[Kind, int]:
        """The counts of the targets with these updates."""
        before = self.of
        found = self.kinds + kinds_of(updates.values())
        found.subtract(kinds_of(old for id_ in updates if (old := before.get(id_)) is not None))
        return +found

    def sent_with(self, updates: Mapping[str, Target]) -> Mapping[int, int]:
        found, before = self.sent + _sent(updates.values()), self.of
        found.subtract(_sent(old for id_ in updates if (old := before.get(id_)) is not None))
        return +found

    def _add(self, targets: Collection[Target]) -> None:
        self.kinds.update(kinds_of(targets))
        self.sent.update(_sent(targets))
        since, begun = _groups(), _groups()
        for target in targets:
            state, device_id = target.state, target.device_id
            if state in TERMINAL:
                if state is TargetState.REMOVED:
                    self.removed.add(device_id)
                continue
            if target.outbox is not None:
                self.owing.add(device_id)
            elif state is TargetState.PENDING:
                if self._queue is not None:
                    self._queue.add(target.wave, device_id)
                if target.attempt > 1 or target.retry_us is not None:
                    self.again.add(device_id)
                continue
            since[state, target.since_us].append(device_id)
            if target.claimed:
                self.claimed.add(device_id)
            if state is TargetState.IN_PROGRESS and target.begun_us is not None:
                begun[state, target.begun_us].append(device_id)
        self.since.add(since)
        self.begun.add(begun)

    def _drop(self, targets: Collection[Target]) -> None:
        _take_out(self.kinds, kinds_of(targets))
        _take_out(self.sent, _sent(targets))
        since, begun = _groups(), _groups()
        for target in targets:
            state, device_id = target.state, target.device_id
            if state in TERMINAL:
                self.removed.discard(device_id)
                continue
            if target.outbox is not None:
                self.owing.remove(device_id)
            elif state is TargetState.PENDING:
                if self._queue is not None:
                    self._queue.discard(target.wave, device_id)
                self.again.discard(device_id)
                continue
            since[state, target.since_us].append(device_id)
            self.claimed.discard(device_id)
            if state is TargetState.IN_PROGRESS and target.begun_us is not None:
                begun[state, target.begun_us].append(device_id)
        self.since.discard(since)
        self.begun.discard(begun)


def _sent(targets: Iterable[Target]) -> Counter[int]:
    return Counter([target.sent_us // SECOND_US for target in targets if target.sent_us is not None])


def _take_out(counts: Counter[T], gone: Counter[T]) -> None:
    for one, count in gone.items():
        left = counts[one] - count
        if left:
            counts[one] = left
        else:
            del counts[one]


def _groups() -> defaultdict[tuple[TargetState, int], list[str]]:
    return defaultdict(list)


def index_of(state: EngineState, action_id: str) -> Index:
    """The index of the action's targets. Keeps it in the state, which is equal to itself without it."""
    targets = state.targets.get(action_id, _NO_TARGETS)
    found: Index | None = state.indexes.get(action_id)
    if found is None or found.of is not targets:
        found = state.indexes[action_id] = Index(targets)
        for name, count in state.unloaded.get(action_id, {}).items():
            found.kinds[Kind(TargetState(name), 0, None, False)] += count
    return found


def move_index(state: EngineState, action_id: str, updates: Mapping[str, Target], after: Mapping[str, Target]) -> None:
    """Moves the index of the action, if this state has one, to its targets with these updates."""
    found: Index | None = state.indexes.get(action_id)
    if found is not None and found.of is state.targets.get(action_id, _NO_TARGETS):
        found.move(updates, after)
    elif found is not None and action_id not in state.targets:
        del state.indexes[action_id]


_NO_TARGETS: Mapping[str, Target] = {}
