"""The tables of devices: as people describe them, what they may install, and what their statuses said."""

from __future__ import annotations

from broker_edge.fields import Field, FieldTable
from sinks.tables.tenant import TENANT

DEVICES = FieldTable(
    "devices",
    "The devices, as people describe them.",
    "people",
    (
        Field("device_id", "string", "also the MQTT client id", nullable=False),
        TENANT,
        Field("labels", "map<string,string>", "what actions select by"),
        Field("groups", "array<string>"),
        Field("time_zone", "string", "an IANA name, for example Europe/Berlin"),
    ),
    key=("device_id",),
)

ARTIFACTS = FieldTable(
    "artifacts",
    "What may be installed, and where. People insert, or `headwater artifacts`; the bytes are in the brokers' logs.",
    "people, and `headwater artifacts push`",
    (
        Field("name", "string", nullable=False),
        Field("version", "string", nullable=False),
        TENANT,
        Field("size_bytes", "bigint", nullable=False),
        Field("sha256", "string", "hexadecimal, lower case", nullable=False),
        Field("signature", "string", "ed25519 over the manifest, Base64 or hexadecimal"),
        Field("key_id", "string", "which key signed it"),
        Field("labels", "map<string,string>", "devices must have all of these; null: any device"),
        Field("device_ids", "array<string>", "only these devices; null: any device"),
        Field("created_by", "string"),
        Field("created_at", "timestamp"),
    ),
    key=("tenant", "name", "version"),
)

DEVICE_STATE = FieldTable(
    "device_state",
    "What is known of each device from its statuses. Written by the action engine alone.",
    "the action engine",
    (
        Field("device_id", "string", nullable=False),
        TENANT,
        Field("last_seen_at", "timestamp", "the broker's time of the newest status of the device"),
        Field("boot", "string", "the run of the device that was seen last"),
        Field("version", "string", "the firmware that it runs, by its own word"),
        Field("last_action_id", "string", "what its newest status of an action was about"),
        Field("last_status", "string", "and said"),
        Field("log_id", "string"),
        Field("partition", "int"),
        Field("offset", "bigint", "the place of the newest status of the device"),
        Field("updated_at", "timestamp"),
    ),
    key=("device_id",),
)
