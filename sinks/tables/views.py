"""Views over the tables: bronze with the payload as text, and what is open or known now.

Each view is one SELECT that Spark and DuckDB understand. Spark keeps views of tables by name in the catalog; for tables
by path it makes temporary ones. A view holds no rows and needs no upkeep.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from broker_edge.errors import SettingsError
from broker_edge.fields import FieldTable, quoted
from sinks.tables.actions import (
    ACTION_EVENTS,
    ACTION_EVENTS_ARCHIVE,
    ACTION_REQUESTS,
    ACTION_REQUESTS_ARCHIVE,
    ACTION_STATE,
    ACTION_TARGETS,
    ACTION_TARGETS_ARCHIVE,
    ACTIONS,
)
from sinks.tables.devices import DEVICE_STATE, DEVICES
from sinks.tables.records import BRONZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Dialect = Literal["spark", "duckdb"]
_TEXT: Mapping[Dialect, str] = {"spark": "try_validate_utf8(CAST({} AS STRING))", "duckdb": "try(decode({}))"}
"""Bytes as text; null if they are not UTF-8."""


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """`source` is a column, `text(column)`, or an expression that every dialect understands."""

    name: str
    source: str
    meaning: str


@dataclass(frozen=True, slots=True)
class View:
    """`rows` is what follows the columns; `{table}` in it stands for a table of `over`."""

    name: str
    meaning: str
    over: tuple[FieldTable, ...]
    columns: tuple[ViewColumn, ...]
    rows: str

    def select(self, places: Mapping[str, str], *, dialect: Dialect = "spark") -> str:
        """The SELECT in a dialect; `places` maps the names of the tables to what stands for them in SQL."""
        missing = next((table.name for table in self.over if table.name not in places), None)
        if missing is not None:
            raise SettingsError(f"the view {self.name} needs the table {missing}: say where it is")
        columns = ", ".join(f"{_expression(one.source, dialect)} AS {one.name}" for one in self.columns)
        return f"SELECT {columns} {self.rows.format_map(places)}".replace("`", '"' if dialect == "duckdb" else "`")


def _expression(source: str, dialect: Dialect) -> str:
    begin, found, rest = source.partition("text(")
    if not found:
        return source
    column, _, end = rest.partition(")")
    return begin + _TEXT[dialect].format(column) + end


def _same(table: FieldTable, *names: str, of: str = "") -> tuple[ViewColumn, ...]:
    """Columns of a table as they are."""
    meanings = {field.name: field.meaning for field in table.fields}
    return tuple(ViewColumn(f"`{name}`", f"{of}`{name}`", meanings[name]) for name in names)


BRONZE_TEXT = View(
    "bronze_telemetry_text",
    "Bronze with the payload as text. Fields of JSON: get_json_object(text, '$.celsius').",
    (BRONZE,),
    (
        ViewColumn("device_id", "coalesce(device_id, text(`key`))", "the key as text, also of rows of older versions"),
        ViewColumn("`text`", "text(`value`)", "the payload as text; null if it is not UTF-8"),
        *_same(BRONZE, "timestamp", "topic", "log_id", "partition", "offset", "epoch", "client_id", "tenant"),
        *_same(BRONZE, "ingest_date"),
    ),
    "FROM {bronze_telemetry}",
)

OPEN_ACTIONS = View(
    "open_actions",
    "Actions that are not over, with who ordered them and how far they are.",
    (ACTION_STATE, ACTIONS),
    (
        *_same(ACTION_STATE, "action_id", of="s."),
        *_same(ACTIONS, "name", "type", "priority", of="a."),
        *_same(ACTION_STATE, "phase", "message", "targets", "open", "counts", "wave", "waves", "started_at", of="s."),
        *_same(ACTIONS, "deadline", "created_by", "created_at", of="a."),
        *_same(ACTION_STATE, "tenant", of="s."),
    ),
    "FROM {action_state} s LEFT JOIN {actions} a ON a.action_id = s.action_id "
    "WHERE s.`phase` NOT IN ('ENDED', 'REFUSED')",
)

OPEN_TARGETS = View(
    "open_targets",
    "Devices that an action still waits for.",
    (ACTION_TARGETS,),
    _same(
        ACTION_TARGETS,
        *("action_id", "device_id", "attempt", "state", "wave", "progress", "message", "created_at", "since_at"),
        *("log_id", "partition", "offset", "tenant"),
    ),
    "FROM {action_targets} WHERE `state` NOT IN "
    "('SUCCEEDED', 'FAILED', 'REJECTED', 'TIMED_OUT', 'CANCELLED', 'SKIPPED', 'REMOVED')",
)

DEVICES_NOW = View(
    "devices_now",
    "Devices in use, with what they last reported.",
    (DEVICES, DEVICE_STATE),
    (
        *_same(DEVICES, "device_id", "labels", "groups", "time_zone", "log", of="d."),
        *_same(DEVICE_STATE, "last_seen_at", "version", "product", "hardware", of="s."),
        *_same(DEVICE_STATE, "last_action_id", "last_status", "log_id", of="s."),
        *_same(DEVICES, "tenant", of="d."),
    ),
    "FROM {devices} d LEFT JOIN {device_state} s ON s.device_id = d.device_id WHERE d.retired_at IS NULL",
)


def _with_archive(name: str, meaning: str, live: FieldTable, old: FieldTable, key: tuple[str, ...]) -> View:
    """The rows of a table and of its archive. A row with this key that is in both counts once, as it is in the table;
    without a key, equal rows count once."""
    columns = ", ".join(f"`{column}`" for column in live.names)
    rows = f"SELECT {columns} FROM {{{live.name}}} UNION"
    if key:
        same = " AND ".join(f"t.`{column}` = o.`{column}`" for column in key)
        rows += f" ALL SELECT {columns} FROM {{{old.name}}} o"
        rows += f" WHERE NOT EXISTS (SELECT 1 FROM {{{live.name}}} t WHERE {same})"
    else:
        rows += f" SELECT {columns} FROM {{{old.name}}}"
    return View(name, meaning, (live, old), _same(live, *live.names), f"FROM ({rows}) u")


ALL_TARGETS = _with_archive(
    "all_targets",
    "Targets of all actions, also the archived ones.",
    ACTION_TARGETS,
    ACTION_TARGETS_ARCHIVE,
    ("action_id", "device_id"),
)
ALL_REQUESTS = _with_archive(
    "all_requests", "Requests about all actions, also the archived ones.", ACTION_REQUESTS, ACTION_REQUESTS_ARCHIVE, ()
)
ALL_EVENTS = _with_archive(
    "all_events", "All events, also the archived ones.", ACTION_EVENTS, ACTION_EVENTS_ARCHIVE, ("event_id",)
)

VIEWS = (BRONZE_TEXT, OPEN_ACTIONS, OPEN_TARGETS, DEVICES_NOW, ALL_TARGETS, ALL_REQUESTS, ALL_EVENTS)


def create_view(spark: SparkSession, view: View, name: str, places: Mapping[str, str]) -> None:
    """Creates the view in the catalog as `name`, or replaces one of other columns. Only logs if that is not possible,
    such as without the right to create views: no job depends on a view."""
    from pyspark.errors import PySparkException

    names = [column.name.strip("`") for column in view.columns]
    try:
        if spark.catalog.tableExists(name) and spark.table(name).columns == names:
            return
        columns = ", ".join(f"{column.name} COMMENT '{quoted(column.meaning)}'" for column in view.columns)
        head = f"CREATE OR REPLACE VIEW {name} ({columns}) COMMENT '{quoted(view.meaning)}'"
        spark.sql(f"{head} AS {view.select(places)}")
    except PySparkException as error:
        log.warning("there is no view %s: %s", name, str(error).partition("\n")[0])


def temporary_views(spark: SparkSession, places: Mapping[str, str]) -> list[str]:
    """Creates each view whose tables are in `places` (names to paths) as a temporary view of the session; returns their
    names."""
    sources = {name: f"delta.`{path}`" for name, path in places.items()}
    made = [view for view in VIEWS if all(table.name in places for table in view.over)]
    for view in made:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view.name} AS {view.select(sources)}")
    return [view.name for view in made]


def create_views(spark: SparkSession, schema: str, tables: Iterable[FieldTable]) -> None:
    """Creates the views over these tables of the schema."""
    places = {table.name: f"{schema}.{table.name}" for table in tables}
    for view in VIEWS:
        if all(table.name in places for table in view.over):
            create_view(spark, view, f"{schema}.{view.name}", places)
