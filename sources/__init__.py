"""The Spark data source `headwater`: reads the logs of brokers by offset, as streams and in batches.

from sources import register

register(spark)
rows = (
    spark.readStream.format("headwater")
    .option("servers", "grpc://127.0.0.1:8815")
    .option("subscribe", "devices/+/telemetry")
    .load()
)
"""

from sources.errors import (
    DataLossError,
    FencedError,
    OffsetError,
    OptionError,
    RefusedError,
    SourceError,
    UnavailableError,
)
from sources.source import HeadwaterDataSource, register

__all__ = [
    "DataLossError",
    "FencedError",
    "HeadwaterDataSource",
    "OffsetError",
    "OptionError",
    "RefusedError",
    "SourceError",
    "UnavailableError",
    "register",
]
