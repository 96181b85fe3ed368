"""How a commit of a few rows is written: most of such a Parquet file is otherwise its footer.

The footer has the encodings and statistics of each column. Dictionaries do not pay for a few rows, and Delta keeps the
statistics of those columns only that the table names.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from deltalake import ColumnProperties, DeltaTable, WriterProperties

FEW: Final = 1_000
"""Rows up to which a file is small."""
_NAMED: Final = "delta.dataSkippingStatsColumns"
_COUNT: Final = "delta.dataSkippingNumIndexedCols"


def writer_properties(table: DeltaTable, rows: pa.Table) -> WriterProperties | None:
    """For an append to this table; None: the usual ones. A table without statistics is read only as a whole, and its
    files are small whatever they hold."""
    settings = table.metadata().configuration
    named, is_bare = settings.get(_NAMED), settings.get(_COUNT) == "0"
    if rows.num_rows > FEW and not is_bare:
        return None
    if named is None:
        return WriterProperties(compression="ZSTD", default_column_properties=_PLAIN if is_bare else _COUNTED)
    counted = {name.strip("` "): _COUNTED for name in named.split(",")}
    return WriterProperties(compression="ZSTD", default_column_properties=_PLAIN, column_properties=counted)


_PLAIN: Final = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
_COUNTED: Final = ColumnProperties(dictionary_enabled=False, statistics_enabled="CHUNK")
