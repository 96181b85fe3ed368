"""Devices as the pages show them: what users said of them beside what they last reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_edge.errors import NotFoundError
from fleet_console.tables import Tables
from sinks.sql_text import literal
from sinks.tables import ACTION_JOURNAL, ACTION_TARGETS, DEVICE_STATE, DEVICES

_VERSIONS_MAX = 50
_TARGETS_MAX = 50
_NAMES = (DEVICES.name, DEVICE_STATE.name, ACTION_JOURNAL.name)

_ROWS = """
SELECT coalesce(d.device_id, s.device_id) AS device_id, d.labels, d.groups, s.version, s.product, s.hardware,
    s.last_seen_at, s.last_action_id, s.last_status, s.log_id, d.retired_at
FROM (SELECT *, row_number() OVER (PARTITION BY device_id ORDER BY created_at) AS nth FROM devices
    WHERE {which} AND device_id IS NOT NULL) d
FULL JOIN (SELECT *, row_number() OVER (PARTITION BY device_id ORDER BY updated_at DESC) AS nth FROM device_state
    WHERE {which} AND device_id IS NOT NULL) s ON s.device_id = d.device_id AND s.nth = 1 AND d.nth = 1
WHERE coalesce(d.nth, 1) = 1 AND coalesce(s.nth, 1) = 1"""


class Devices:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def page(self, *, contains: str, version: str, after: str | None, limit: int, is_untold: bool = False) -> bytes:
        """`is_untold`: devices that have not told their version, or an empty one."""

        def make() -> dict[str, Any]:
            where = []
            if contains:
                text = literal(contains.lower())
                labels = "lower(array_to_string(map_values(labels), ' '))"
                where.append(f"(strpos(lower(device_id), {text}) > 0 OR strpos(coalesce({labels}, ''), {text}) > 0)")
            if version:
                where.append(f"version = {literal(version)}")
            if is_untold:
                where.append("coalesce(version, '') = ''")
            if after is not None:
                where.append(f"device_id > {literal(after)}")
            rows = self._rows(
                self._tables.of_tenant,
                f"WHERE {' AND '.join(where) or 'true'} ORDER BY device_id LIMIT {limit + 1:d}",
            )
            next_ = rows[limit - 1]["device_id"] if len(rows) > limit else None
            found: dict[str, Any] = {"devices": [_device(row) for row in rows[:limit]], "next": next_}
            return found if after is not None else {**found, "versions": self._versions()}

        return self._tables.answer(f"devices {[contains, version, is_untold, after, limit]}", _NAMES, make)

    def one(self, device_id: str) -> bytes:
        def make() -> dict[str, Any]:
            where = f"device_id = {literal(device_id)} AND {self._tables.of_tenant}"
            rows = self._rows(where, "LIMIT 1")
            if not rows:
                raise NotFoundError(f"there is no device {device_id:.200}")
            select = (
                "SELECT action_id, state, message, updated_at AS updated_us FROM targets "
                f"ORDER BY updated_at DESC NULLS LAST LIMIT {_TARGETS_MAX}"
            )
            return {"device": _device(rows[0]), "targets": self._tables.history.targets(where, select)}

        return self._tables.answer(f"device {device_id}", (*_NAMES, ACTION_TARGETS.name), make)

    def _rows(self, which: str, how: str) -> list[dict[str, Any]]:
        sql = f"SELECT * FROM ({_ROWS.format(which=which)}) AS found {how}"
        return self._tables.history.joined((DEVICE_STATE.name, DEVICES.name), sql)

    def _versions(self) -> list[dict[str, Any]]:
        sql = (
            f"SELECT product, version, count(*) AS number FROM ({_ROWS.format(which=self._tables.of_tenant)}) AS found "
            f"GROUP BY product, version ORDER BY number DESC, product, version LIMIT {_VERSIONS_MAX}"
        )
        return self._tables.history.joined((DEVICE_STATE.name, DEVICES.name), sql)


def _device(row: Mapping[str, Any]) -> dict[str, Any]:
    as_it_is = (
        *("device_id", "labels", "groups", "version", "product", "hardware", "last_action_id", "last_status", "log_id"),
    )
    found = {name: row[name] for name in as_it_is}
    return {**found, "last_seen_us": row["last_seen_at"], "retired_us": row["retired_at"]}
