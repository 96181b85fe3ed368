"""The tables of actions and devices: their columns, who writes them, and how they are made.

People insert into `actions` and `action_requests` and own `devices`; jobs write the others, each table by one job. All
have `tenant` (null means `default`) and a change data feed. None is clustered, because a writer without a JVM cannot
append to a clustered table, and none has deletion vectors, so that every reader can read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from broker_edge.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_TENANT = "default"

PROPERTIES: Mapping[str, str] = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "false"}


@dataclass(frozen=True, slots=True)
class Column:
    """`type` is a Spark SQL type; `comment` is what people see in the catalog."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`key` names the columns that are unique, where the writer keeps them so."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([(column.name, _ARROW[column.type]) for column in self.columns])

    def ddl(self) -> str:
        """The columns for `CREATE TABLE` or `from_json`."""
        return ", ".join(
            f"`{c.name}` {c.type}" + (f" COMMENT '{_quoted(c.comment)}'" if c.comment else "") for c in self.columns
        )


_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<string,int>": pa.map_(pa.string(), pa.int32()),
}

_TENANT = Column("tenant", "string", "who owns the row; null means default")

ACTIONS = Table(
    "actions",
    "What devices shall do. People insert, nobody updates: the first committed row of an action_id counts.",
    (
        Column("action_id", "string", "chosen by whoever inserts; unique, without a slash"),
        _TENANT,
        Column("type", "string", "command (the default), or ota: install artifact_name artifact_version"),
        Column("name", "string", "which command, for example echo"),
        Column("params", "string", "a JSON object for the command"),
        Column("device_ids", "array<string>", "selects these devices; all selectors given must hold"),
        Column("labels", "map<string,string>", "selects devices that have all of these labels"),
        Column("percentage", "double", "selects this share by a hash of action_id and device_id, 0.01 to 100"),
        Column("groups", "array<string>", "selects devices that are in any of these groups"),
        Column("label_expression", "string", "selects by labels: site = roof and not (fw in (1.2, 1.3) or old)"),
        Column("membership", "string", "static (default), or dynamic: devices come and go while the action runs"),
        Column("waves", "string", "JSON: who goes first, and when the next may"),
        Column("needs_approval", "boolean", "nothing is sent before somebody else than created_by approves"),
        Column("rate_per_minute", "int", "commands in any 60 seconds"),
        Column("max_in_flight", "int", "devices between command and final state"),
        Column("abort_percentage", "double", "more than this share of those that ended, in error, stops the action"),
        Column("abort_min_reported", "int", "but not before so many have ended"),
        Column("not_before", "timestamp", "nothing is sent before"),
        Column("maintenance_window", "string", "Mon-Fri 22:00-06:00, by the clock of the device: sent only then"),
        Column("timeout_queued_s", "int", "seconds until the device must have taken the command"),
        Column("timeout_delivered_s", "int", "seconds from there until it must have begun"),
        Column("timeout_in_progress_s", "int", "seconds from the beginning to the end"),
        Column("timeout_step_s", "int", "seconds between two reports of progress"),
        Column("retries", "int", "further attempts after FAILED or TIMED_OUT"),
        Column("retry_backoff_s", "int", "seconds before the first of them, doubled each time"),
        Column("priority", "int", "higher first; default 0"),
        Column("depends_on", "array<string>", "actions in which the device must have succeeded first"),
        Column("artifact_name", "string", "ota: what to install"),
        Column("artifact_version", "string", "ota"),
        Column("mode", "string", "ota: forced (default), soft, download_only"),
        Column("supersede", "boolean", "ota: cancel older open ones on the devices of this one"),
        Column("requires_versions", "array<string>", "ota: the device must run one of these"),
        Column("target_version", "string", "ota: what the device must name; default artifact_version"),
        Column("deadline", "timestamp", "when every target that is still open times out"),
        Column("created_by", "string"),
        Column("created_at", "timestamp"),
    ),
    key=("action_id",),
)

