"""The tables of devices: their descriptions by users, the artifacts that they may install, and their reported state."""

from __future__ import annotations

from broker_edge.fields import Field, FieldTable
from sinks.tables.tenant import TENANT

DEVICES = FieldTable(
    "devices",
    "The devices, described by users.",
    "users",
    (
        Field("device_id", "string", "also the MQTT client id", nullable=False),
        TENANT,
        Field("labels", "map<string,string>", "labels by which actions select"),
        Field("groups", "array<string>", "groups by which actions select"),
        Field("time_zone", "string", "an IANA name, for example Europe/Berlin"),
        Field("log", "string", "log id or broker name through which it is reached; null: where it last reported"),
        Field("created_by", "string", "who inserted the row"),
        Field("created_at", "timestamp", "when the row was inserted"),
        Field("updated_by", "string", "who changed it last"),
        Field("updated_at", "timestamp", "when it was last changed"),
        Field("retired_at", "timestamp", "since when no action selects it; null: in use"),
    ),
    key=("device_id",),
)

SELECTORS = FieldTable(
    "selectors",
    "Saved selectors of actions. The newest row of a name counts.",
    "`headwater devices select`",
    (
        Field("name", "string", "the selector's name", nullable=False),
        TENANT,
        Field("device_ids", "array<string>", "these devices; a device must match all criteria given"),
        Field("labels", "map<string,string>", "devices that have all of these labels"),
        Field("groups", "array<string>", "devices that are in any of these groups"),
        Field("label_expression", "string", "by labels, as in actions"),
        Field("reported_expression", "string", "by reports, as in actions"),
        Field("percentage", "double", "this share by a hash of action_id and device_id"),
        Field("created_by", "string", "who saved it"),
        Field("created_at", "timestamp", "when it was saved"),
        Field("removed_at", "timestamp", "since when the name stands for nothing; null: it counts"),
    ),
    key=("tenant", "name"),
)

ARTIFACTS = FieldTable(
    "artifacts",
    "Artifacts, and the devices that may install them. Users insert, or `headwater actions offer`; the bytes are in "
    "the brokers' logs.",
    "users, and `headwater actions offer`",
    (
        Field("name", "string", "the artifact's name", nullable=False),
        Field("version", "string", "the artifact's version, which is final", nullable=False),
        TENANT,
        Field("size_bytes", "bigint", "size of the content", nullable=False),
        Field("sha256", "string", "hexadecimal, lower case", nullable=False),
        Field("signature", "string", "ed25519 over the manifest, Base64 or hexadecimal"),
        Field("key_id", "string", "id of the signing key"),
        Field("labels", "map<string,string>", "devices must have all of these; null: any device"),
        Field("device_ids", "array<string>", "only these devices; null: any device"),
        Field("created_by", "string", "who inserted the row"),
        Field("created_at", "timestamp", "when the row was inserted"),
        Field("withdrawn_at", "timestamp", "since when no command for it is sent; null: it may be installed"),
        Field("withdrawn_by", "string", "who withdrew it"),
        Field("reason", "string", "why it was withdrawn"),
    ),
    key=("tenant", "name", "version"),
)

DEVICE_STATE = FieldTable(
    "device_state",
    "The last known state of each device, from its statuses. Written only by the action engine.",
    "the action engine",
    (
        Field("device_id", "string", "the device", nullable=False),
        TENANT,
        Field("last_seen_at", "timestamp", "the broker's time of the device's newest status"),
        Field("boot", "string", "boot id of the device's newest run"),
        Field("version", "string", "firmware version that the device reports"),
        Field("product", "string", "product that the device reports to be"),
        Field("hardware", "string", "hardware id that the device reports"),
        Field("last_action_id", "string", "action of its newest status about an action"),
        Field("last_status", "string", "state in that status"),
        Field("log_id", "string", "log of the device's newest status"),
        Field("partition", "int", "partition of that status"),
        Field("offset", "bigint", "offset of the device's newest status"),
        Field("updated_at", "timestamp", "when the engine last changed the row"),
    ),
    key=("device_id",),
)
