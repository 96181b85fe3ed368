"""What differs over Spark Connect: there is no `sparkContext`, and a function of foreachBatch runs at the server, as a
copy, where it cannot wait for what this process learns later."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_edge.errors import SinkError

_START_S = 60.0
"""The first batch may begin before `start` has returned the query, and with it the id of the checkpoint."""


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


class QueryId:
    """The id of a query for its own foreachBatch function: the same for the life of a checkpoint."""

    @staticmethod
    def of(spark: SparkSession, checkpoint: str) -> StartedQueryId | StoredQueryId:
        return StoredQueryId(checkpoint) if is_connect(spark) else StartedQueryId()


class StartedQueryId:
    """Known once the query has started in this process."""

    def __init__(self) -> None:
        self._id: Future[str] = Future()

    def started(self, query: StreamingQuery) -> None:
        self._id.set_result(str(query.id))

    def within(self, batch: DataFrame) -> str:
        return self._id.result(_START_S)


@dataclass(slots=True)
class StoredQueryId:
    """Read from the checkpoint, where Spark writes it before the first batch. Can be sent to the server."""

    checkpoint: str
    _id: str | None = field(default=None)

    def started(self, query: StreamingQuery) -> None:
        """Nothing: the copy at the server does not hear of it."""

    def within(self, batch: DataFrame) -> str:
        if self._id is None:
            path = f"{self.checkpoint.rstrip('/')}/metadata"
            lines = [row[0] for row in batch.sparkSession.read.text(path).collect()]
            try:
                self._id = str(json.loads("".join(lines))["id"])
            except (ValueError, KeyError, TypeError) as error:
                raise SinkError(f"{path} is not what Spark writes there: start with another checkpoint") from error
        return self._id
