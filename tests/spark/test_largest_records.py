"""The largest record goes the whole way: MQTT, log, Flight, Spark, a row of bronze, byte for byte.

HEADWATER_RECORD_BYTES is the size of its payload; `make test-long` takes 100 MB. Its topic has 65,535 bytes, the most
that MQTT can express.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.programs import headwaterd

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess
from pipelines.settings import Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry

PAYLOAD_BYTES = int(os.environ.get("HEADWATER_RECORD_BYTES", str(4_000_000)))
TOPIC = "devices/" + "d" * (65_535 - len("devices//telemetry")) + "/telemetry"
WAIT_S = 120
_MIB = 1 << 20
_ROOM = str(PAYLOAD_BYTES + _MIB)
SETTINGS = {
    "mqtt.max_packet_bytes": _ROOM,
    "mqtt.receive_budget_bytes": str(4 * PAYLOAD_BYTES + 64 * _MIB),
    "flight.max_message_bytes": str(2 * PAYLOAD_BYTES + 64 * _MIB),
    "flight.read_budget_bytes": str(8 * PAYLOAD_BYTES + 128 * _MIB),
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    headwaterd()
    with BrokerProcess(data_dir=tmp_path / "log", log_file=tmp_path / "broker.txt", settings=SETTINGS) as process:
        process.start()
        yield process


def publish(broker: BrokerProcess, payload: bytes) -> None:
    """Returns when the broker has acknowledged it, at QoS 1."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.connect(*broker.mqtt)
    client.loop_start()
    try:
        sent = client.publish(TOPIC, payload, qos=1)
        sent.wait_for_publish(WAIT_S)
        assert sent.is_published()
    finally:
        client.disconnect()
        client.loop_stop()


def test_the_largest_record_reaches_bronze_byte_for_byte(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    assert len(TOPIC) == 65_535
    payload = random.Random(PAYLOAD_BYTES).randbytes(PAYLOAD_BYTES)
    digest = hashlib.sha256(payload).hexdigest()
    publish(broker, payload)
    address = "grpc://{}:{}".format(*broker.flight)
    with Client(address) as client:
        (number,) = (n for n, place in client.offsets().partitions.items() if place.high_watermark > 0)
        (batch,) = client.fetch(number, 0, 1)
        assert hashlib.sha256(batch.column("value")[0].as_py()).hexdigest() == digest
        assert batch.column("topic")[0].as_py() == TOPIC
    telemetry = TelemetrySettings(table_path=str(tmp_path / "bronze"), checkpoint=str(tmp_path / "checkpoint"))
    query = start_telemetry(spark, Settings(servers=[address], telemetry=telemetry), available_now=True)
    query.awaitTermination()
    table = DeltaTable(tmp_path / "bronze").to_pyarrow_table(columns=["topic", "value", "device_id"])
    assert table.num_rows == 1
    assert hashlib.sha256(table.column("value")[0].as_py()).hexdigest() == digest
    assert table.column("topic")[0].as_py() == TOPIC
    assert table.column("device_id")[0].as_py() == "d" * (65_535 - 18)
