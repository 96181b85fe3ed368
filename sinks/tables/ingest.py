"""The companion tables of silver: unusable records, lost offsets, results of quality rules."""

from __future__ import annotations

from broker_edge.fields import Field, FieldTable
from sinks.tables.tenant import TENANT

QUARANTINE = FieldTable(
    "quarantine",
    "Unusable records, with the reason. Old rows of the status job and the engine move to its archive.",
    "the jobs status, silver and gaps, and the action engine",
    (
        TENANT,
        Field("pipeline", "string", "the writer: status, actions, gaps, silver/<message schema>", nullable=False),
        Field("reason", "string", "one sentence", nullable=False),
        Field("topic", "string", "the MQTT topic"),
        Field("key", "binary", "the key of the record"),
        Field("value", "binary", "the payload"),
        Field("log_id", "string", "the log of the record", nullable=False),
        Field("partition", "int", "the global number of the partition", nullable=False),
        Field("offset", "bigint", "the position in the partition", nullable=False),
        Field("epoch", "bigint", "epoch of the record; null in rows of the action engine"),
        Field("at", "timestamp", "when the broker appended the record"),
        Field("quarantined_at", "timestamp", "when the row was created", nullable=False),
    ),
    key=("log_id", "partition", "offset", "epoch", "pipeline"),
)

QUARANTINE_ARCHIVE = FieldTable(
    "quarantine_archive",
    "Old rows of quarantine that the status job and the action engine wrote. Written only by the action engine.",
    "the action engine",
    QUARANTINE.fields,
    key=QUARANTINE.key,
)

INGEST_GAPS = FieldTable(
    "ingest_gaps",
    "Lost offsets that the brokers reported. Append-only.",
    "the job gaps",
    (
        TENANT,
        Field("log_id", "string", "the log with the gap"),
        Field("partition", "int", "the partition with the gap", nullable=False),
        Field("partition_name", "string", "<class>-<n>"),
        Field("start", "bigint", "first lost offset", nullable=False),
        Field("end", "bigint", "first offset after the gap; null if unknown"),
        Field("reason", "string", "retention, damage, purge, or a reader's own text"),
        Field("consumer_group", "string", "group that had not read them; null: no specific group"),
        Field("reported_at", "timestamp", "by the broker's clock"),
        Field("report_log_id", "string", "log of the report, whose offset follows", nullable=False),
        Field("report_offset", "bigint", "offset of the report", nullable=False),
        Field("broker", "string", "the broker that told it: its name in the settings, without one its address"),
        Field("recorded_at", "timestamp", "when the row was created", nullable=False),
    ),
    key=("report_log_id", "report_offset"),
)

DQ_RESULTS = FieldTable(
    "dq_results",
    "Results of the quality rules: counts of every batch, and results of the suite on samples. Append-only.",
    "the jobs silver and quality",
    (
        TENANT,
        Field("source", "string", "batch: every row of a batch; suite: a sample of the table", nullable=False),
        Field("message", "string", "the message schema", nullable=False),
        Field("rule", "string", "name of the rule", nullable=False),
        Field("column", "string", "checked column"),
        Field("check", "string", "kind of the check"),
        Field("on_fail", "string", "quarantine or warn"),
        Field("success", "boolean", "whether no row broke the rule", nullable=False),
        Field("checked", "bigint", "checked rows"),
        Field("failed", "bigint", "rows that broke the rule; null from the suite, which only gives success"),
        Field("query_id", "string", "streaming query of the batch"),
        Field("batch_id", "bigint", "number of the batch in that query"),
        Field("at", "timestamp", "when the row was created", nullable=False),
    ),
)

BESIDE_SILVER = (INGEST_GAPS, DQ_RESULTS, QUARANTINE)