ACTION_REQUESTS = Table(
    "action_requests",
    "What people want changed in a running action. People insert; the engine answers in action_events.",
    (
        Column("request_id", "string", "unique"),
        _TENANT,
        Column("action_id", "string"),
        Column("device_id", "string", "null: all targets of the action"),
        Column("kind", "string", "pause, resume, cancel, force, retry, approve"),
        Column("by", "string"),
        Column("at", "timestamp"),
        Column("reason", "string"),
    ),
    key=("request_id",),
)

DEVICES = Table(
    "devices",
    "The devices, as people describe them.",
    (
        Column("device_id", "string", "also the MQTT client id"),
        _TENANT,
        Column("labels", "map<string,string>", "what actions select by"),
        Column("groups", "array<string>"),
        Column("time_zone", "string", "an IANA name, for example Europe/Berlin"),
    ),
    key=("device_id",),
)

ARTIFACTS = Table(
    "artifacts",
    "What may be installed, and where. People insert, or `headwater artifacts`; the bytes are in the brokers' logs.",
    (
        Column("name", "string"),
        Column("version", "string"),
        _TENANT,
        Column("size_bytes", "bigint"),
        Column("sha256", "string", "hexadecimal, lower case"),
        Column("signature", "string", "ed25519 over the manifest, Base64 or hexadecimal"),
        Column("key_id", "string", "which key signed it"),
        Column("labels", "map<string,string>", "devices must have all of these; null: any device"),
        Column("device_ids", "array<string>", "only these devices; null: any device"),
        Column("created_by", "string"),
        Column("created_at", "timestamp"),
    ),
    key=("tenant", "name", "version"),
)

DEVICE_STATE = Table(
    "device_state",
    "What is known of each device from its statuses. Written by the action engine alone.",
    (
        Column("device_id", "string"),
        _TENANT,
        Column("last_seen_at", "timestamp", "the broker's time of the newest status of the device"),
        Column("boot", "string", "the run of the device that was seen last"),
        Column("version", "string", "the firmware that it runs, by its own word"),
        Column("last_action_id", "string", "what its newest status of an action was about"),
        Column("last_status", "string", "and said"),
        Column("log_id", "string"),
        Column("partition", "int"),
        Column("offset", "bigint", "the place of the newest status of the device"),
        Column("updated_at", "timestamp"),
    ),
    key=("device_id",),
)

ACTION_TARGETS = Table(
    "action_targets",
    "One row per action and device. Written by the action engine alone.",
    (
        Column("action_id", "string"),
        _TENANT,
        Column("device_id", "string"),
        Column("attempt", "int"),
        Column(
            "state",
            "string",
            "PENDING, QUEUED, DELIVERED, ACCEPTED, IN_PROGRESS, CANCELLING; final: SUCCEEDED, FAILED, REJECTED, "
            "TIMED_OUT, CANCELLED, SKIPPED, REMOVED",
        ),
        Column("wave", "int", "which wave of the rollout it belongs to, from 0"),
        Column("outbox", "string", "command, cancel or force while that record is owed to the device, else null"),
        Column("mode", "string", "ota: how the device was asked to install"),
        Column("forced", "boolean", "somebody forced it"),
        Column("leaving", "boolean", "becomes REMOVED once its cancel is in the log"),
        Column("claimed", "boolean", "it said that it succeeded; the version that proves it is awaited"),
        Column("retry_at", "timestamp", "not to be sent before"),
        Column("sent_at", "timestamp", "by the engine's clock: owed, then in the log"),
        Column("begun_at", "timestamp", "by the engine's clock: first seen in progress"),
        Column("partition", "int", "where the log has the command"),
        Column("offset", "bigint", "where the log has the command"),
        Column("created_at", "timestamp"),
        Column("queued_at", "timestamp"),
        Column("delivered_at", "timestamp"),
        Column("accepted_at", "timestamp"),
        Column("started_at", "timestamp"),
        Column("finished_at", "timestamp"),
        Column("since_at", "timestamp", "when the engine last saw it move or report; timeouts count from here"),
        Column("progress", "int", "percent"),
        Column("message", "string"),
        Column("result", "string", "JSON, from the device"),
        Column("late", "boolean", "it succeeded after it had timed out"),
        Column("boot", "string", "of the last status"),
        Column("seq", "bigint", "of the last status within that boot"),
        Column("report_log_id", "string", "the place of the last status"),
        Column("report_partition", "int"),
        Column("report_offset", "bigint"),
        Column("updated_at", "timestamp"),
    ),
    key=("action_id", "device_id"),
)

