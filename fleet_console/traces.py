"""Where one record is: what its broker says of it, and what the tables have of it."""

from __future__ import annotations

import re
from typing import Any

from broker_edge.errors import HeadwaterError, NotFoundError
from fleet_console.brokers import Fleet, Watcher
from fleet_console.callers import Turned
from fleet_console.record_rows import Place, RecordRows
from fleet_console.tables import Tables
from sinks.folder import TableFolder

_PLACE = re.compile(r"([^:]{1,255}):([0-9]{1,19})", re.ASCII)
_OFFSET_MAX = (1 << 63) - 1
_PARTITION_MAX = (1 << 31) - 1
_NO_BROKER = "None of the brokers of this console has this log, or none has answered yet."
_HIDDEN = ("value", "headers", "is_cut")
"""Of a record: its payload is for those whom its broker lets replay the topic, and the console asks in its own name."""


class Traces:
    def __init__(self, fleet: Fleet, tables: Tables) -> None:
        self._fleet, self._tables = fleet, tables
        settings = tables.settings
        silver = TableFolder.of(settings.silver_root or settings.root, settings.access())
        bronze = TableFolder.of(settings.bronze, settings.access())
        self._rows = RecordRows(tables.history, tables.silver, silver, bronze, tables.of_tenant)

    def answer(self, at: str, log_id: str) -> dict[str, Any]:
        """`at` is NAME:OFFSET. Raises Turned, and NotFoundError for a partition that the broker does not have."""
        found = _PLACE.fullmatch(at)
        if found is None or int(found[2]) > _OFFSET_MAX:
            raise Turned(400, "invalid_argument", "at is not PARTITION:OFFSET, such as telemetry-0:4711")
        name, offset = found[1], int(found[2])
        log_id = log_id or self._only_log()
        watcher = self._fleet.of_log(log_id)
        told, trouble = _asked(watcher, at)
        number = _number(name, told, watcher)
        rows = self._tables.once(lambda: self._rows.find(Place(log_id, number, offset)))
        broker = None if watcher is None else watcher.member.name
        return {
            "log_id": log_id,
            "partition": number,
            "offset": offset,
            "name": name if told is None else told["name"],
            "broker": {"name": broker, "trouble": trouble, "trace": told},
            "tables": rows,
        }

    def _only_log(self) -> str:
        known = self._fleet.logs()
        if len(known) == 1:
            return known[0]
        if not known:
            raise Turned(503, "unavailable", "no broker has answered yet, so give log_id, the log of the record")
        raise Turned(400, "invalid_argument", f"the brokers have {len(known)} logs: give log_id, that of the record")


def _asked(watcher: Watcher | None, at: str) -> tuple[dict[str, Any] | None, str | None]:
    """What the broker says, or why it does not."""
    if watcher is None:
        return None, _NO_BROKER
    try:
        told = dict(watcher.member.admin.trace(at))
    except NotFoundError:
        raise
    except HeadwaterError as error:
        return None, str(error)
    if not isinstance(told.get("partition"), int) or not isinstance(told.get("name"), str):
        return None, "The broker says what this version does not understand: is it of another version?"
    if isinstance(told.get("record"), dict):
        shown = {key: value for key, value in told["record"].items() if key not in _HIDDEN}
        told["record"] = {**shown, "is_hidden": True}
    return told, None


def _number(name: str, told: dict[str, Any] | None, watcher: Watcher | None) -> int:
    if told is not None:
        return int(told["partition"])
    if name.isascii() and name.isdecimal() and int(name) <= _PARTITION_MAX:
        return int(name)
    known = {} if watcher is None else watcher.partitions()
    if name not in known:
        message = f"without its broker, the number of the partition {name:.100} is not known: give the number instead"
        raise Turned(400, "invalid_argument", message)
    return known[name]
