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
    STEP_US,
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
    in_past,
    moved_clock,
    record_places,
    rests_until_us,
    row_in_past,
    tick,
)
from actions.late import asked_for, with_some, without_some
from actions.outbound import Outbound, Publisher
from actions.reading import Reader, Readings
from actions.stock import Depot, Stock
from actions.table_store import Loaded, News, TableStore, Versions
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
_HOLD_US = 600 * 1_000_000
"""How long nothing times out after the clock was set ahead: somebody may set it back."""
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
    `readers` are the reports at the brokers in that order; without them no timeout waits for unread reports.
    `steady_us` is a clock that nobody can set (default: that of the system if `clock_us` is, otherwise `clock_us`).
    """

    def __init__(
        self,
        store: TableStore,
        publishers: Publisher | Sequence[Publisher],
        *,
        depots: Sequence[Depot] | None = None,
        readers: Sequence[Reader] | None = None,
        limits: Limits | None = None,
        pace: Pace | None = None,
        clock_us: Callable[[], int] = now_us,
        steady_us: Callable[[], int] | None = None,
    ) -> None:
        self._store = store
        self._limits = limits or Limits()
        self._pace = pace or Pace()
        self._clock_us = clock_us
        self._steady_us = steady_us or (_steady_us if clock_us is now_us else clock_us)
        self._clocks: tuple[int, int] | None = None
        """What both clocks showed at the last turn."""
        self._held: tuple[int, int] | None = None
        """After the clock was set ahead: the time before that, and when the hold ends, by the steady clock."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        chosen = tuple(publishers) if isinstance(publishers, Sequence) else (publishers,)
        self._outbound = Outbound(chosen, wake=self._wake.set)
        self._stock = None if depots is None or len(chosen) == 1 else Stock(depots, wake=self._wake.set)
        self._wanted: frozenset[tuple[str, str, str, str]] = frozenset()
        self._readings = None if readers is None else Readings(readers, wake=self._wake.set, clock_us=clock_us)
        self._read_us: Mapping[str, int] = {}
        """By log: all reports in it up to this time have been read, by both jobs."""
        self._reading_us: Mapping[str, int] = {}
        """The same of the status job, before the last look at the tables."""
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
        self._request_versions: dict[str, int] = {}
        self._report_versions: dict[tuple[str, int, int], int] = {}
        self._read = Versions()
        self._heard_us = 0
        """All reports up to this time have been read."""
        self._heard_next: tuple[int, int, Mapping[str, int]] | None = None
        """Once reports up to this version have been read, all reports up to this time have been, and in the logs up to
        these times."""
        self._facts: dict[str, DeviceState] = {}
        """Decided but not written yet. The reports behind them do not count as settled until then."""
        self._facts_version: int | None = None
        self._facts_from = 0.0
        self._archive_from = 0.0
        self._rest: tuple[int, int] | None = None
        """The period, by the engine's clock, in which a tick without news would decide nothing."""
        store.claim()
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
        if self._pace.keep_s is None or not is_time or self._held is not None or self._heard_next is not None:
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
        while not self._heard_us and not self._stop.is_set():
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
        self._note_heard(news, now_us)
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
            heard_us=self._heard_us if self._held is None else min(self._heard_us, self._held[0]),
            logs=self._logs,
            read_us=None if self._readings is None else self._read_us,
        )
        self._settle(decision)
        self._commit(decision)
        self._store.settle()
        self._wanted, self._rest = decision.wanted, None
        if self._readings is not None:
            self._readings.look(decision.unread, self._logs.brokers)
        if not decision.writes and not decision.publishes and self._heard_us == now_us and self._held is None:
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
        # In this order: what the status job had written before this look is in what the look finds.
        if self._readings is not None:
            self._reading_us = self._readings.known()
        return self._store.news()

    def _nothing(self) -> Decision:
        state = self._state
        return Decision(waiting=state.waiting, devices=state.devices, logs=state.logs, moving=state.moving)

    def _look_at_brokers(self) -> None:
        """What the brokers answered since the last turn. A change is news: routes depend on it."""
        brokers = self._outbound.brokers()
        stock = None if self._stock is None else self._stock.known()
        if self._stock is not None:
            self._stock.bring(self._wanted, brokers)
        logs = Logs(brokers, stock)
        if logs != self._logs:
            self._logs, self._rest = logs, None

    # -- knowledge -----------------------------------------------------------------------------------------------

    def _note_clock(self, now_us: int) -> None:
        """Notices that somebody has set the clock, and moves the times that are measured by it."""
        steady_us = self._steady_us()
        before, self._clocks = self._clocks, (now_us, steady_us)
        if self._held is not None and steady_us >= self._held[1]:
            self._held = None
        by_us = 0 if before is None else (now_us - before[0]) - (steady_us - before[1])
        if abs(by_us) <= STEP_US:
            return
        what = "ahead" if by_us > 0 else "back"
        log.warning("the clock was set %s by %d s: timeouts do not count this time", what, abs(by_us) // 1_000_000)
        self._commit(moved_clock(self._state, by_us, now_us))
        self._held = (now_us - by_us, steady_us + _HOLD_US) if by_us > 0 else None
        self._heard_us, self._heard_next, self._rest = min(self._heard_us, now_us), None, None
        self._read_us = self._reading_us = {}
        if self._readings is not None:
            self._readings.forget()

    def _note_heard(self, news: News, now_us: int) -> None:
        """Updates `heard_us` and `read_us`. Reports are read in parts, and a target may only time out after its earlier
        reports were read."""
        reached = news.read.reports
        if reached >= news.newest_reports:
            self._heard_us, self._read_us, self._heard_next = now_us, self._reading_us, None
            return
        if self._heard_next is not None and reached >= self._heard_next[0]:
            _, self._heard_us, self._read_us = self._heard_next
            self._heard_next = None
        if self._heard_next is None:
            self._heard_next = (news.newest_reports, now_us, self._reading_us)

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
        for request, version in news.requests.items():
            if self._requests.setdefault(request.request_id, request) is request:
                self._request_versions[request.request_id] = version
        for report, version in news.reports.items():
            self._report_versions.setdefault(report.place, version)
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
            wanted = self._needed(id_ for id_ in self._definitions if not self._is_over(id_)) - self._known

    def _needed(self, action_ids: Iterable[str]) -> set[str]:
        """The actions on which these actions depend."""
        return {id_ for one in action_ids for row in self._definitions.get(one, ()) for id_ in row.rollout.depends_on}

    def _is_over(self, action_id: str) -> bool:
        row = self._state.actions.get(action_id)
        return row is not None and row.phase.over

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
        now_us = self._clock_us()
        targets = tuple(in_past(target, now_us) for target in loaded.targets)
        states = tuple(row_in_past(row, now_us) for row in loaded.states)
        decision = Decision(target_updates=targets, state_updates=states, waiting=self._state.waiting)
        state = apply(self._state, decision)
        before = self._state
        said = state.said | loaded.said
        self._state = replace(state, said=said, devices=before.devices, logs=before.logs, moving=before.moving)

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
        waiting = {report.place for report in decision.waiting}
        if decision.device_updates and self._facts_version is None and self._report_versions:
            self._facts_version = min(self._report_versions.values())
        self._report_versions = {p: v for p, v in self._report_versions.items() if p in waiting}
        done = {id_ for row in self._state.actions.values() for id_ in row.requests_done}
        done |= {id_ for row in decision.state_updates for id_ in row.requests_done}
        done |= {event.request_id for event in decision.events if event.request_id is not None}
        for request_id, request in list(self._requests.items()):
            answer = f"engine/{request.action_id}/request/{request_id}"
            if request_id in done or answer in self._state.said:
                del self._requests[request_id]
                self._request_versions.pop(request_id, None)

    def _settled(self, decision: Decision) -> Versions:
        """The versions up to which a restart need not read again: below the oldest undecided request or report, and
        below the oldest action that is neither started nor in `decision`."""
        started = self._state.actions.keys() | {row.action_id for row in decision.state_updates}
        held = [rows for id_, rows in self._definitions.items() if id_ not in started]
        actions = min((row.commit_version - 1 for rows in held for row in rows), default=self._read.actions)
        requests = min((version - 1 for version in self._request_versions.values()), default=self._read.requests)
        versions = [
            *self._report_versions.values(),
            *([self._facts_version] if self._facts_version is not None else []),
        ]
        reports = min((version - 1 for version in versions), default=self._read.reports)
        return Versions(actions=min(actions, self._read.actions), requests=requests, reports=reports)

    def _forget(self) -> None:
        """Forgets actions that ended a while ago; they are loaded again from the tables if news about them arrives."""
        before_us = self._clock_us() - _KEEP_ENDED_US
        state = self._state
        there = state.actions.keys() | self._definitions.keys()
        if len(self._known) > len(there) + _KNOWN_FREE:
            # Devices may report on any number of actions that do not exist.
            self._known &= there
        old = {id_ for id_, row in state.actions.items() if row.ended_us is not None and row.updated_us < before_us}
        for id_, rows in self._definitions.items():
            if id_ not in old:
                old -= {needed for row in rows for needed in row.rollout.depends_on}
        old -= {action_id for action_id, _ in state.copied}
        old -= self._superseding()
        if not old:
            return
        for id_ in old:
            self._definitions.pop(id_, None)
        self._state = replace(
            state,
            actions={id_: row for id_, row in state.actions.items() if id_ not in old},
            targets={id_: rows for id_, rows in state.targets.items() if id_ not in old},
            unloaded={id_: counts for id_, counts in state.unloaded.items() if id_ not in old},
            said=frozenset(event_id for event_id in state.said if _action_of(event_id) not in old),
        )
        self._known -= old
        self._looked = {id_: ids for id_, ids in self._looked.items() if id_ not in old}

    def _superseding(self) -> set[str]:
        """Updates that have taken devices from an update which may still get new ones: a device that joins it later
        must not get the older image."""
        begun = {
            id_: (row.started_us, action)
            for id_, rows in self._definitions.items()
            for action in rows
            if action.is_ota and (row := self._state.actions.get(id_)) is not None
        }
        joined = [at for id_, (at, one) in begun.items() if one.rollout.dynamic and not self._is_over(id_)]
        return {id_ for id_, (at, one) in begun.items() if one.ota.supersede and joined and at >= min(joined)}

    # -- effects -----------------------------------------------------------------------------------------------------

    def _commit(self, decision: Decision, *, facts_due: bool = False, is_repeatable: bool = False) -> None:
        """Writes the decision. Rows of devices wait until its records have been published, and for their interval."""
        self._facts.update((fact.device_id, fact) for fact in decision.device_updates)
        is_time = time.monotonic() >= self._facts_from and not decision.publishes
        due = bool(self._facts) and (facts_due or is_time)
        written = replace(decision, device_updates=tuple(self._facts.values()) if due else ())
        if due:
            self._facts_from = time.monotonic() + self._pace.device_state_s
            self._facts_version = None
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


def _steady_us() -> int:
    return time.monotonic_ns() // 1_000


def _action_of(event_id: str) -> str:
    """The action in the id of an event of the engine. An id written by somebody else matches no action."""
    return event_id.split("/", 2)[1] if event_id.count("/") >= 2 else ""
