"""`broker_edge.Broker`: the broker inside this process, and `headwater broker`, the same as a command."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from support.paho_client import PahoClient
from support.programs import headwater, start_headwater

from broker_edge import Broker, Client, ConfigError, Credentials, Row, StartError
from broker_edge.secured_folder import SecuredFolder
from broker_edge.torture.process import BrokerProcess


def test_a_broker_serves_while_it_is_entered_and_keeps_its_log(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, broker.client() as client:
        log_id = broker.log_id
        assert client.version().log_id == log_id
        (place,) = client.produce([Row("a", b"kept")])
        with PahoClient(int(broker.mqtt.rpartition(":")[2]), version="5") as device:
            assert device.publish("a", b"over MQTT").code < 0x80
    with Broker(tmp_path / "data") as broker, broker.client() as client:
        assert broker.log_id == log_id
        table = client.fetch(place.partition, place.offset, place.offset + 2).to_table()
        assert table.column("value").to_pylist() == [b"kept", b"over MQTT"]


def test_the_address_of_a_secured_broker_is_one_with_tls(tmp_path: Path) -> None:
    secured = SecuredFolder(tmp_path / "secured")
    secured.write()
    operator = Credentials(user="operator", password=f"file:{secured.password('operator')}")
    with Broker(config=secured.broker, free_ports=True, settings={"listeners.mqtts.bind": "127.0.0.1:0"}) as broker:
        assert broker.server == f"grpc+tls://{broker.flight}"
        with broker.client(credentials=operator, tls_ca=secured.ca) as client:
            assert client.version().log_id == broker.log_id


def test_two_brokers_run_beside_each_other(tmp_path: Path) -> None:
    with Broker(tmp_path / "one") as one, Broker(tmp_path / "two") as two:
        assert one.log_id != two.log_id
        assert one.mqtt != two.mqtt


def test_wrong_settings_are_a_config_error_that_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.segment_byte"):
        Broker(tmp_path / "data", settings={"log.segment_byte": 1}).start()
    assert not (tmp_path / "data").exists()


def test_a_folder_in_use_is_a_start_error_that_names_it(tmp_path: Path) -> None:
    with Broker(tmp_path / "data"):
        with pytest.raises(StartError, match=re.escape(str(tmp_path / "data"))):
            Broker(tmp_path / "data").start()


def test_a_busy_port_is_a_start_error_that_names_it(broker: BrokerProcess, tmp_path: Path) -> None:
    address = "{}:{}".format(*broker.mqtt)
    with pytest.raises(StartError, match=re.escape(address)):
        Broker(tmp_path / "data", settings={"listeners.mqtt.bind": address}).start()


def test_a_broker_that_was_not_started_says_so(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="not running"):
        _ = Broker(tmp_path / "data").mqtt


def test_stopping_twice_is_harmless_and_starting_again_works(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data").start()
    broker.stop()
    broker.stop()
    with broker.start(), broker.client() as client:
        client.version()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_a_broker_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    free = [f"--set=listeners.{name}.bind=127.0.0.1:0" for name in ("mqtt", "flight", "admin")]
    process = start_headwater("broker", "--set", f"data_dir={tmp_path / 'data'}", *free)
    try:
        assert process.stdout is not None
        found = re.match(r"ready mqtt=\S+ flight=(\S+) admin=\S+", process.stdout.readline())
        assert found is not None
        with Client(found[1]) as client:
            client.version()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, "Traceback" in errors) == (0, False)
    finally:
        process.kill()
        process.communicate()


def test_config_check_names_what_is_wrong(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("log:\n  sync: always\n")
    bad.write_text("log:\n  snyc: always\n")
    assert headwater("config", "check", str(good)).code == 0
    done = headwater("config", "check", str(bad))
    assert (done.code, done.out) == (5, "")
    assert f"{bad}, line 2" in done.err
    (document,) = headwater("config", "check", str(bad), "--json").documents
    assert document["valid"] is False
    assert "snyc" in document["error"]


def test_config_show_gives_the_settings_that_result() -> None:
    shown = headwater(
        "config", "show", "--set", "log.segment_bytes=8MiB", environment={"HEADWATER_LOG__SYNC": "interval"}
    )
    assert shown.code == 0
    assert "8MiB" in shown.out
    assert "interval" in shown.out
    (document,) = headwater("config", "show", "--set", "log.segment_bytes=8MiB", "--json").documents
    assert document["listeners"]["mqtt"]["bind"] == "127.0.0.1:1883"


def test_config_schema_is_the_one_of_the_project() -> None:
    schema = json.loads(headwater("config", "schema").out)
    kept = Path(__file__).resolve().parents[2] / "conf" / "broker.schema.json"
    assert schema == json.loads(kept.read_text())
