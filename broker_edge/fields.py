"""Field tables: each table of headwater is declared once, as a list of fields, and everything else derives from it.

The Arrow schema, the SQL of `CREATE TABLE`, the Spark schema (`sources.schema`), the checks of readers and
docs/reference/tables.md derive from a declaration. Values only: no table is opened here. `RECORD` is the only table
that the broker itself serves; `sinks.tables` declares the Delta tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker_edge.extras import needed

with needed("a table"):
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Field:
    """A column. `type` is a Spark SQL type; `meaning` is its comment in the catalog and its line in the documentation.

    `nullable=False` means that the writer always gives a value. Delta still declares every column nullable, because
    readers compare declarations, and a table of an older version has rows without the columns that were added later.
    """

    name: str
    type: str
    meaning: str = ""
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class FieldTable:
    """A table. `key` names the columns that together are unique, if the writer ensures that."""

    name: str
    meaning: str
    written_by: str
    fields: tuple[Field, ...]
    key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([(field.name, ARROW[field.type]) for field in self.fields])

    def ddl(self) -> str:
        """The columns for `CREATE TABLE` or `from_json`."""
        return ", ".join(column_sql(one) for one in self.fields)


HEADERS = "array<struct<key:string,value:binary>>"

ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<string,int>": pa.map_(pa.string(), pa.int32()),
    HEADERS: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
}
"""The Arrow type of each possible type of a field."""

RECORD = FieldTable(
    "records",
    "Records as the broker serves them over Flight and Spark sees them.",
    "the broker",
    (
        Field("key", "binary", "the routing level of the topic, or the key given to DoPut", nullable=False),
        Field("value", "binary", "the payload", nullable=False),
        Field("topic", "string", "the MQTT topic", nullable=False),
        Field("partition", "int", "the global number of the partition", nullable=False),
        Field("offset", "bigint", "the position in the partition", nullable=False),
        Field("timestamp", "timestamp", "when the broker appended the record", nullable=False),
        Field("timestampType", "int", "1 (log append time)", nullable=False),
        Field("headers", HEADERS, "null without headers; see protocols.md, section 3, for their names"),
        Field("log_id", "string", "the log of the record", nullable=False),
        Field("epoch", "bigint", "grows with each start of the broker", nullable=False),
        Field("qos", "tinyint", "QoS of the publish", nullable=False),
        Field("retain", "boolean", "retain flag of the publish", nullable=False),
        Field("client_id", "string", "the publisher", nullable=False),
    ),
    key=("log_id", "partition", "offset", "epoch"),
)
"""The canonical schema of docs/protocols.md, section 3."""


def column_sql(field: Field) -> str:
    """The definition of a column in Spark SQL, with its comment."""
    return f"`{field.name}` {field.type}{comment(field.meaning)}"


def comment(text: str) -> str:
    """The COMMENT clause of a column definition, or an empty string."""
    return f" COMMENT '{quoted(text)}'" if text else ""


def quoted(text: str) -> str:
    """Escapes a text for use within single quotes in Spark SQL.

    Before Spark parses a statement it substitutes `${…}` by settings, system properties and the environment, even
    within quotes. A text may name a field that a device chose, so `${` is taken apart.
    """
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$\\{")
