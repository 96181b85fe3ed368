"""The tables that hold records: bronze as they arrived, silver with the fields of their payloads."""

from __future__ import annotations

from dataclasses import replace

from broker_edge.fields import RECORD, Field, FieldTable

DEVICE_ID = Field("device_id", "string", "`key` as text; null if that is not UTF-8, or an older version wrote the row")

BRONZE = FieldTable(
    "bronze_telemetry",
    "Every record as received.",
    "the job telemetry",
    (
        RECORD.fields[0],
        DEVICE_ID,
        *RECORD.fields[1:],
        Field("tenant", "string", "owner of the record", nullable=False),
        Field("ingest_date", "date", "the UTC day of `timestamp`", nullable=False),
    ),
    key=RECORD.key,
    partitioned_by=("ingest_date",),
)

_RESCUED = Field("_rescued_data", "string", "JSON: fields without a column")

SILVER = FieldTable(
    "silver_<schema>",
    "One row per record that matches its message schema. The fields of the schema come before `_rescued_data`.",
    "the job silver",
    (
        Field("tenant", "string", "owner of the record", nullable=False),
        Field(
            "device_id", "string", "from the topic at `device_level` of the message schema, otherwise the record's key"
        ),
        Field(
            "event_time",
            "timestamp",
            "time of measurement from the payload, otherwise when the broker received it",
            nullable=False,
        ),
        Field("topic", "string", "the MQTT topic", nullable=False),
        Field("log_id", "string", "log of the record", nullable=False),
        Field("partition", "int", "the global number of the partition", nullable=False),
        Field("offset", "bigint", "the position in the partition", nullable=False),
        Field("epoch", "bigint", "grows with each start of the broker", nullable=False),
        Field("ingest_time", "timestamp", "when the broker appended the record", nullable=False),
        Field("ingest_date", "date", "the UTC day of `ingest_time`", nullable=False),
        _RESCUED,
    ),
    key=RECORD.key,
    partitioned_by=("ingest_date",),
)
"""The columns that every silver table has; no field of a message schema may use their names."""


def silver_table(name: str, fields: tuple[Field, ...]) -> FieldTable:
    """The table of one message schema, with its `fields`."""
    head = tuple(field for field in SILVER.fields if field is not _RESCUED)
    return replace(SILVER, name=name, fields=(*head, *fields, _RESCUED))
