"""I9: a micro-batch reads the same rows whenever it is read, or fails with the offsets that are gone.

The stream reader as Spark calls it, against the real broker: the batch is planned once and read again after the log has
grown, was killed, was damaged, and had records purged.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from support.programs import StartBroker, headwaterd, run
from support.source_driver import open_reader, read_rows, through_json

from broker_edge import Client, Row
from broker_edge.errors import DataLossError
from broker_edge.torture.process import BrokerProcess

SEED = 20_261_123
Rows = list[dict[str, Any]]


def location(broker: BrokerProcess) -> str:
    return "grpc://{}:{}".format(*broker.flight)


def publish(broker: BrokerProcess, values: Sequence[str]) -> None:
    """A record for each value, in batches of 1 to 20, of ten devices."""
    chance = random.Random(SEED + len(values))
    left = [Row(topic=f"devices/d{chance.randrange(10)}/telemetry", value=value.encode()) for value in values]
    with Client(location(broker), timeout_s=60) as client:
        while left:
            several = chance.randint(1, 20)
            client.produce(left[:several])
            left = left[several:]


def plan(broker: BrokerProcess, limit: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Start and end of the first batch, as the checkpoint has them."""
    reader = open_reader(location(broker))
    start = through_json(reader.initialOffset())
    return start, through_json(reader.latestOffset(start, ReadMaxRows(limit)))


def read(broker: BrokerProcess, batch: tuple[dict[str, Any], dict[str, Any]], **options: str) -> Rows:
    """The rows of the batch by a new reader, in the order of the log."""
    rows = read_rows(open_reader(location(broker), **options), *batch)
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_i9_a_batch_reads_the_same_rows_after_new_records_kills_and_clean_stops(start_broker: StartBroker) -> None:
    broker = start_broker()
    publish(broker, [f"first {n}" for n in range(300)])
    batch = plan(broker, 200)
    rows = read(broker, batch)
    assert 150 < len(rows) <= 200
    for end in (broker.kill, broker.stop, broker.kill):
        publish(broker, [f"later {n}" for n in range(100)])
        assert read(broker, batch) == rows
        end()
        broker.start()
        assert read(broker, batch) == rows


def test_i9_a_batch_with_damaged_records_fails_with_their_offsets(start_broker: StartBroker) -> None:
    broker = start_broker()
    publish(broker, [f"payload {n:04}" for n in range(200)])
    batch = plan(broker, 200)
    rows = read(broker, batch)
    damaged = rows[len(rows) // 3]
    broker.stop()
    (segment,) = [path for path in broker.data_dir.glob("telemetry-*/*.seg") if damaged["value"] in path.read_bytes()]
    whole = bytearray(segment.read_bytes())
    whole[whole.index(damaged["value"])] ^= 1
    segment.write_bytes(whole)
    broker.start()
    with pytest.raises(DataLossError, match=f"partition {damaged['partition']}") as error:
        read(broker, batch)
    lost = error.value.start, error.value.end
    assert lost[0] <= damaged["offset"] < lost[1]
    # With consent the others come: exactly those that are not in the gap.
    left = [row for row in rows if row["partition"] != damaged["partition"] or not lost[0] <= row["offset"] < lost[1]]
    assert read(broker, batch, failOnDataLoss="false") == left != rows


def test_i9_a_batch_with_purged_records_fails_with_their_offsets(start_broker: StartBroker) -> None:
    broker = start_broker()
    publish(broker, [f"payload {n:04}" for n in range(200)])
    batch = plan(broker, 200)
    rows = read(broker, batch)
    broker.stop()
    purged = run(headwaterd(), "log", "purge", str(broker.data_dir), "--device", "d3")
    assert purged.code == 0, purged.err
    broker.start()
    with pytest.raises(DataLossError):
        read(broker, batch)
    left = [row for row in rows if row["topic"] != "devices/d3/telemetry"]
    assert read(broker, batch, failOnDataLoss="false") == left != rows
