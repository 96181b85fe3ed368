"""The id of a query where its foreachBatch function runs: in this process, or as a copy at a Spark Connect server."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from broker_edge.errors import SettingsError, SinkError
from pipelines import telemetry
from pipelines.settings import Settings
from sinks.connect import QueryId, StartedQueryId, StoredQueryId, is_connect
from sinks.table import Table

STORED = '{"id":"6f1c6b9e-0000-4000-8000-000000000001"}'


class Reads:
    """A session that reads these lines, and counts."""

    def __init__(self, *lines: str) -> None:
        self.read, self.sparkSession, self.lines = self, self, lines
        self.paths: list[str] = []

    def text(self, path: str) -> Reads:
        self.paths.append(path)
        return self

    def collect(self) -> list[tuple[str]]:
        return [(line,) for line in self.lines]


def test_a_copy_at_the_server_reads_the_id_from_the_checkpoint_once() -> None:
    copy: StoredQueryId = pickle.loads(pickle.dumps(StoredQueryId("s3a://b/checkpoint/")))
    batch: Any = Reads(STORED)
    assert copy.within(batch) == copy.within(batch) == "6f1c6b9e-0000-4000-8000-000000000001"
    assert batch.paths == ["s3a://b/checkpoint/metadata"]


@pytest.mark.parametrize("lines", [[], ["{}"], ["not json"]])
def test_a_checkpoint_that_spark_did_not_write_is_one_sentence(lines: list[str]) -> None:
    batch: Any = Reads(*lines)
    with pytest.raises(SinkError, match="c/metadata is not what Spark writes there"):
        StoredQueryId("c").within(batch)


def test_in_this_process_the_id_is_that_of_the_started_query() -> None:
    found = QueryId.of(Reads(), "c")
    assert isinstance(found, StartedQueryId)
    query: Any = SimpleNamespace(id="abc")
    found.started(query)
    assert found.within(Reads()) == "abc"


def test_control_the_future_of_this_process_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(StartedQueryId())


def test_a_connect_session_is_known_by_its_module() -> None:
    connect: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert is_connect(connect)
    assert isinstance(QueryId.of(connect, "c"), StoredQueryId)
    assert not is_connect(Reads())


def test_a_sync_of_the_servers_folder_is_refused_and_not_the_default() -> None:
    connect: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    table = Table.at("/data/bronze")
    assert not telemetry._syncs(connect, Settings(), table)
    wanted = Settings.model_validate({"bronze": {"sync": True}})
    with pytest.raises(SettingsError, match=r"bronze\.sync does not work over Spark Connect"):
        telemetry._syncs(connect, wanted, table)
    here: Any = Reads()
    assert telemetry._syncs(here, wanted, table)
    assert telemetry._syncs(here, Settings(), table)
