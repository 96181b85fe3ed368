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

import importlib
from typing import TYPE_CHECKING

from broker_edge.errors import (
    DataLossError,
    FencedError,
    OffsetError,
    OptionError,
    RefusedError,
    UnavailableError,
)
from broker_edge.extras import needed
from broker_edge.moved import old_names

with needed("the Spark source"):
    import pyspark  # noqa: F401  # First, because its extra has all that the others need.

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
    "SourceError",
    "SourceOptions",
    "Split",
    "UnavailableError",
    "gap_rows",
    "parse_options",
    "read_split",
    "register",
    "reported_gaps",
]

if TYPE_CHECKING:
    from broker_edge.errors import HeadwaterError as SourceError
else:
    _old_name = old_names(__name__)

    def __getattr__(name: str) -> object:
        return importlib.import_module(f"sources.{name}") if name in ("errors", "flight") else _old_name(name)
