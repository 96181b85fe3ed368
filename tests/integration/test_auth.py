"""Users, permissions and tokens of the real broker, with common clients: paho, pyarrow and the command."""

from __future__ import annotations

import base64
import http.client
import json
import os
import queue
import signal
import subprocess
import time
from pathlib import Path

import paho.mqtt.client as paho
import pyarrow.flight as flight
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from support.programs import StartBroker, headwaterd

from broker_edge import Client, Credentials, RefusedError
from broker_edge.torture.process import BrokerProcess

WAIT_S = 60.0
ACL = """
user ann
topic readwrite plants/1/#
topic replay plants/1/#
user root
operator
topic replay #
"""


def users(verb: str, *words: str, password: str = "") -> subprocess.CompletedProcess[str]:
    """`headwaterd users …`, the program behind `headwater users`."""
    return subprocess.run(
        [headwaterd(), "users", verb, *words], input=f"{password}\n", text=True, capture_output=True, timeout=60
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for user, password in (("ann", "pw-a"), ("root", "pw-r")):
        added = users("add", str(tmp_path / "users"), user, password=password)
        assert added.returncode == 0, added.stderr
    (tmp_path / "acl").write_text(ACL)
    return tmp_path


@pytest.fixture
def broker(start_broker: StartBroker, files: Path) -> BrokerProcess:
    return start_broker(settings={"auth.password_file": str(files / "users"), "auth.acl_file": str(files / "acl")})


class Paho:
    """One connection of paho whose callbacks end in queues."""

    def __init__(self, broker: BrokerProcess, user: str | None, password: str | None, *, v5: bool = True) -> None:
        self.codes: queue.Queue[int] = queue.Queue()
        self.granted: queue.Queue[int] = queue.Queue()
        self.acked: queue.Queue[int] = queue.Queue()
        self.ended: queue.Queue[int] = queue.Queue()
        self.messages: queue.Queue[bytes] = queue.Queue()
        version = paho.MQTTv5 if v5 else paho.MQTTv311
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False)
        if user is not None:
            self.paho.username_pw_set(user, password)
        self.paho.on_connect = lambda _c, _u, _f, reason, _p: self.codes.put(reason.value)
        self.paho.on_subscribe = lambda _c, _u, _m, reasons, _p: self.granted.put(reasons[0].value)
        self.paho.on_publish = lambda _c, _u, _m, reason, _p: self.acked.put(reason.value)
        self.paho.on_disconnect = lambda _c, _u, _f, reason, _p: self.ended.put(reason.value)
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message.payload)
        host, port = broker.mqtt
        self.paho.connect(host, port)
        self.paho.loop_start()
        self.code = self.codes.get(timeout=WAIT_S)

    def subscribe(self, filter_: str) -> int:
        self.paho.subscribe(filter_, qos=1)
        return self.granted.get(timeout=WAIT_S)

    def publish(self, topic: str, payload: bytes) -> int:
        self.paho.publish(topic, payload, qos=1)
        return self.acked.get(timeout=WAIT_S)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def test_good_credentials_are_let_in_and_bad_ones_refused_alike(broker: BrokerProcess) -> None:
    good = Paho(broker, "ann", "pw-a")
    assert good.code == 0
    assert good.subscribe("plants/1/#") == 1
    assert good.subscribe("plants/2/#") == 0x87
    assert good.publish("plants/1/x", b"1") == 0
    assert good.messages.get(timeout=WAIT_S) == b"1"
    assert good.publish("plants/2/x", b"2") == 0x87
    good.close()
    for user, password in (("ann", "wrong"), ("nobody", "pw-a")):
        assert Paho(broker, user, password).code == 0x86
    assert Paho(broker, None, None).code == 0x87
    # paho translates return code 5 of 3.1.1 to the number in MQTT 5.
    assert Paho(broker, "ann", "wrong", v5=False).code == 0x87


