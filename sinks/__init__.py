"""Writers of Delta tables, and the tables' contents. Each writer makes a replayed batch harmless; none decides what is
written. Modules that need Spark are imported on first use, because the tables of actions are written without Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from broker_edge.errors import SinkError
from sinks.orphans import orphans, sweep_orphans

if TYPE_CHECKING:
    from sinks.bronze import WriteHow, bronze_rows, duplicates, places_after, write_bronze, write_bronze_files
    from sinks.table import Table

__all__ = [
    "SinkError",
    "Table",
    "WriteHow",
    "bronze_rows",
    "duplicates",
    "orphans",
    "places_after",
    "sweep_orphans",
    "write_bronze",
    "write_bronze_files",
]


# Not for type checkers, which would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in ("bronze", "errors", "table"):
            return importlib.import_module(f"sinks.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module("sinks.table" if name == "Table" else "sinks.bronze"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
