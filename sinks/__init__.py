"""Writers of Delta tables. Each makes a replayed batch harmless; none of them decides what is written."""

from sinks.bronze import bronze_rows, duplicates, places_after, write_bronze
from sinks.errors import SinkError
from sinks.table import Table

__all__ = ["SinkError", "Table", "bronze_rows", "duplicates", "places_after", "write_bronze"]
