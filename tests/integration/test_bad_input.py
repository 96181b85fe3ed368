"""Each mistake of an operator gives one clear sentence that names the cause, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paho_client import PahoClient
from support.programs import Ended, StartBroker, headwater, headwaterd, run

from broker_edge import Client, Row
from broker_edge.torture.process import BrokerProcess

OTHER_LOG_ID = "0b9f6a70-1111-4222-8333-944444444444"
LISTENERS = ("mqtt", "flight", "admin")


def start_refused(folder: Path, *settings: str, config: Path | None = None) -> Ended:
    """Starts a broker that cannot start, on free ports unless a setting says otherwise."""
    free = [f"listeners.{name}.bind=127.0.0.1:0" for name in LISTENERS]
    pairs = [f"data_dir={folder}", *free, *settings]
    arguments = [] if config is None else ["--config", str(config)]
    done = run(headwaterd(), *arguments, *(word for pair in pairs for word in ("--set", pair)))
    assert "panicked" not in done.err
    assert "ready" not in done.out
    return done


def sentence(done: Ended) -> str:
    """The last line of the output, which says what is wrong."""
    assert done.err, done
    return done.err.splitlines()[-1]


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_busy_port_is_named(broker: BrokerProcess, tmp_path: Path, listener: str) -> None:
    host, port = getattr(broker, listener)
    done = start_refused(tmp_path / "second", f"listeners.{listener}.bind={host}:{port}")
    assert done.code == 1
    assert f"{host}:{port}" in sentence(done)
    assert f"listeners.{listener}.bind" in sentence(done)
    with Client("grpc://{}:{}".format(*broker.flight)) as client:
        client.version()


def test_an_unknown_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    done = start_refused(tmp_path / "data", "listeners.mqt.bind=127.0.0.1:0")
    assert done.code == 5
    assert "listeners.mqt" in sentence(done)
    assert "mqtt" in sentence(done)
    assert not (tmp_path / "data").exists()


def test_an_unknown_key_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text("log:\n  sync: always\n  segment_byte: 1MiB\n")
    done = start_refused(tmp_path / "data", config=config)
    assert done.code == 5
    assert f"{config}, line 3" in sentence(done)
    assert "segment_byte" in sentence(done)
    assert "segment_bytes" in sentence(done)


def test_a_value_out_of_range_is_named_with_its_limits(tmp_path: Path) -> None:
    done = start_refused(tmp_path / "data", "log.segment_bytes=1KiB")
    assert done.code == 5
    assert "log.segment_bytes" in sentence(done)
    assert "64KiB" in sentence(done)


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    done = start_refused(tmp_path / "data", config=tmp_path / "nowhere.yaml")
    assert done.code == 1
    assert str(tmp_path / "nowhere.yaml") in sentence(done)


def test_a_folder_of_another_log_is_left_alone(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("first")
    with Client("grpc://{}:{}".format(*broker.flight)) as client:
        log_id = client.version().log_id
        (place,) = client.produce([Row("a", b"kept")])
    broker.stop()
    done = start_refused(broker.data_dir, f"log.id={OTHER_LOG_ID}")
    assert done.code in (1, 5)
    assert log_id in sentence(done)
    assert OTHER_LOG_ID in sentence(done)
    assert str(broker.data_dir) in sentence(done)
    broker.start()
    with Client("grpc://{}:{}".format(*broker.flight)) as client:
        table = client.fetch(place.partition, place.offset, place.offset + 1).to_table()
        assert table.column("value").to_pylist() == [b"kept"]


def test_a_folder_in_use_is_named(broker: BrokerProcess) -> None:
    done = start_refused(broker.data_dir)
    assert done.code == 1
    assert str(broker.data_dir) in sentence(done)
    with PahoClient(broker.mqtt[1], version="5") as pub:
        assert pub.publish("a", b"still here").code < 0x80


def test_a_data_dir_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = start_refused(tmp_path / "file")
    assert done.code in (1, 5)
    assert str(tmp_path / "file") in sentence(done)
    assert (tmp_path / "file").read_text() == "mine"


def test_listening_beyond_loopback_needs_a_word_from_the_operator(tmp_path: Path) -> None:
    done = start_refused(tmp_path / "data", "listeners.mqtt.bind=0.0.0.0:0")
    assert done.code == 5
    assert "allow_anonymous" in sentence(done)


@pytest.mark.parametrize(
    "command",
    [("topics",), ("offsets",), ("groups",), ("tail",), ("pub", "a", "b"), ("sub", "a")],
    ids=lambda command: command[0],
)
def test_a_broker_that_is_down_is_named_by_every_command(broker: BrokerProcess, command: tuple[str, ...]) -> None:
    mqtt, server = "{}:{}".format(*broker.mqtt), "grpc://{}:{}".format(*broker.flight)
    broker.stop()
    done = headwater(*command, environment={"HEADWATER_MQTT": mqtt, "HEADWATER_SERVER": server})
    assert (done.code, done.out) == (3, "")
    assert done.err.count("\n") == 1
    assert (mqtt if command[0] in ("pub", "sub") else server) in done.err
