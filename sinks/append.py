"""Appends a micro-batch to a Delta table once, however often the batch is replayed.

For `foreachBatch`. Delta remembers the newest version per application id and skips a write that is not newer. It
skips silently, so an id belongs to one step that writes one table: two writes with one id and version lose the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from sinks.errors import SinkError
from sinks.table import Table


def append_once(
    rows: DataFrame,
    table: Table,
    *,
    query_id: str,
    step: str,
    batch_id: int,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> None:
    """Appends `rows` as step `step` of batch `batch_id`; does nothing when that has been done already.

    `query_id` is the id of the checkpoint's query (`spark.sql.streaming` gives it as `query.id`): a new checkpoint is
    a new id.
    """
    if not query_id or not step or ":" in step:
        raise SinkError(
            f"an append needs a query id and the name of a step without a colon, not {query_id!r} and {step!r}"
        )
    writer = (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", f"{query_id}:{step}")
        .option("txnVersion", str(batch_id))
        .options(**(options or {}))
    )
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    table.save(writer)
