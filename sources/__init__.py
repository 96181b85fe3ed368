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

import warnings

from broker_edge.errors import (
    DataLossError,
    FencedError,
    HeadwaterError,
    OffsetError,
    OptionError,
    RefusedError,
    UnavailableError,
)
from sources.gaps import ReportedGap, gap_rows, reported_gaps
from sources.listener import JsonLines, Lag, LagListener, PrometheusFile
from sources.options import SourceOptions, parse_options
from sources.source import HeadwaterDataSource, register
from sources.splits import Split, read_split

__all__ = [
    "DataLossError",
    "FencedError",
    "HeadwaterDataSource",
    "JsonLines",
    "Lag",
    "LagListener",
    "OffsetError",
    "OptionError",
    "PrometheusFile",
    "RefusedError",
    "ReportedGap",
    "SourceOptions",
    "Split",
    "UnavailableError",
    "gap_rows",
    "parse_options",
    "read_split",
    "register",
    "reported_gaps",
]


def __getattr__(name: str) -> object:
    if name == "SourceError":
        message = "sources.SourceError is now broker_edge.HeadwaterError; the next release removes the old name"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return HeadwaterError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
