"""Artifacts of the real broker: the command, downloads over HTTP with ranges, permissions, a fleet with faults, a
killed device."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.programs import StartBroker, headwaterd, start_headwater

from broker_edge import Client, Row
from broker_edge.artifacts import ArtifactStore, Manifest, SigningKey, push
from broker_edge.artifacts.manifest import manifest_topic
from broker_edge.device import Firmware, Link, MemoryFlash, SubscribeRefused
from broker_edge.device.download import Download, fetch_manifest
from broker_edge.device.fleet import FleetSettings, device_ids
from broker_edge.device.fleet_log import last_told, read
from broker_edge.torture.process import BrokerProcess
from headwater_cli import main

CHUNK = 4096
SIZE = 10 * CHUNK + 100


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(broker: BrokerProcess, path: str, *, method: str = "GET", user: str | None = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(*broker.admin, timeout=20)
    shown = {name.replace("_", "-"): value for name, value in headers.items()}
    if user is not None:
        shown["Authorization"] = "Basic " + base64.b64encode(f"{user}:pw-{user}".encode()).decode()
    try:
        connection.request(method, path, headers=shown)
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def flight(broker: BrokerProcess) -> str:
    return "grpc://{}:{}".format(*broker.flight)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_whole_and_every_kind_of_range_over_http(broker: BrokerProcess, client: Client, image: Path) -> None:
    push(client, image, "fw", "1.0", chunk_size=CHUNK)
    data = image.read_bytes()
    path = "/artifacts/fw/1.0"
    tag = f'"{hashlib.sha256(data).hexdigest()}"'
    whole = ask(broker, path)
    assert (whole.status, whole.body) == (200, data)
    assert (whole.headers["etag"], whole.headers["accept-ranges"]) == (tag, "bytes")
    assert whole.headers["content-type"] == "application/octet-stream"
    head = ask(broker, path, method="HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(SIZE))
    for text, start, end in [
        ("bytes=0-0", 0, 1),
        (f"bytes={CHUNK - 1}-{CHUNK}", CHUNK - 1, CHUNK + 1),
        (f"bytes={CHUNK}-{2 * CHUNK - 1}", CHUNK, 2 * CHUNK),
        (f"bytes={3 * CHUNK + 5}-", 3 * CHUNK + 5, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        (f"bytes=5-{SIZE * 9}", 5, SIZE),
    ]:
        part = ask(broker, path, Range=text)
        assert (part.status, part.body) == (206, data[start:end]), text
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
    behind = ask(broker, path, Range=f"bytes={SIZE}-")
    assert (behind.status, behind.headers["content-range"]) == (416, f"bytes */{SIZE}")
    for text in ("bytes=0-1,4-5", "items=0-1", "bytes=9-1", "bytes=x"):
        assert ask(broker, path, Range=text).body == data, text
    assert ask(broker, path, Range="bytes=0-0", If_Range='"other"').status == 200
    assert ask(broker, path, Range="bytes=0-0", If_Range=tag).status == 206
    assert ask(broker, path, If_None_Match=f'"x", {tag}').status == 304
    manifest = ask(broker, f"{path}/manifest")
    assert json.loads(manifest.body)["artifact"]["size"] == SIZE
    assert ask(broker, path, method="POST").status == 405


def test_what_is_not_there_or_broken_is_told_over_http(broker: BrokerProcess, client: Client, image: Path) -> None:
    manifest = push(client, image, "fw", "1", chunk_size=CHUNK).manifest
    for path in ("/artifacts/fw/2", "/artifacts/a%2Fb/1", "/artifacts/../1", "/artifacts/%2B/1", "/artifacts/%23/1"):
        assert ask(broker, path).status == 404, path
    client.produce([Row(manifest_topic("fw", "3"), b'{"v":1}', retain=True)])
    assert ask(broker, "/artifacts/fw/3").status == 500
    # Chunks of another version at these offsets: none of them is served.
    client.produce([Row(manifest_topic("fw", "4"), manifest.to_bytes(), retain=True)])
    assert ask(broker, "/artifacts/fw/4").status == 500
    # Offsets with other records: the connection ends early, so the client notices.
    body = json.loads(manifest.to_bytes())
    body["place"]["runs"] = [[body["place"]["runs"][0][0] + 3, 11]]
    client.produce([Row(manifest_topic("fw", "1"), json.dumps(body).encode(), retain=True)])
    with pytest.raises(http.client.IncompleteRead):
        ask(broker, "/artifacts/fw/1")
    ArtifactStore(client).remove("fw", "1")
    assert ask(broker, "/artifacts/fw/1").status == 404
    assert ask(broker, "/healthz").status == 200


def test_devices_download_with_their_own_users_and_rights(
    start_broker: StartBroker, tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in ("root", "pump", "other", "halfway"):
        done = subprocess.run(
            [headwaterd(), "users", "add", str(tmp_path / "users"), user], input=f"pw-{user}\n", text=True, timeout=60
        )
        assert done.returncode == 0
    rules = ["user root", "operator", "topic readwrite #", "topic replay #"]
    rules += ["user pump", "topic read artifacts/fw/#", "topic replay artifacts/fw/+/chunks"]
    rules += ["user halfway", "topic read artifacts/fw/#", "user other", "topic read nothing"]
    (tmp_path / "acl").write_text("\n".join(rules) + "\n")
    settings = {"auth.password_file": str(tmp_path / "users"), "auth.acl_file": str(tmp_path / "acl")}
    broker = start_broker("auth", settings)
    monkeypatch.setenv("HEADWATER_USER", "root")
    monkeypatch.setenv("HEADWATER_PASSWORD_FROM", "env:ROOT")
    monkeypatch.setenv("ROOT", "pw-root")
    with Client(flight(broker)) as client:
        push(client, image, "fw", "1", chunk_size=CHUNK)
    path = "/artifacts/fw/1"
    assert ask(broker, path).status == 401
    assert ask(broker, path, user="nobody").status == 401
    assert ask(broker, path, user="other").status == 403
    assert ask(broker, f"{path}/manifest", user="other").status == 403
    assert ask(broker, "/artifacts/secret/1", user="pump").status == 403
    assert ask(broker, "/api/v1/status", user="pump").status == 403
    for user in ("pump", "root"):
        assert ask(broker, path, user=user).body == image.read_bytes()
    assert ask(broker, path, user="pump", Range="bytes=1-2").body == image.read_bytes()[1:3]

    async def over_mqtt(user: str) -> str:
        link = Link(user, host=broker.mqtt[0], port=broker.mqtt[1], user=user, password=f"pw-{user}")
        await link.open()
        try:
            flash = MemoryFlash(firmware=Firmware("fw", "0"))
            manifest = Manifest.parse(await fetch_manifest(link, "fw", "1"))
            await Download(link, manifest, flash).run()
            return flash.sha256(manifest.artifact)
        finally:
            await link.close(drain_s=0)

    assert asyncio.run(over_mqtt("pump")) == hashlib.sha256(image.read_bytes()).hexdigest()
    for user in ("other", "halfway"):
        with pytest.raises(SubscribeRefused, match="0x87"):
            asyncio.run(over_mqtt(user))


def test_downloads_beyond_the_limit_are_told_to_come_back(
    start_broker: StartBroker, tmp_path: Path, image: Path
) -> None:
    broker = start_broker("few", {"flight.max_reads": "1"})
    big = tmp_path / "big"
    big.write_bytes(os.urandom(24 << 20))
    with Client(flight(broker)) as client:
        push(client, big, "fw", "1", chunk_size=960 * 1024)
    slow = http.client.HTTPConnection(*broker.admin, timeout=20)
    slow.request("GET", "/artifacts/fw/1")
    first = slow.getresponse()
    assert ask(broker, "/artifacts/fw/1").status == 503
    assert ask(broker, "/artifacts/fw/1", method="HEAD").status == 200
    assert hashlib.sha256(first.read()).digest() == hashlib.sha256(big.read_bytes()).digest()
    slow.close()
    assert ask(broker, "/artifacts/fw/1", Range="bytes=0-9").status == 206


def test_downloads_one_after_another_never_meet_the_limit(start_broker: StartBroker, image: Path) -> None:
    broker = start_broker("one", {"flight.max_reads": "1"})
    with Client(flight(broker)) as client:
        push(client, image, "fw", "1", chunk_size=CHUNK)
    link = http.client.HTTPConnection(*broker.admin, timeout=20)
    for _ in range(300):
        link.request("GET", "/artifacts/fw/1")
        answer = link.getresponse()
        assert (answer.status, len(answer.read())) == (200, SIZE)
    link.close()


def test_the_command_pushes_lists_verifies_and_removes(
    broker: BrokerProcess, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        there = [] if words[0] == "keygen" else ["--server", flight(broker)]
        return (main(["artifacts", *words, *there]), *capsys.readouterr())

    key = tmp_path / "key"
    assert json.loads(run("keygen", str(key), "--json")[1])["public"] == f"{key}.pub"
    assert run("keygen", str(key))[0] == 5
    code, out, _ = run("push", str(image), "fw", "1.0", "--key", str(key), "--json")
    assert (code, json.loads(out)["stored"]) == (0, 1)
    code, out, _ = run("push", str(image), "fw", "1.0")
    assert (code, "already existed" in out) == (0, True)
    (listed,) = json.loads(run("list", "--json")[1])["artifacts"]
    assert (listed["name"], listed["version"], listed["size"]) == ("fw", "1.0", SIZE)
    assert run("list")[1].splitlines()[1].split("\t")[:3] == ["fw", "1.0", str(SIZE)]
    assert run("verify", "fw", "1.0", "--trust", f"{key}.pub")[0] == 0
    other = tmp_path / "other"
    other.write_bytes(b"other")
    code, _, err = run("push", str(other), "fw", "1.0")
    assert (code, "a version is final" in err) == (4, True)
    run("keygen", str(tmp_path / "wrong"))
    assert run("verify", "fw", "1.0", "--trust", f"{tmp_path / 'wrong'}.pub")[0] == 1
    assert run("push", str(tmp_path / "missing"), "fw", "2")[0] == 2
    assert run("push", str(image), "a/b", "2")[0] == 4
    assert run("rm", "fw", "1.0")[0] == 0
    assert run("rm", "fw", "1.0")[0] == 4
    assert run("list")[1] == ""


def order(client: Client, ids: list[str], version: str = "2.0.0") -> None:
    body = {
        "action_id": "a1",
        "attempt": 1,
        "type": "ota",
        "name": "install",
        "mode": "forced",
        "artifact": {"name": "firmware", "version": version},
        "target_version": version,
    }
    client.produce([Row(f"devices/{id_}/actions", json.dumps({**body, "device_id": id_}).encode()) for id_ in ids])


def until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def test_twenty_devices_with_faults_end_as_their_faults_have_it(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    """2 MiB for each device, stored once; the fleet's own log has the outcome of each."""
    image = tmp_path / "image"
    image.write_bytes(os.urandom(2 << 20))
    key = SigningKey.generate()
    public = key.save(tmp_path / "key")
    push(client, image, "firmware", "2.0.0", key=key)
    log = tmp_path / "fleet.jsonl"
    log.touch()
    faults = "interrupted=20%,crash@install=10%,wrong-checksum=10%,fails=10%,refuses=5%,silent=5%,reflashed=5%,away=5%"
    fleet = start_headwater(
        *("devices", "simulate", "20", "--mqtt", "{}:{}".format(*broker.mqtt), "--no-telemetry", "--json"),
        *("--trust", str(public), "--fault", f"{faults},offline=5%", "--away", "3", "--log", str(log)),
    )
    try:
        # 19 connect, and the `away` device disconnects.
        until(lambda: Counter(line["event"] for line in read(log))["online"] >= 19, "the devices")
        order(client, device_ids(FleetSettings(count=20)))
        # Silent, offline and reflashed devices report no end.
        until(
            lambda: sum(state in ("SUCCEEDED", "FAILED", "REJECTED") for state in last_told(log).values()) == 17, "ends"
        )
    finally:
        fleet.send_signal(signal.SIGTERM)
        out, err = fleet.communicate(timeout=30)
    assert fleet.returncode == 0, err
    assert Counter(last_told(log).values()) == {"SUCCEEDED": 12, "FAILED": 4, "REJECTED": 1, "IN_PROGRESS": 1}
    events = json.loads(out)["events"]
    assert (events["told:SUCCEEDED"], events["ignored"]) == (12, 1)
    resumed = [line["chunk"] for line in read(log) if line["event"] == "resume" and line["chunk"]]
    assert sorted(resumed) == [2] * 4 + [5] * 4
    (topic,) = client.topics("artifacts/firmware/2.0.0/chunks")
    assert topic.next - topic.first == 8


def test_killed_device_ends_its_update_all_the_same(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    """A real process is killed with SIGKILL at any point, restarts, and completes the update."""
    image = tmp_path / "image"
    image.write_bytes(os.urandom(1 << 20))
    push(client, image, "firmware", "2.0.0", chunk_size=16 * 1024)
    command = ("devices", "run", "d1", "--state", str(tmp_path / "d1"), "--mqtt", "{}:{}".format(*broker.mqtt))
    states: list[str] = []
    ordered = False
    for run in range(1, 8):
        device = start_headwater(*command, "--allow-unsigned", "--json")
        assert device.stdout is not None
        for seen, line in enumerate(device.stdout, start=1):
            said = json.loads(line)
            states.append(said["state"])
            if not ordered:
                order(client, ["d1"])
                ordered = True
            # Each run gets a little further.
            if said["state"] == "SUCCEEDED" or seen > 2 * run:
                break
        device.kill()
        device.communicate()
        if states[-1] == "SUCCEEDED":
            break
    assert states[-1] == "SUCCEEDED", states
    assert states.count("SUCCEEDED") == 1
    assert (tmp_path / "d1" / "slot-b").read_bytes() == image.read_bytes()
