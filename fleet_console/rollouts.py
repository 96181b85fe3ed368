"""Actions as the pages show them: a list, one with its waves, failures, times and requests, and its targets.

All that grows with the number of targets is counted in SQL, so that 100,000 of them cost no loop in Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from actions.audit import audited
from broker_edge.errors import NotFoundError
from fleet_console.tables import Tables
from sinks.sql_text import literal
from sinks.tables import ACTION_EVENTS, ACTION_JOURNAL, ACTION_REQUESTS, ACTION_STATE, ACTION_TARGETS, ACTIONS

LIMIT, LIMIT_MAX = 100, 1_000
_GROUPS_MAX = 50
_CELLS_MAX = 13 * 200
"""States of waves: more than an action can have."""
_AUDIT_MAX = 200
_LATE_MAX = 10_000
_LIST_MAX, _TEXT_MAX = 100, 20_000
"""Elements and characters that are shown of one value of an order."""
_MESSAGE_MAX = 1_000
NEW = "NEW"
"""The phase of an action that no engine has read yet."""

_LIST = (ACTIONS.name, ACTION_STATE.name, ACTION_JOURNAL.name)
_DETAIL = (*_LIST, ACTION_TARGETS.name, ACTION_REQUESTS.name, ACTION_EVENTS.name)
_TARGETS = (ACTION_TARGETS.name, ACTION_JOURNAL.name)

_ERRORS = ("FAILED", "REJECTED", "TIMED_OUT")
_WITHOUT_SUCCESS = (*_ERRORS, "CANCELLED", "SKIPPED", "REMOVED")
_STEPS = {"delivered": "delivered_at", "started": "started_at", "finished": "finished_at"}
_PERCENTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}

# Of several rows with one id the earliest counts, as for the engine.
_ROWS = """
SELECT coalesce(a.action_id, s.action_id) AS action_id, a.type, a.name, a.artifact_name, a.artifact_version,
    a.created_at, a.created_by, coalesce(s.phase, 'NEW') AS phase, s.message, s.targets, s.open, s.counts, s.wave,
    s.waves, s.started_at, s.ended_at, s.stopped, s.held,
    coalesce(CAST(a.created_at AS BIGINT), CAST(s.started_at AS BIGINT), 0) AS place
FROM (SELECT *, row_number() OVER (PARTITION BY action_id ORDER BY created_at) AS nth FROM actions
    WHERE {which} AND action_id IS NOT NULL) a
FULL JOIN (SELECT *, row_number() OVER (PARTITION BY action_id ORDER BY updated_at DESC) AS nth FROM action_state
    WHERE {which} AND action_id IS NOT NULL) s ON s.action_id = a.action_id AND s.nth = 1 AND a.nth = 1
