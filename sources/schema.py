"""The columns that Flight serves and Spark sees: docs/protocols.md, "Canonical schema". Nothing is converted here.

All columns are declared nullable on both sides, because Spark compares the declarations; only `headers` is ever null.
"""

from __future__ import annotations

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

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

_COLUMNS: tuple[tuple[str, DataType, pa.DataType], ...] = (
    ("key", BinaryType(), pa.binary()),
    ("value", BinaryType(), pa.binary()),
    ("topic", StringType(), pa.string()),
    ("partition", IntegerType(), pa.int32()),
    ("offset", LongType(), pa.int64()),
    ("timestamp", TimestampType(), pa.timestamp("us", tz="UTC")),
    ("timestampType", IntegerType(), pa.int32()),
    (
        "headers",
        ArrayType(_HEADER),
        pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ),
    ("log_id", StringType(), pa.string()),
    ("epoch", LongType(), pa.int64()),
    ("qos", ByteType(), pa.int8()),
    ("retain", BooleanType(), pa.bool_()),
    ("client_id", StringType(), pa.string()),
)

COLUMN_NAMES = tuple(name for name, _, _ in _COLUMNS)


def spark_schema(*, include_headers: bool) -> StructType:
    """The columns of a DataFrame; `headers` only on request, as in Kafka."""
    return StructType([StructField(name, kind) for name, kind, _ in _COLUMNS if include_headers or name != "headers"])


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The same columns in the Arrow types that Spark expects."""
    return pa.schema([(name, kind) for name, _, kind in _COLUMNS if include_headers or name != "headers"])