ACTION_STATE = Table(
    "action_state",
    "One row per action: how far it is. Written by the action engine alone.",
    (
        Column("action_id", "string"),
        _TENANT,
        Column("phase", "string", "RUNNING, PAUSED, WAITING_APPROVAL, STOPPING; over: ENDED, REFUSED"),
        Column("message", "string", "one sentence"),
        Column("targets", "int"),
        Column("open", "int", "targets that are not final"),
        Column("counts", "map<string,int>", "targets by state"),
        Column("started_at", "timestamp"),
        Column("ended_at", "timestamp"),
        Column("digest", "string", "names the row of actions that counts"),
        Column("requests_done", "array<string>", "the requests that have been handled"),
        Column("wave", "int", "the wave that is open, from 0; -1: none yet"),
        Column("waves", "int", "how many there are"),
        Column("gate_at", "timestamp", "since when the open wave has its successes"),
        Column("approved", "int", "the highest wave that somebody let begin"),
        Column("stopped", "string", "why nothing more is sent, for good"),
        Column("forced", "boolean"),
        Column("sent", "map<string,int>", "commands by Unix second, of the last minute; kept where there is a rate"),
        Column("updated_at", "timestamp"),
    ),
    key=("action_id",),
)

ACTION_EVENTS = Table(
    "action_events",
    "Everything that devices, brokers and the engine said about actions. Append-only: the audit trail.",
    (
        Column("event_id", "string", "unique: the place of the record, or the cause of what the engine says"),
        _TENANT,
        Column("source", "string", "status (device), receipt (broker), engine"),
        Column("action_id", "string"),
        Column("device_id", "string"),
        Column("attempt", "int"),
        Column("state", "string"),
        Column("request_id", "string", "the request that the engine answers"),
        Column("boot", "string"),
        Column("seq", "bigint"),
        Column("progress", "int"),
        Column("message", "string"),
        Column("result", "string", "JSON"),
        Column("version", "string", "the firmware that the device runs"),
        Column("device_time", "timestamp", "by the clock of the device; never used for order"),
        Column("command_partition", "int", "receipt: where the log has the command"),
        Column("command_offset", "bigint"),
        Column("log_id", "string", "the place of the record that said it"),
        Column("partition", "int"),
        Column("offset", "bigint"),
        Column("epoch", "bigint"),
        Column("at", "timestamp", "when the broker appended the record, or the engine spoke"),
        Column("recorded_at", "timestamp", "when the row was made"),
    ),
    key=("event_id",),
)

QUARANTINE = Table(
    "quarantine",
    "Records that could not be used, with the reason. Append-only.",
    (
        _TENANT,
        Column("pipeline", "string", "who put it here: status, actions, silver/<message schema>"),
        Column("reason", "string", "one sentence"),
        Column("topic", "string"),
        Column("key", "binary"),
        Column("value", "binary"),
        Column("log_id", "string"),
        Column("partition", "int"),
        Column("offset", "bigint"),
        Column("epoch", "bigint"),
        Column("at", "timestamp", "when the broker appended the record"),
        Column("quarantined_at", "timestamp"),
    ),
    key=("log_id", "partition", "offset", "epoch", "pipeline"),
)

INGEST_GAPS = Table(
    "ingest_gaps",
    "Offsets that readers had to do without, as the brokers reported them. Append-only.",
    (
        _TENANT,
        Column("log_id", "string"),
        Column("partition", "int", "the partition with the gap"),
        Column("partition_name", "string", "<class>-<n>"),
        Column("start", "bigint", "the first offset that is gone"),
        Column("end", "bigint", "the first offset behind the gap; null where nobody could tell"),
        Column("reason", "string", "retention, damage, purge, or a reader's own words"),
        Column("consumer_group", "string", "who had not read them; null: nobody in particular"),
        Column("reported_at", "timestamp", "by the broker's clock"),
        Column("report_log_id", "string", "the log that has the report, and with it its offset there"),
        Column("report_offset", "bigint"),
        Column("recorded_at", "timestamp", "when the row was made"),
    ),
    key=("report_log_id", "report_offset"),
)

