"""The loop around the engine: read tables, decide, commit, publish, commit log positions. `actions.engine` decides.

A turn reads news, ticks, commits, and only then publishes; the positions in the log are committed after that. If the
process is killed at any point, the next run finds the owed records in `action_targets` and publishes them again under
the same idempotency keys. Ticks follow the clock, so that timeouts work without data; a changed table only causes an
earlier tick.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from actions.collector import freeze_if_many, paused_collector
from actions.engine import (
    Action,
    ActionState,
    Artifacts,
    Decision,
    Device,
    DeviceState,
    EngineState,
    Limits,
    Logs,
    Publish,
    Report,
    Request,
    apply,
    moved_clock,
    record_places,
    rests_until_us,
    tick,
)
from actions.heard import Heard, system_us
from actions.kept_owners import KeptOwners
from actions.late import asked_for, with_some, without_some
from actions.memory import forgettable, forgotten, is_over, with_all
from actions.outbound import Outbound, Publisher
from actions.reading import Reader, Readings
from actions.stock import Depot, Stock
from actions.table_store import Loaded, News, TableStore, Versions
from actions.unsettled import Unsettled
from broker_edge.log_owners import LogEntry
from sinks.rows import now_us

log = logging.getLogger(__name__)

_KEEP_ENDED_US = 600 * 1_000_000
_MEET_S = 3.0
"""Time for brokers to say at the start which logs they serve."""
_PUBLISH_S = 1.0
"""Time that a turn waits for several brokers. A slower one is asked for its answer in later turns."""
_CLOSE_S = 5.0
_GLANCE_S = 0.02
"""Interval between two quick looks for changed tables, where a look costs little."""
_ARCHIVE_S, _ARCHIVE_NEXT_S = 3600.0, 1.0
"""Intervals between two looks for old events, and between two parts of them."""
_KNOWN_FREE = 10_000
"""Maximum number of remembered ids of actions that do not exist in any table."""


@dataclass(frozen=True, slots=True)
class Pace:
    tick_s: float = 1.0
    """Maximum interval between two checks of the clock."""
    poll_s: float = 0.2
    """Interval between two checks for changed tables. Tables in a local folder are glanced at in between."""
    keep_s: float | None = None
    """Events are archived this long after their action has ended; None: never."""
    device_state_s: float = 1.0
    """Minimum interval between two writes of what devices report about themselves: each is a MERGE."""


class ActionJob:
    """One engine on one set of tables. Not thread-safe: call `run` from one thread; `stop` may be called from any.

    With several publishers, `depots` are their artifacts in the same order; without depots nobody looks for them.
    `readers` are the reports at the brokers in that order; without them no timeout waits for unread reports. `entries`
    are the brokers of the settings in that order: with them a log belongs to one of them.
    `steady_us` is a clock that nobody can set (default: that of the system if `clock_us` is, otherwise `clock_us`).
    """

    def __init__(
        self,
        store: TableStore,
        publishers: Publisher | Sequence[Publisher],
        *,
        depots: Sequence[Depot] | None = None,
        readers: Sequence[Reader] | None = None,
        entries: Sequence[LogEntry] = (),
        limits: Limits | None = None,
        pace: Pace | None = None,
        clock_us: Callable[[], int] = now_us,
        steady_us: Callable[[], int] | None = None,
    ) -> None:
        self._store = store
        self._limits = limits or Limits()
        self._pace = pace or Pace()
        self._clock_us = clock_us
        self._stop = threading.Event()
        self._wake = threading.Event()
        chosen = tuple(publishers) if isinstance(publishers, Sequence) else (publishers,)
        store.claim()
        self._kept = KeptOwners(store, entries)
        self._outbound = Outbound(chosen, wake=self._wake.set, entries=entries, owners=self._kept.owners)
        self._stock = None if depots is None or len(chosen) == 1 else Stock(depots, wake=self._wake.set)
        self._wanted: frozenset[tuple[str, str, str, str]] = frozenset()
        self._readings = None if readers is None else Readings(readers, wake=self._wake.set, clock_us=clock_us)
        self._heard = Heard(steady_us or (system_us if clock_us is now_us else clock_us), self._readings)
        self._logs = Logs(self._outbound.brokers())
        self._state = EngineState()
        self._known: set[str] = set()
        """Actions of which everything is in memory that the tables have, or that no table has."""
        self._looked: dict[str, set[str]] = {}
        """By action that is over and not in `_known`: the devices whose targets have been looked up."""
        self._definitions: dict[str, list[Action]] = {}
        self._requests: dict[str, Request] = {}
        self._devices: Mapping[str, Device] = {}
        self._artifacts: Artifacts = {}
        self._unsettled = Unsettled()
        self._read = Versions()
        self._facts: dict[str, DeviceState] = {}
        """Decided but not written yet. The reports behind them do not count as settled until then."""
        self._facts_from = 0.0
        self._archive_from = 0.0
        self._rest: tuple[int, int] | None = None
        """The period, by the engine's clock, in which a tick without news would decide nothing."""
        with paused_collector():
            self._state = replace(self._state, facts=store.facts())
            self._load(store.running())
        freeze_if_many(len(self._state.facts) + sum(map(len, self._state.targets.values())))
        self._outbound.meet(_MEET_S)

    @property
    def state(self) -> EngineState:
        return self._state

    def stop(self) -> None:
        self._stop.set()
        self._outbound.stop()
        self._wake.set()

    def run(self) -> None:
        """Runs turns until `stop`. Raises TableStoreError if the tables cannot be read or written."""
        last_tick = 0.0
        while not self._stop.is_set():
            news = self._news()
            due = time.monotonic() - last_tick >= self._pace.tick_s
            if due or not news.empty or self._has_news():
                last_tick = time.monotonic()
                self.turn(news)
            if news.empty:
                self._archive()
            self._wait()
        self.close()

    def _archive(self) -> None:
        """Moves a part of the old events, unless somebody has just set the clock ahead, or events are still unread."""
        is_time = time.monotonic() >= self._archive_from
        if self._pace.keep_s is None or not is_time or self._heard.is_held or self._heard.is_behind:
            return
        # What is in memory may be written again, and open actions depend on it.
        loaded = self._state.actions.keys() | self._definitions.keys()
        has_more = self._store.archive(self._clock_us() - int(self._pace.keep_s * 1_000_000), loaded)
        self._archive_from = time.monotonic() + (_ARCHIVE_NEXT_S if has_more else _ARCHIVE_S)

    def _wait(self) -> None:
        """Waits for news, at most until the tables are to be checked again."""
        until = time.monotonic() + self._pace.poll_s
        while (left_s := until - time.monotonic()) > 0:
            if self._wake.wait(min(left_s, _GLANCE_S)) or self._store.has_changed():
                break
        self._wake.clear()

    def run_through(self) -> None:
        """Runs turns until everything that existed at the first check has been read. Raises HeadwaterError if no broker
        answers."""
        while not self._heard.us and not self._stop.is_set():
            self.turn()
        is_stopped = self._stop.is_set()
        try:
            if not is_stopped:
                self._outbound.require_answer(_MEET_S)
        finally:
            self.close()

    def close(self) -> None:
        """Writes pending rows of devices, and places that brokers have confirmed. If a kill prevents this, reports are
        read again, and records are sent again without effect."""
        self._outbound.settle(_CLOSE_S)
        self._collect()
        self._outbound.close()
        self._commit(self._nothing(), facts_due=True)
        self._store.settle(now=True)

    @paused_collector()
    def turn(self, news: News | None = None) -> Decision:
        """One complete turn. Publishing may fail; owed records then stay owed."""
        news = self._news() if news is None else news
        self._collect()
        self._look_at_brokers()
        now_us = self._clock_us()
        self._note_clock(now_us)
        self._heard.note(news, now_us)
        if news.empty and self._rest is not None and self._rest[0] <= now_us < self._rest[1]:
            decision = self._nothing()
            self._commit(decision)
            self._store.settle()
            self._forget()
            return decision
        reports = self._take(news)
        actions = [row for rows in self._definitions.values() for row in rows]
        requests = list(self._requests.values())
        decision = tick(
            self._state,
            actions,
            requests,
            reports,
            self._devices,
            now_us,
            artifacts=self._artifacts,
            limits=self._limits,
            heard_us=self._heard.us,
            logs=self._logs,
            read_us=self._heard.of_logs,
        )
        self._settle(decision)
        self._commit(decision)
        self._store.settle()
        self._wanted, self._rest = decision.wanted, None
        if self._readings is not None:
            self._readings.look(decision.unread, self._logs.brokers)
        if not decision.writes and not decision.publishes and self._heard.us == now_us and not self._heard.is_held:
            self._rest = (now_us, rests_until_us(self._state, actions, requests, now_us, self._limits))
        if decision.publishes:
            self._publish(decision.publishes)
            self._commit(self._nothing())
        self._forget()
        return decision

    def _has_news(self) -> bool:
        if self._outbound.has_news or (self._readings is not None and self._readings.has_news):
            return True
        return self._stock is not None and self._stock.known() != self._logs.stock

    @paused_collector()
    def _news(self) -> News:
        self._heard.look()
        return self._store.news()

    def _nothing(self) -> Decision:
        state = self._state
        return Decision(waiting=state.waiting, devices=state.devices, logs=state.logs, moving=state.moving)

    def _look_at_brokers(self) -> None:
        """What the brokers answered since the last turn. A change is news: routes depend on it."""
        brokers = self._outbound.brokers()
        self._kept.keep()
        stock = None if self._stock is None else self._stock.known()
        if self._stock is not None:
            self._stock.bring(self._wanted, brokers)
        logs = Logs(brokers, stock)
        if logs != self._logs:
            self._logs, self._rest = logs, None

    # -- knowledge -----------------------------------------------------------------------------------------------

    def _note_clock(self, now_us: int) -> None:
        """Notices that somebody has set the clock, and moves the times that are measured by it."""
        by_us = self._heard.step_us(now_us)
        if by_us:
            self._commit(moved_clock(self._state, by_us, now_us))
            self._rest = None

    def _take(self, news: News) -> list[Report]:
        """Stores the news for the next tick, after loading the stored state of their actions."""
        ids = {row.action_id for row in news.actions} | {row.action_id for row in news.requests}
        ids |= {id_ for row in news.actions for id_ in row.rollout.depends_on}
        self._load(ids - self._known)
        # A request may reopen an action that has ended.
        self._load(self._needed(row.action_id for row in news.requests) - self._known)
        self._load_late(news.reports)
        self._read = news.read
        for action in news.actions:
            rows = self._definitions.setdefault(action.action_id, [])
            # A loaded row arrives again with its version if its insert had not been settled; the version is needed.
            rows[:] = [row for row in rows if row.digest != action.digest or row.commit_version > 0] + [action]
        new: dict[str, Request] = {}
        for request in news.requests:
            if request.request_id not in self._requests:
                new.setdefault(request.request_id, request)
        self._requests |= new
        self._unsettled.take(news, new)
        if news.devices is not None:
            self._devices = news.devices
        if news.artifacts is not None:
            self._artifacts = news.artifacts
        return list(news.reports)

    def _load(self, action_ids: set[str] | frozenset[str]) -> None:
        """Loads these actions from the tables, and the actions on which the open ones among them depend."""
        wanted = set(action_ids)
        while wanted:
            self._load_these(wanted)
            # An ended action waits for nothing, so a chain of actions is not followed to its beginning.
            wanted = self._needed(id_ for id_ in self._definitions if not is_over(self._state, id_)) - self._known

    def _needed(self, action_ids: Iterable[str]) -> set[str]:
        """The actions on which these actions depend."""
        return {id_ for one in action_ids for row in self._definitions.get(one, ()) for id_ in row.rollout.depends_on}

    def _load_late(self, reports: Iterable[Report]) -> None:
        """Loads what these reports need: of an action that is over only their targets."""
        asked = asked_for(reports, self._known, self._looked)
        if not asked:
            return
        loaded = self._store.load_late(asked)
        self._state, partly = with_some(self._state, loaded, self._clock_us())
        for id_ in partly:
            self._looked.setdefault(id_, set()).update(asked[id_])
        self._define(loaded)
        self._load(asked.keys() - partly)

    def _load_these(self, action_ids: set[str]) -> None:
        loaded = self._store.load(action_ids)
        self._known |= action_ids
        self._looked = {id_: ids for id_, ids in self._looked.items() if id_ not in action_ids}
        self._state = without_some(self._state, action_ids)
        started = self._define(loaded)
        for id_, row in started.items():
            if not row.phase.over and id_ not in self._definitions:
                log.error("the row of action %s is no longer in the table actions: nothing more is sent for it", id_)
        self._state = with_all(self._state, loaded, self._clock_us())

    def _define(self, loaded: Loaded) -> Mapping[str, ActionState]:
        """Keeps the loaded definitions; returns the loaded rows by id."""
        started = {row.action_id: row for row in loaded.states}
        for action in loaded.definitions:
            row = started.get(action.action_id)
            # Rows of actions that were never started arrive as news, with the version that decides which row is first.
            if row is not None and row.digest == action.digest:
                self._definitions[action.action_id] = [action]
        return started

    def _settle(self, decision: Decision) -> None:
        """Drops the requests that this decision handles, and the versions of reports that no longer wait."""
        self._unsettled.decided(decision)
        done = {id_ for row in self._state.actions.values() for id_ in row.requests_done}
        done |= {id_ for row in decision.state_updates for id_ in row.requests_done}
        done |= {event.request_id for event in decision.events if event.request_id is not None}
        for request_id, request in list(self._requests.items()):
            answer = f"engine/{request.action_id}/request/{request_id}"
            if request_id in done or answer in self._state.said:
                del self._requests[request_id]
                self._unsettled.answered(request_id)

    def _settled(self, decision: Decision) -> Versions:
        """The versions up to which a restart need not read again. An action that is neither started nor in `decision`
        must be read again, too."""
        started = self._state.actions.keys() | {row.action_id for row in decision.state_updates}
        held = [row for id_, rows in self._definitions.items() if id_ not in started for row in rows]
        return self._unsettled.settled(self._read, (row.commit_version for row in held))

    def _forget(self) -> None:
        """Forgets actions that ended a while ago; they are loaded again from the tables if news about them arrives."""
        there = self._state.actions.keys() | self._definitions.keys()
        if len(self._known) > len(there) + _KNOWN_FREE:
            # Devices may report on any number of actions that do not exist.
            self._known &= there
        old = forgettable(self._state, self._definitions, self._clock_us() - _KEEP_ENDED_US)
        if not old:
            return
        for id_ in old:
            self._definitions.pop(id_, None)
        self._state = forgotten(self._state, old)
        self._known -= old
        self._looked = {id_: ids for id_, ids in self._looked.items() if id_ not in old}

    # -- effects -----------------------------------------------------------------------------------------------------

    def _commit(self, decision: Decision, *, facts_due: bool = False, is_repeatable: bool = False) -> None:
        """Writes the decision. Rows of devices wait until its records have been published, and for their interval."""
        self._facts.update((fact.device_id, fact) for fact in decision.device_updates)
        is_time = time.monotonic() >= self._facts_from and not decision.publishes
        due = bool(self._facts) and (facts_due or is_time)
        written = replace(decision, device_updates=tuple(self._facts.values()) if due else ())
        if due:
            self._facts_from = time.monotonic() + self._pace.device_state_s
            self._unsettled.facts_written()
        if written.writes:
            state = self._state
            ids = {row.action_id for row in decision.state_updates}
            new = frozenset(id_ for id_ in ids if id_ not in state.actions and not state.targets.get(id_))
            self._store.commit(written, self._settled(decision), new=new, is_repeatable=is_repeatable and not due)
        if due:
            self._facts.clear()
        self._state = apply(self._state, decision)

    def _publish(self, publishes: Sequence[Publish]) -> None:
        """Gives the brokers their records, and commits what they have confirmed."""
        # With one broker there is nothing else to do meanwhile.
        self._outbound.send(publishes, seconds=None if self._logs.alone else _PUBLISH_S)
        self._collect()

    def _collect(self) -> None:
        sent = self._outbound.collected()
        if sent.places or sent.refused:
            # After a kill the same records are published again, and the brokers say the same places.
            placed = record_places(self._state, sent.places, self._clock_us(), refused=sent.refused)
            self._commit(placed, is_repeatable=not sent.refused)
