"""The source's options against the real broker, without Spark: each has its effect, and a broker with TLS is read with
credentials that appear in no output.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from support.ports import free_port
from support.programs import StartBroker, headwaterd, run
from support.source_driver import Query, open_reader, places, read_rows
from support.tls_files import new_authority, sign

from broker_edge import Client, Row
from broker_edge.errors import OptionError, RefusedError, UnavailableError
from broker_edge.torture.process import BrokerProcess
from sources.options import parse_options
from sources.splits import Split, read_split
from sources.stream import StreamReader

PASSWORD = "correct-horse-battery"


@pytest.fixture(autouse=True)
def without_idle_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 0.0)


def location(broker: BrokerProcess) -> str:
    return "grpc://{}:{}".format(*broker.flight)


def publish(broker: BrokerProcess, *topics: str, count: int = 1) -> None:
    with Client(location(broker)) as client:
        client.produce([Row(topic=topic, value=b"%d" % n) for n in range(count) for topic in topics])


def test_a_pattern_is_matched_by_the_broker_and_takes_topics_that_come_later(broker: BrokerProcess) -> None:
    publish(broker, "devices/a1/telemetry", "devices/b1/telemetry", "devices/a1/status")
    query = Query(location(broker), subscribePattern=r"devices/a\d+/tele.*")
    assert [row["topic"] for row in query.drain()] == ["devices/a1/telemetry"]
    publish(broker, "devices/a22/telemetry", "devices/xa2/telemetry")
    assert [row["topic"] for row in query.drain()] == ["devices/a22/telemetry"]
    with pytest.raises(RefusedError, match="is not a pattern of topics"):
        open_reader(location(broker), subscribePattern="(?=a)").initialOffset()


def test_limits_count_what_matches(broker: BrokerProcess) -> None:
    query = Query(location(broker), minOffsetsPerTrigger="30", maxOffsetsPerTrigger="40", maxTriggerDelay="1h")
    publish(broker, "devices/d1/telemetry")
    assert len(query.batch()) == 1
    publish(broker, "devices/d1/telemetry", "devices/d2/status", count=29)
    assert query.batch() == []
    publish(broker, "devices/d1/telemetry", count=50)
    assert [len(query.batch()), len(query.batch())] == [40, 39]


def test_ranges_are_cut_and_handed_on(broker: BrokerProcess) -> None:
    publish(broker, *(f"devices/d{n}/telemetry" for n in range(20)), count=50)
    rows = Query(location(broker)).drain()
    reader = open_reader(location(broker), maxRecordsPerPartition="100", **{"yield": "splits"})
    start = reader.initialOffset()
    splits = read_rows(reader, start, Query(location(broker)).plan()[1])
    assert len(splits) >= 10
    assert max(split["end"] - split["start"] for split in splits) <= 100
    options = parse_options({"servers": location(broker), "subscribe": "devices/+/telemetry"})
    read = [row for split in splits for batch in read_split(Split.of(split), options) for row in batch.to_pylist()]
    assert read == rows


def test_a_time_after_the_newest_record_follows_the_strategy(broker: BrokerProcess) -> None:
    publish(broker, "devices/d1/telemetry", count=5)
    late = {"startingTimestamp": "2100-01-01T00:00:00Z", "consumerGroup": "g"}
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy=latest"):
        open_reader(location(broker), **late).initialOffset()
    query = Query(location(broker), startingOffsetsByTimestampStrategy="latest", **late)
    assert query.batch() == []
    publish(broker, "devices/d1/telemetry", count=3)
    assert len(query.drain()) == 3


def test_retries_outlast_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker("one", {"listeners.flight.bind": f"127.0.0.1:{free_port()}"})
    publish(broker, "devices/d1/telemetry", count=5)
    server = location(broker)
    broker.kill()
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        open_reader(server, **{"fetchOffset.numRetries": "0"}).initialOffset()
    patient = {"fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "100"}
    with pytest.raises(UnavailableError):
        open_reader(server, **patient).initialOffset()
    assert time.monotonic() - began >= 0.3
    broker.start()
    assert open_reader(server, **patient).initialOffset()["logs"]


def test_a_retired_log_is_on_record_at_another_broker(start_broker: StartBroker) -> None:
    kept, gone = start_broker("kept"), start_broker("gone")
    for broker in (kept, gone):
        publish(broker, "devices/d1/telemetry", count=10)
    query = Query(location(kept), location(gone), consumerGroup="g")
    query.drain()
    with Client(location(gone)) as client:
        log_id = client.version().log_id
    gone.kill()
    query._servers, query._options = (location(kept),), {"consumerGroup": "g", "retireLogs": log_id}
    query.restart()
    publish(kept, "devices/d1/telemetry", count=4)
    assert len(query.drain()) == 4
    assert log_id not in query.ends[-1]["logs"]
    gaps = open_reader(location(kept), subscribe="$gaps")
    rows = read_rows(gaps, gaps.initialOffset(), Query(location(kept), subscribe="$gaps").plan()[1])
    found = [json.loads(row["value"]) for row in rows]
    assert {(gap["log_id"], gap["end"], gap["group"]) for gap in found} == {(log_id, None, "g")}
    assert 10 in {gap["start"] for gap in found}


def test_a_broker_on_a_copy_of_another_log_does_not_take_its_place(start_broker: StartBroker, tmp_path: Path) -> None:
    of_north, of_south = ({"listeners.flight.bind": f"127.0.0.1:{free_port()}"} for _ in range(2))
    north = start_broker("north", of_north)
    publish(north, "devices/d1/telemetry", count=10)
    north.kill()
    shutil.copytree(tmp_path / "north", tmp_path / "liar")
    north.start()
    south = start_broker("south", of_south)
    publish(south, "devices/d2/telemetry", count=10)
    names = json.dumps({location(broker): {"name": name} for name, broker in (("south", south), ("north", north))})
    query = Query(location(south), location(north), access=names)
    assert len(query.drain()) == 20
    north.kill()
    south.kill()
    liar = start_broker("liar", of_south)
    publish(liar, "devices/d1/telemetry", count=50)
    query.restart()
    with pytest.raises(UnavailableError, match=r"south says that it holds log .* which belongs to north") as told:
        query.batch()
    assert "set its log_id" in str(told.value)
    north.start()
    publish(north, "devices/d1/telemetry", count=5)
    assert len(query.drain()) == 5, "those of north alone"
    assert len(places(query.rows)) == len(set(places(query.rows))) == 25


def test_a_broker_behind_tls_is_read_with_certificate_and_password(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, device = (sign(new_authority(tmp_path, f"{name}-ca"), name) for name in ("broker", "spark"))
    users, acl = tmp_path / "users", tmp_path / "acl"
    acl.write_text("user ann\ntopic readwrite #\ntopic replay #\n")
    (tmp_path / "password").write_text(PASSWORD)
    added = run(headwaterd(), "users", "add", str(users), "ann", stdin=f"{PASSWORD}\n")
    assert added.code == 0, added.err
    broker = start_broker(
        "secure",
        {
            "auth.password_file": str(users),
            "auth.acl_file": str(acl),
            "listeners.flight.tls.cert": str(server.cert),
            "listeners.flight.tls.key": str(server.key),
            "listeners.flight.tls.client_ca": str(device.ca),
            "listeners.flight.tls.client_auth": "required",
        },
    )
    address = f"grpc+tls://localhost:{broker.flight[1]}"
    monkeypatch.setenv("SPARK_KEY", device.key.read_text())
    tls = {"tls.ca": f"file:{server.ca}", "tls.cert": f"file:{device.cert}", "tls.key": "env:SPARK_KEY"}
    who = {"user": "ann", "password": f"file:{tmp_path / 'password'}"}
    options = {"servers": address, "subscribe": "devices/#", "pollTimeoutMs": "1000", **tls, **who}
    reader = StreamReader(parse_options(options))
    assert reader.initialOffset()["logs"]
    assert PASSWORD not in repr(reader._options)

    def refusal(**more: str) -> str:
        with pytest.raises((RefusedError, UnavailableError, OptionError)) as error:
            StreamReader(parse_options({**options, **more})).initialOffset()
        return str(error.value)

    monkeypatch.setenv("WRONG", "hunter2-wrong")
    message = refusal(password="env:WRONG")
    assert "unauthenticated" in message
    assert "hunter2" not in message
    assert "tls.key: env:WRONG contains no PEM block" in refusal(**{"tls.key": "env:WRONG"})
    assert "cannot read" in refusal(**{"tls.ca": f"file:{tmp_path / 'nowhere'}"})
    assert "cannot reach" in refusal(**{"tls.ca": f"file:{device.ca}"})
    assert "on Databricks only" in refusal(password="secret:scope/key")