DQ_RESULTS = Table(
    "dq_results",
    "What the quality rules found: of every batch by count, of samples by the suite. Append-only.",
    (
        _TENANT,
        Column("source", "string", "batch: every row of a batch; suite: a sample of the table"),
        Column("message", "string", "the message schema"),
        Column("rule", "string"),
        Column("column", "string"),
        Column("check", "string"),
        Column("on_fail", "string", "quarantine or warn"),
        Column("success", "boolean"),
        Column("checked", "bigint", "rows that were judged"),
        Column("failed", "bigint", "rows that broke the rule; null from the suite, which only says yes or no"),
        Column("query_id", "string", "the streaming query of a batch"),
        Column("batch_id", "bigint"),
        Column("at", "timestamp", "when the row was made"),
    ),
)

BESIDE_SILVER = (INGEST_GAPS, DQ_RESULTS, QUARANTINE)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        ACTIONS,
        ACTION_REQUESTS,
        DEVICES,
        ARTIFACTS,
        DEVICE_STATE,
        ACTION_TARGETS,
        ACTION_STATE,
        ACTION_EVENTS,
        QUARANTINE,
    )
}

_SCHEMA_NAME = re.compile(r"\w+(\.\w+)?")


def uri_of(root: Path | str, name: str) -> str:
    """Where the table `name` lies under `root`, a folder or an object store address."""
    return f"{str(root).rstrip('/')}/{name}"


def create_by_path(
    root: Path | str, *, storage_options: Mapping[str, str] | None = None, tables: Iterable[Table] = TABLES.values()
) -> None:
    """Make every table that is not there yet under `root`, and add the columns that one of an older version lacks.

    Needs no JVM. What is in the tables stays as it is.
    """
    for table in tables:
        uri = uri_of(root, table.name)
        options = dict(storage_options) if storage_options else None
        if DeltaTable.is_deltatable(uri, storage_options=options):
            add_missing_columns(DeltaTable(uri, storage_options=options), table)
            continue
        fields = [_field(column) for column in table.columns]
        DeltaTable.create(
            uri,
            schema=Schema(fields),
            mode="ignore",
            name=table.name,
            description=table.comment,
            configuration=dict(PROPERTIES),
            storage_options=options,
        )


def add_missing_columns(there: DeltaTable, table: Table) -> None:
    """Give a table that an older version made the columns that it lacks; a commit only where there are any."""
    known = {field.name for field in there.schema().fields}
    missing = [_field(column) for column in table.columns if column.name not in known]
    if missing:
        there.alter.add_columns(missing)


def create_by_name(
    spark: SparkSession, schema: str, *, root: Path | str | None = None, tables: Iterable[Table] = TABLES.values()
) -> None:
    """Make every table that is not there yet in `schema` (`schema` or `catalog.schema`), which must exist.

    With `root` the tables are external ones under it: tables that `create_by_path` made there get their names.
    """
    if not _SCHEMA_NAME.fullmatch(schema):
        raise SettingsError(f"{schema!r} is not a schema; write schema or catalog.schema")
    for table in tables:
        if root is not None and DeltaTable.is_deltatable(uri_of(root, table.name)):
            # What is there has its schema and properties; naming it must not ask for others.
            text = f"CREATE TABLE IF NOT EXISTS {schema}.{table.name} USING DELTA"
        else:
            properties = ", ".join(f"'{key}' = '{value}'" for key, value in PROPERTIES.items())
            text = f"CREATE TABLE IF NOT EXISTS {schema}.{table.name} ({table.ddl()}) USING DELTA"
            text += f" COMMENT '{_quoted(table.comment)}' TBLPROPERTIES ({properties})"
        if root is not None:
            text += f" LOCATION '{_quoted(uri_of(root, table.name))}'"
        spark.sql(text)


def _field(column: Column) -> Any:
    arrow = pa.field(column.name, _ARROW[column.type])
    metadata = {"comment": column.comment} if column.comment else None
    return Field(column.name, Field.from_arrow(arrow).type, nullable=True, metadata=metadata)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