WHERE coalesce(a.nth, 1) = 1 AND coalesce(s.nth, 1) = 1"""


class Rollouts:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def page(self, *, contains: str, phase: str, after: str | None, limit: int) -> bytes:
        def make() -> dict[str, Any]:
            where = []
            if contains:
                text = "lower(concat(action_id, ' ', coalesce(name, '')))"
                where.append(f"strpos({text}, {literal(contains.lower())}) > 0")
            if phase:
                where.append(f"phase = {literal(phase)}")
            if after is not None:
                place, _, action_id = after.partition(":")
                at = int(place)
                where.append(f"(place < {at} OR (place = {at} AND action_id > {literal(action_id)}))")
            rows = self._rows(
                self._tables.of_tenant,
                f"WHERE {' AND '.join(where) or 'true'} ORDER BY place DESC, action_id LIMIT {limit + 1:d}",
            )
            last = rows[limit - 1] if len(rows) > limit else None
            next_ = None if last is None else f"{last['place']}:{last['action_id']}"
            return {"rollouts": [_rollout(row) for row in rows[:limit]], "next": next_}

        return self._tables.answer(f"rollouts {[contains, phase, after, limit]}", _LIST, make)

    def one(self, action_id: str) -> bytes:
        return self._tables.answer(f"rollout {action_id}", _DETAIL, lambda: self._detail(action_id))

    def targets(
        self,
        action_id: str,
        *,
        state: str,
        reason: str,
        wave: int | None,
        contains: str,
        after: str | None,
        limit: int,
    ) -> bytes:
        where = [self._of(action_id)]
        if state:
            where.append(f"state = {literal(state)}")
        if reason:
            where.append(f"left(message, {_MESSAGE_MAX}) = {literal(reason)}")
        if wave is not None:
            where.append(f"coalesce(wave, 0) = {wave:d}")
        if contains:
            where.append(f"strpos(lower(device_id), {literal(contains.lower())}) > 0")
        if after is not None:
            where.append(f"device_id > {literal(after)}")

        def make() -> dict[str, Any]:
            message = f"left(message, {_MESSAGE_MAX}) AS message"
            columns = f'device_id, state, wave, attempt, progress, {message}, updated_at, log_id, "partition", "offset"'
            select = f"SELECT {columns} FROM targets ORDER BY device_id LIMIT {limit + 1:d}"
            rows = [_in_us(row) for row in self._tables.history.targets(" AND ".join(where), select)]
            next_ = rows[limit - 1]["device_id"] if len(rows) > limit else None
            return {"targets": rows[:limit], "next": next_}

        return self._tables.answer(
            f"targets {[action_id, state, reason, wave, contains, after, limit]}", _TARGETS, make
        )

    def row(self, action_id: str) -> dict[str, Any]:
        """Raises NotFoundError."""
        rows = self._rows(self._of(action_id), "LIMIT 1")
        if not rows:
            raise NotFoundError(f"there is no action {action_id:.200}")
        return rows[0]

    def _rows(self, which: str, how: str) -> list[dict[str, Any]]:
        sql = f"SELECT * FROM ({_ROWS.format(which=which)}) AS rollouts {how}"
        return self._tables.history.joined((ACTION_STATE.name, ACTIONS.name), sql)

    def _of(self, action_id: str) -> str:
        return f"action_id = {literal(action_id)} AND {self._tables.of_tenant}"

    def _detail(self, action_id: str) -> dict[str, Any]:
        row = self.row(action_id)
        history, of_this, part = self._tables.history, self._of(action_id), self._tables.part
        made = history.query(ACTIONS.name, f"SELECT * FROM actions WHERE {of_this} ORDER BY created_at LIMIT 1")
        asked = part(f"asked {action_id}", (ACTION_REQUESTS.name,), lambda: history.requests(of_this)[-_AUDIT_MAX:])
        waves, failures = part(f"groups {action_id}", _TARGETS, lambda: self._groups(of_this))
        return {
            "rollout": _rollout(row),
            "order": {name: value for one in made for name, value in _in_us(one).items() if value is not None},
            "waves": waves,
            "failures": failures,
            "times": part(f"times {action_id}", _TARGETS, lambda: self._times(of_this)),
            "audit": self._audit(action_id, made, asked, row),
            "asked": self._unanswered(action_id, asked),
        }

    def _groups(self, of_this: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The targets by wave and state, and those without success by state and reason: in one pass over all."""
        states = ", ".join(map(literal, _WITHOUT_SUCCESS))
        columns = (
            f"coalesce(wave, 0) AS wave, coalesce(state, 'UNKNOWN') AS state, left(message, {_MESSAGE_MAX}) AS reason"
        )
        read = f"SELECT device_id, {columns} FROM targets"
        select = (
            "SELECT wave, state, reason, grouping(wave) AS is_reason, count(*) AS number, min(device_id) AS example "
            f"FROM ({read}) AS found GROUP BY GROUPING SETS ((wave, state), (state, reason)) "
            f"HAVING grouping(wave) = 0 OR state IN ({states}) "
            f"ORDER BY is_reason, number DESC, state, reason LIMIT {_CELLS_MAX + _GROUPS_MAX}"
        )
        waves: dict[int, dict[str, int]] = {}
        failures = list[dict[str, Any]]()
        for row in self._tables.history.targets(of_this, select):
            if not row["is_reason"]:
                waves.setdefault(row["wave"], {})[row["state"]] = row["number"]
            elif len(failures) < _GROUPS_MAX:
                failures.append({name: row[name] for name in ("state", "reason", "number", "example")})
        return [{"wave": wave, "counts": dict(sorted(waves[wave].items()))} for wave in sorted(waves)], failures

    def _times(self, of_this: str) -> list[dict[str, Any]]:
        columns = []
        for step, column in _STEPS.items():
            seconds = f"(CAST({column} AS BIGINT) - CAST(queued_at AS BIGINT)) / 1e6"
            is_meant = f"{column} >= queued_at" + (" AND state = 'SUCCEEDED'" if step == "finished" else "")
            columns.append(f"count(*) FILTER (WHERE {is_meant}) AS {step}_number")
            columns += [
                f"approx_percentile_cont({part}) WITHIN GROUP (ORDER BY {seconds}) FILTER (WHERE {is_meant}) "
                f"AS {step}_{name}"
                for name, part in _PERCENTILES.items()
            ]
        rows = self._tables.history.targets(of_this, f"SELECT {', '.join(columns)} FROM targets")
        names = ("number", *_PERCENTILES)
        return [{"step": step, **{name: row[f"{step}_{name}"] for name in names}} for row in rows for step in _STEPS]

    def _audit(
        self, action_id: str, made: list[dict[str, Any]], asked: list[dict[str, Any]], row: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        history, of_this = self._tables.history, self._of(action_id)
        newest = f"SELECT * FROM events ORDER BY at DESC LIMIT {_AUDIT_MAX}"
        said = self._tables.part(
            f"said {action_id}",
            (ACTION_EVENTS.name,),
            lambda: list(history.each_event(f"{of_this} AND source = 'engine'", newest)),
        )
        late, state = [], None if row["phase"] == NEW else row
        if row["phase"] == "ENDED":
            late = history.targets(f"{of_this} AND late", f"SELECT updated_at FROM targets LIMIT {_LATE_MAX}")
        entries = audited(made, asked, said, state, [one["updated_at"] for one in late])
        return [
            {
                "at_us": one["at"],
                "who": one["who"],
                "what": one["what"],
                "device_id": one["device_id"],
                "message": one["text"],
            }
            for one in entries[-_AUDIT_MAX:]
        ]

    def _unanswered(self, action_id: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
        select = f"SELECT requests_done FROM action_state WHERE {self._of(action_id)}"
        rows = self._tables.history.query(ACTION_STATE.name, select)
        done = {one for row in rows for one in row["requests_done"] or ()}
        names = ("request_id", "kind", "by", "device_id", "wave", "reason")
        waiting = [row for row in asked if row["request_id"] not in done]
        return [{**{name: row[name] for name in names}, "at_us": row["at"]} for row in waiting]


def _rollout(row: Mapping[str, Any]) -> dict[str, Any]:
    name, version = row["artifact_name"], row["artifact_version"]
    as_it_is = ("action_id", "type", "name", "phase", "message", "targets", "open", "wave", "waves", "stopped", "held")
    return {
        **{column: row[column] for column in as_it_is},
        "artifact": None if name is None else f"{name} {version or ''}".strip(),
        "counts": row["counts"] or {},
        "created_us": row["created_at"],
        "created_by": row["created_by"],
        "started_us": row["started_at"],
        "ended_us": row["ended_at"],
        "can": kinds_of_use(row),
    }


def kinds_of_use(row: Mapping[str, Any]) -> list[str]:
    """The requests that the engine would carry out in this phase, as far as the row tells."""
    phase, counts = row["phase"], row["counts"] or {}
    if phase in (NEW, "REFUSED"):
        return []
    found = {"RUNNING": ["pause"], "PAUSED": ["resume"], "WAITING_APPROVAL": ["approve", "pause"]}.get(phase, [])
    if row["stopped"] is None and any(counts.get(state) for state in _ERRORS):
        found.append("retry")
    if row["held"] is not None:
        found.append("remove")
    is_over = phase == "ENDED"
    if not is_over and (row["type"] == "ota" or counts.get("CANCELLING")):
        found.append("force")
    return found if is_over or phase == "STOPPING" else [*found, "cancel"]


def _in_us(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as it is in JSON: times with their unit in the name, long values cut."""
    times = {"not_before", "deadline"}
    named = {name: f"{name.removesuffix('_at')}_us" for name in row if name.endswith("_at") or name in times}
    return {named.get(name, name): _shown(value) for name, value in row.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, list) and len(value) > _LIST_MAX:
        return [*value[:_LIST_MAX], f"… and {len(value) - _LIST_MAX:,} more"]
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return f"{value[:_TEXT_MAX]}… and {len(value) - _TEXT_MAX:,} characters more"
    # JSON has no number for NaN and infinity, which a Delta table may hold.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
