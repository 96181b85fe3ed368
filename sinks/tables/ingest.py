"""The tables beside silver: records that could not be used, offsets that are gone, results of quality rules."""

from __future__ import annotations

from broker_edge.fields import Field, FieldTable
from sinks.tables.tenant import TENANT

QUARANTINE = FieldTable(
    "quarantine",
    "Records that could not be used, with the reason. Append-only.",
    "the jobs status, silver and gaps, and the action engine",
    (
        TENANT,
        Field("pipeline", "string", "who put it here: status, actions, silver/<message schema>", nullable=False),
        Field("reason", "string", "one sentence", nullable=False),
        Field("topic", "string"),
        Field("key", "binary"),
        Field("value", "binary"),
        Field("log_id", "string", nullable=False),
        Field("partition", "int", nullable=False),
        Field("offset", "bigint", nullable=False),
        Field("epoch", "bigint"),
        Field("at", "timestamp", "when the broker appended the record"),
        Field("quarantined_at", "timestamp", nullable=False),
    ),
    key=("log_id", "partition", "offset", "epoch", "pipeline"),
)

INGEST_GAPS = FieldTable(
    "ingest_gaps",
    "Offsets that readers had to do without, as the brokers reported them. Append-only.",
    "the job gaps",
    (
        TENANT,
        Field("log_id", "string"),
        Field("partition", "int", "the partition with the gap", nullable=False),
        Field("partition_name", "string", "<class>-<n>"),
        Field("start", "bigint", "the first offset that is gone", nullable=False),
        Field("end", "bigint", "the first offset behind the gap; null where nobody could tell"),
        Field("reason", "string", "retention, damage, purge, or a reader's own words"),
        Field("consumer_group", "string", "who had not read them; null: nobody in particular"),
        Field("reported_at", "timestamp", "by the broker's clock"),
        Field("report_log_id", "string", "the log that has the report, and with it its offset there", nullable=False),
        Field("report_offset", "bigint", nullable=False),
        Field("recorded_at", "timestamp", "when the row was made", nullable=False),
    ),
    key=("report_log_id", "report_offset"),
)

DQ_RESULTS = FieldTable(
    "dq_results",
    "What the quality rules found: of every batch by count, of samples by the suite. Append-only.",
    "the jobs silver and quality",
    (
        TENANT,
        Field("source", "string", "batch: every row of a batch; suite: a sample of the table", nullable=False),
        Field("message", "string", "the message schema", nullable=False),
        Field("rule", "string", nullable=False),
        Field("column", "string"),
        Field("check", "string"),
        Field("on_fail", "string", "quarantine or warn"),
        Field("success", "boolean", nullable=False),
        Field("checked", "bigint", "rows that were judged"),
        Field("failed", "bigint", "rows that broke the rule; null from the suite, which only says yes or no"),
        Field("query_id", "string", "the streaming query of a batch"),
        Field("batch_id", "bigint"),
        Field("at", "timestamp", "when the row was made", nullable=False),
    ),
)

BESIDE_SILVER = (INGEST_GAPS, DQ_RESULTS, QUARANTINE)
