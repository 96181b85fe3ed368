"""The columns that Flight serves and Spark sees: docs/protocols.md, "Canonical schema". Nothing is converted here.

All columns are declared nullable on both sides, because Spark compares the declarations; only `headers` is ever null.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker_edge.fields import HEADERS, RECORD, FieldTable

_SPARK: Mapping[str, DataType] = {
    "string": StringType(),
    "tinyint": ByteType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}

COLUMN_NAMES = RECORD.names


def struct_of(table: FieldTable) -> StructType:
    """The Spark schema of a field table. Spark's own parser of types needs a session, and workers have none."""
    return StructType([StructField(field.name, _SPARK[field.type]) for field in table.fields])


def spark_schema(*, include_headers: bool) -> StructType:
    """The columns of a DataFrame; `headers` only on request, as in Kafka."""
    return StructType([field for field in struct_of(RECORD).fields if include_headers or field.name != "headers"])


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The same columns in the Arrow types that Spark expects."""
    return pa.schema([field for field in RECORD.arrow_schema() if include_headers or field.name != "headers"])
