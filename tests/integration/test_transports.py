"""paho-mqtt and the Flight client over TLS, client certificates and WebSocket, against the real broker."""

from __future__ import annotations

import queue
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from support.programs import StartBroker
from support.tls_files import Files, new_authority, sign

from broker_edge import Client
from broker_edge.errors import HeadwaterError
from broker_edge.torture.process import Address, BrokerProcess

WAIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return sign(new_authority(tmp_path_factory.mktemp("server"), "server-ca"), "broker")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return sign(new_authority(tmp_path_factory.mktemp("device"), "device-ca"), "dev-7")


@pytest.fixture
def secure(start_broker: StartBroker, server: Files, device: Files) -> BrokerProcess:
    settings = {"listeners.ws.bind": "127.0.0.1:0"}
    for name in ("mqtts", "wss", "flight"):
        settings |= {
            f"listeners.{name}.bind": "127.0.0.1:0",
            f"listeners.{name}.tls.cert": str(server.cert),
            f"listeners.{name}.tls.key": str(server.key),
        }
    for name in ("mqtts", "flight"):
        settings |= {
            f"listeners.{name}.tls.client_ca": str(device.ca),
            f"listeners.{name}.tls.client_auth": "required",
        }
    return start_broker("secure", settings)


@contextmanager
def paho(
    address: Address, transport: Literal["tcp", "websockets"], tls: ssl.SSLContext | None
) -> Iterator[tuple[mqtt.Client, queue.Queue[bytes]]]:
    """A connected client, and the messages that it receives on `t`."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, transport=transport, protocol=mqtt.MQTTv5)
    if tls is not None:
        client.tls_set_context(tls)
    ready: queue.Queue[bool] = queue.Queue()
    received: queue.Queue[bytes] = queue.Queue()
    client.on_connect = lambda *_: client.subscribe("t", qos=1)
    client.on_subscribe = lambda *_: ready.put(True)
    client.on_message = lambda _client, _data, message: received.put(message.payload)
    client.connect("localhost", address[1])
    client.loop_start()
    try:
        ready.get(timeout=WAIT_S)
        yield client, received
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize("listener", ["mqtts", "ws", "wss"])
def test_paho_exchanges_small_and_large_messages(
    secure: BrokerProcess, server: Files, device: Files, listener: str
) -> None:
    context = None if listener == "ws" else ssl.create_default_context(cafile=str(server.ca))
    if listener == "mqtts" and context is not None:
        context.load_cert_chain(device.cert, device.key)
    transport: Literal["tcp", "websockets"] = "tcp" if listener == "mqtts" else "websockets"
    with paho(secure.listener(listener), transport, context) as (client, received):
        for size in (0, 1, 125, 126, 65_535, 300_000):
            payload = bytes(n % 251 for n in range(size))
            client.publish("t", payload, qos=1).wait_for_publish(WAIT_S)
            assert received.get(timeout=WAIT_S) == payload


def test_a_client_without_a_certificate_is_refused(secure: BrokerProcess, server: Files) -> None:
    context = ssl.create_default_context(cafile=str(server.ca))
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.tls_set_context(context)
    lost: queue.Queue[bool] = queue.Queue()
    client.on_connect = lambda *_: pytest.fail("it was let in")
    client.on_disconnect = lambda *_: lost.put(True)
    # With TLS 1.3 a client learns about a rejected certificate only after its own part of the handshake.
    try:
        client.connect("localhost", secure.listener("mqtts")[1])
        client.loop_start()
        lost.get(timeout=WAIT_S)
    except (ssl.SSLError, ConnectionError):
        pass
    finally:
        client.loop_stop()


def test_flight_over_tls_takes_who_has_a_certificate(secure: BrokerProcess, server: Files, device: Files) -> None:
    address = f"grpc+tls://localhost:{secure.flight[1]}"
    with Client(address, timeout_s=WAIT_S, tls_ca=server.ca, tls_cert=device.cert, tls_key=device.key) as client:
        assert client.version().protocol == 1
    with Client(address, timeout_s=2, retries=0, tls_ca=server.ca) as client, pytest.raises(HeadwaterError):
        client.version()
    with Client(address.replace("+tls", ""), timeout_s=2, retries=0) as client, pytest.raises(HeadwaterError):
        client.version()


def test_sighup_reads_certificates_again_and_leaves_connections_alone(
    start_broker: StartBroker, server: Files, tmp_path: Path
) -> None:
    cert, key = tmp_path / "live.crt", tmp_path / "live.key"
    cert.write_bytes(server.cert.read_bytes())
    key.write_bytes(server.key.read_bytes())
    settings = {
        "listeners.mqtts.bind": "127.0.0.1:0",
        "listeners.mqtts.tls.cert": str(cert),
        "listeners.mqtts.tls.key": str(key),
    }
    broker = start_broker("renewed", settings)
    port = broker.listener("mqtts")[1]
    renewed = sign(server.ca, "renewed")
    context = ssl.create_default_context(cafile=str(server.ca))
    with paho(broker.listener("mqtts"), "tcp", context) as (client, received):
        cert.write_bytes(renewed.cert.read_bytes())
        key.write_bytes(renewed.key.read_bytes())
        subprocess.run(["kill", f"-{int(signal.SIGHUP)}", str(broker.pid)], check=True)
        expected = renewed.cert.read_text().strip()
        # Each attempt is a handshake; the test has the deadline.
        while ssl.get_server_certificate(("localhost", port), timeout=WAIT_S).strip() != expected:
            assert broker.is_running
        client.publish("t", b"goes on", qos=1).wait_for_publish(WAIT_S)
        assert received.get(timeout=WAIT_S) == b"goes on"
