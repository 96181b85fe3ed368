"""Writers of Delta tables. Each makes a replayed batch harmless; none of them decides what is written."""

from sinks.bronze import WriteHow, bronze_rows, duplicates, places_after, write_bronze, write_bronze_files
from sinks.errors import SinkError
from sinks.orphans import orphans, sweep_orphans
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