def test_generated_passwords_let_devices_in(broker: BrokerProcess, files: Path) -> None:
    made = users("generate", str(files / "users"), password="ann\ndev-1")
    assert made.returncode == 0, made.stderr
    passwords = dict(line.split(":") for line in made.stdout.splitlines())
    assert sorted(passwords) == ["ann", "dev-1"]
    assert passwords["ann"] != passwords["dev-1"]
    os.kill(broker.pid, signal.SIGHUP)
    deadline = time.monotonic() + WAIT_S
    while (device := Paho(broker, "dev-1", passwords["dev-1"])).code != 0:
        assert time.monotonic() < deadline, "the broker has not read its files again"
    device.close()
    assert Paho(broker, "ann", passwords["ann"]).code == 0
    # One password per user: the old one no longer works, and other users keep theirs.
    assert Paho(broker, "ann", "pw-a").code == 0x86
    assert Paho(broker, "root", "pw-r").code == 0
    refused = users("generate", str(files / "users"), password="a:b")
    assert refused.returncode == 4
    assert "colon" in refused.stderr
    assert users("verify", str(files / "users"), "ann", password=passwords["ann"]).returncode == 0


def test_a_user_who_is_removed_is_gone_with_the_next_sighup(broker: BrokerProcess, files: Path) -> None:
    ann = Paho(broker, "ann", "pw-a")
    assert users("remove", str(files / "users"), "ann").returncode == 0
    os.kill(broker.pid, signal.SIGHUP)
    assert ann.ended.get(timeout=WAIT_S) == 0x98
    assert Paho(broker, "ann", "pw-a").code == 0x86
    assert Paho(broker, "root", "pw-r").code == 0


def test_flight_takes_the_same_users(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = Paho(broker, "ann", "pw-a")
    assert ann.publish("plants/1/x", b"1") == 0x10
    ann.close()
    server = "grpc://{}:{}".format(*broker.flight)
    monkeypatch.setenv("PW", "pw-a")
    with Client(server, credentials=Credentials(user="ann", password="env:PW")) as client:
        assert [topic.topic for topic in client.topics()] == ["plants/1/x"]
        with pytest.raises(RefusedError, match="operator"):
            client.remove_group("g")
    with Client(server, retries=0) as client, pytest.raises(RefusedError, match="credentials"):
        client.topics()
    with flight.FlightClient(server) as plain:
        header = plain.authenticate_basic_token("ann", "pw-a")
        options = flight.FlightCallOptions(headers=[header], timeout=WAIT_S)
        answers = list(plain.do_action(flight.Action("topics", b"{}"), options))
        assert json.loads(answers[0].body.to_pybytes())["topics"][0]["topic"] == "plants/1/x"


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_a_token_is_a_password_until_it_expires(start_broker: StartBroker, files: Path) -> None:
    # The key comes from openssl, so that this test needs no library.
    key, public = files / "key.pem", files / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)], check=True)
    broker = start_broker(settings={"auth.token.keys_file": str(public), "auth.acl_file": str(files / "acl")})

    def token(life_s: float) -> str:
        signed = f"{_part({'alg': 'EdDSA'})}.{_part({'sub': 'ann', 'exp': int(time.time() + life_s)})}"
        (files / "signed").write_text(signed)
        sign = ["openssl", "pkeyutl", "-sign", "-inkey", str(key), "-rawin", "-in", str(files / "signed")]
        tag = subprocess.run(sign, check=True, capture_output=True).stdout
        return f"{signed}.{base64.urlsafe_b64encode(tag).decode().rstrip('=')}"

    assert Paho(broker, "x", token(-10)).code == 0x86
    ann = Paho(broker, "x", token(2))
    assert ann.code == 0
    assert ann.subscribe("plants/1/#") == 1
    assert ann.ended.get(timeout=WAIT_S) == 0xA0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root edits the password file of another user")
def test_a_password_file_that_root_edits_still_belongs_to_the_user_of_the_broker(files: Path) -> None:
    file = files / "users"
    os.chown(file, 65_534, 65_533)
    assert users("remove", str(file), "ann").returncode == 0
    assert users("add", str(file), "eve", password="pw-e").returncode == 0
    found = file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65_534, 65_533, 0o600)


def test_a_call_with_two_sets_of_credentials_is_refused(broker: BrokerProcess) -> None:
    def status(*pairs: str) -> int:
        connection = http.client.HTTPConnection(*broker.admin, timeout=WAIT_S)
        connection.putrequest("GET", "/api/v1/whoami")
        for pair in pairs:
            connection.putheader("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
        connection.endheaders()
        return connection.getresponse().status

    assert status("ann:pw-a") == 200
    assert status("ann:pw-a", "root:pw-r") == status("ann:pw-a", "ann:pw-a") == 401
