"""Updates from the real broker: by offset, across cuts at every step, from good and from bad artifacts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.programs import StartBroker
from support.update_device import (
    CHUNK,
    CHUNKS,
    KEY,
    OLD,
    Cut,
    Device,
    Statuses,
    after,
    end_of,
    not_written,
    order,
    run,
    until_known,
    update,
)

from broker_edge import Client, Row
from broker_edge.artifacts import ArtifactStore, Manifest, SigningKey, push
from broker_edge.artifacts.manifest import chunks_topic, manifest_topic
from broker_edge.device import FileFlash, Firmware, Journal, Link, UplinkWords
from broker_edge.device.download import Download
from broker_edge.torture.process import BrokerProcess


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "pump-2.0"
    path.write_bytes(os.urandom((CHUNKS - 1) * CHUNK + 100))
    return path


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client("grpc://{}:{}".format(*broker.flight), timeout_s=60) as client:
        yield client


@pytest.mark.parametrize("version", [5, 4], ids=["MQTT 5", "MQTT 3.1.1"])
def test_update_is_downloaded_installed_confirmed_and_said_step_by_step(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, version: int
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    device = Device(broker, tmp_path, version=version)
    last = update(device, client)
    assert (last["state"], last["version"], last["result"]) == (
        "SUCCEEDED",
        "2.0",
        {"version": "2.0", "installed": True},
    )
    assert device.steps == ["download", "verify", "wait", "install", "confirm"]
    said = Statuses(client).all()
    # The second start is on trial: until it is confirmed, the version is the one to which the device would go back.
    assert [one["version"] for one in said if one["state"] == "ONLINE"] == ["1.0", "1.0"]
    steps = list(dict.fromkeys(one["step"] for one in said if "step" in one))
    assert steps == ["download", "verify", "install", "confirm"]
    assert (tmp_path / "flash" / "slot-b").read_bytes() == image.read_bytes()
    assert list((tmp_path / "flash").glob("*.part")) == []
    assert FileFlash(tmp_path / "flash", firmware=OLD).job() is None


@pytest.mark.parametrize("step", ["download", "verify", "wait", "install", "confirm"])
def test_power_cut_before_any_step_is_gone_on_from(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, step: str
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    cuts = [2]

    def cut(at: str) -> None:
        if at == step and cuts[0]:
            cuts[0] -= 1
            raise Cut

    device = Device(broker, tmp_path, hooks=[cut])
    assert update(device, client)["state"] == "SUCCEEDED"
    assert (cuts, device.restarts) == ([0], 3)
    assert Statuses(client).last()["version"] == "2.0"
    finals = [one for one in Statuses(client).all() if one["state"] == "SUCCEEDED"]
    assert len(finals) == 1


def test_interrupted_download_goes_on_at_its_chunk_on_another_connection(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    manifest = push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK).manifest
    flash = FileFlash(tmp_path, firmware=OLD)
    begun: list[int] = []

    async def part(chunks: int) -> None:
        link = Link("d1", host=broker.mqtt[0], port=broker.mqtt[1], receive_maximum=2)
        await link.open()
        enough = asyncio.Event()
        download = Download(link, manifest, flash, progress=lambda done, of: enough.set() if done >= chunks else None)
        task = asyncio.ensure_future(download.run())
        await enough.wait()
        link.abort()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        begun.append(download.resumed_at)

    async def scenario() -> None:
        for chunks in (3, 7, CHUNKS):
            await part(chunks)

    run(scenario)
    assert begun[0] == 0
    assert 3 <= begun[1] < 7 <= begun[2] < CHUNKS
    assert flash.sha256(manifest.artifact) == manifest.artifact.sha256


@pytest.mark.parametrize("version", [5, 4], ids=["MQTT 5", "MQTT 3.1.1"])
def test_reflashed_device_gets_what_its_session_has_acknowledged_already(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, version: int
) -> None:
    """The broker's cursor is after all chunks, but the device's own offset counts."""
    manifest = push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK).manifest

    async def scenario() -> None:
        for name in ("first", "second"):
            link = Link("d1", host=broker.mqtt[0], port=broker.mqtt[1], version=version)
            await link.open()
            flash = FileFlash(tmp_path / name, firmware=OLD)
            await Download(link, manifest, flash).run()
            assert flash.sha256(manifest.artifact) == manifest.artifact.sha256
            link.abort()

    run(scenario)


def test_download_survives_a_broker_that_is_killed(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, start_broker: StartBroker
) -> None:
    manifest = push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK).manifest
    port = broker.mqtt[1]
    settings = {"data_dir": str(broker.data_dir), "listeners.mqtt.bind": f"127.0.0.1:{port}"}

    async def scenario() -> None:
        link = Link("d1", host="127.0.0.1", port=port, receive_maximum=1, reconnect_delay_s=0.05)
        await link.open()
        flash = FileFlash(tmp_path / "flash", firmware=OLD)
        half = asyncio.Event()
        download = Download(
            link, manifest, flash, progress=lambda done, of: half.set() if done == of // 2 else None, stall_s=2
        )
        task = asyncio.ensure_future(download.run())
        await half.wait()
        broker.kill()
        await asyncio.to_thread(start_broker, "again", settings)
        await task
        assert flash.sha256(manifest.artifact) == manifest.artifact.sha256
        await link.close(drain_s=0)

    run(scenario)


def test_truncated_and_changed_files_are_found_before_anything_is_installed(image: Path, tmp_path: Path) -> None:
    from broker_edge.artifacts.upload import describe

    artifact = describe(image, "pump", "2.0", chunk_size=CHUNK)
    flash = FileFlash(tmp_path, firmware=OLD)
    part = tmp_path / f"image-{artifact.sha256}.part"
    part.write_bytes(image.read_bytes()[: 5 * CHUNK + 17])
    assert (flash.resume(artifact), part.stat().st_size) == (5, 5 * CHUNK)
    part.write_bytes(image.read_bytes()[:CHUNK] + b"\0" * CHUNK + image.read_bytes()[2 * CHUNK :])
    assert (flash.resume(artifact), part.stat().st_size) == (1, CHUNK)
    part.write_bytes(image.read_bytes() + b"more")
    assert (flash.resume(artifact), part.stat().st_size) == (CHUNKS, artifact.size)


def test_firmware_that_does_not_work_is_rolled_back_and_said(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)

    def broken(firmware: Firmware) -> None:
        raise OSError("no such valve")

    device = Device(broker, tmp_path, works=broken)
    last = update(device, client)
    assert (last["state"], last["version"]) == ("FAILED", "1.0")
    assert last["message"] == "2.0 does not work: no such valve: rolled back to 1.0"
    assert device.restarts == 2


def test_firmware_that_never_comes_up_is_given_up_after_its_boots(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)

    def hang(firmware: Firmware) -> None:
        raise Cut

    last = update(Device(broker, tmp_path, works=hang), client)
    assert (last["state"], last["version"]) == ("FAILED", "1.0")
    assert "was started 3 times without being confirmed" in last["message"]


def test_soft_update_waits_until_the_device_sees_fit_or_is_forced(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    device = Device(broker, tmp_path)
    device.hooks.append(lambda step: order(client, type="force") if step == "wait" else None)
    assert update(device, client, mode="soft")["state"] == "SUCCEEDED"
    assert any(one.get("step") == "install" for one in Statuses(client).all())


def test_download_only_installs_nothing_and_saves_the_next_download(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    device = Device(broker, tmp_path)
    last = update(device, client, mode="download_only")
    assert (last["state"], last["version"], last["result"]["downloaded"]) == ("SUCCEEDED", "1.0", "2.0")
    manifest = ArtifactStore(client).get("pump", "2.0")
    assert FileFlash(tmp_path / "flash", firmware=OLD).resume(manifest.artifact) == CHUNKS


def test_newer_attempt_replaces_one_that_has_not_begun(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    device = Device(broker, tmp_path)
    device.hooks.append(lambda step: order(client, attempt=2) if len(device.steps) == 1 else None)
    missing = {"name": "pump", "version": "9.9"}
    last = update(device, client, artifact=missing, target_version="9.9")
    assert (last["state"], last["attempt"], last["version"]) == ("SUCCEEDED", 2, "2.0")
    of_first = [one["state"] for one in Statuses(client).all() if one.get("attempt") == 1]
    assert of_first == ["ACCEPTED", "IN_PROGRESS"]


class Hurried(Device):
    """Gets a second attempt of its update right before the step `at`, once."""

    at = ""
    client: Client
    asked = False

    async def before(self, step: str) -> None:
        await super().before(step)
        if step == self.at and not self.asked:
            self.asked = True
            order(self.client, attempt=2)
            async with asyncio.timeout(60):
                while Journal(self.folder / "journal.json").get("a1", 2) is None:
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("step", ["verify", "install", "confirm"])
def test_a_new_attempt_takes_over_the_update_that_is_under_way(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, step: str
) -> None:
    """The first attempt timed out for the engine, which sent another one; the image is installed once."""
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    device = Hurried(broker, tmp_path)
    device.at, device.client = step, client
    end = after(device, client, attempt=2, action_id="a1")
    assert device.asked
    assert (end["state"], end["version"], end["result"]) == ("SUCCEEDED", "2.0", {"version": "2.0", "installed": True})
    assert not [one for one in Statuses(client).all() if one["state"] in ("REJECTED", "FAILED")]
    assert end_of(client, "d1", "a1", 1) is None, "the first attempt is replaced"
    assert device.steps.count("download") == 1
    assert not_written(tmp_path)


def test_places_where_nothing_is_end_the_update_in_words(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_edge.device.download.STALLS_MAX", 2)
    good = push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK).manifest
    (end,) = client.produce([Row("artifacts/other", b"x")])
    put_manifest(client, "pump", replace(good, place=replace(good.place, runs=((end.offset + 1, CHUNKS),))))
    last = update(Device(broker, tmp_path, stall_s=0.2), client)
    assert last["state"] == "FAILED"
    assert "no chunk of pump 2.0 arrives" in last["message"] or "refused the subscription" in last["message"]


def test_cancel_stops_a_download_and_comes_too_late_for_an_installation(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    device = Device(broker, tmp_path / "one")
    device.hooks.append(lambda step: order(client, type="cancel") if step == "wait" else None)
    assert update(device, client, mode="soft")["state"] == "CANCELLED"
    assert FileFlash(tmp_path / "one" / "flash", firmware=OLD).job() is None
    late = Device(broker, tmp_path / "two", device_id="d2")
    late.hooks.append(lambda step: order(client, "d2", type="cancel", action_id="a2") if step == "install" else None)
    statuses = Statuses(client, "devices/d2/status")

    async def scenario() -> None:
        waiting = asyncio.ensure_future(late.run(statuses.ended))
        await until_known(client, "d2")
        order(client, "d2", action_id="a2")
        await waiting

    run(scenario)
    assert (statuses.last()["state"], statuses.last()["version"]) == ("SUCCEEDED", "2.0")


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"artifact": {"name": "pump", "version": "9.9"}, "target_version": "9.9"}, "FAILED", "has no artifact pump 9"),
    ({"artifact": {"name": "pump", "version": "2.0", "sha256": "0" * 64}}, "REJECTED", "was ordered"),
    ({"artifact": {"name": "unsigned", "version": "2.0"}}, "REJECTED", "is not signed"),
    ({"artifact": {"name": "foreign", "version": "2.0"}}, "REJECTED", "which is not trusted"),
    ({"artifact": {"name": "swapped", "version": "2.0"}}, "REJECTED", "the manifest is for pump 2.0"),
    ({"artifact": {"name": "renamed", "version": "2.0"}}, "REJECTED", "signature of renamed 2.0"),
    ({"artifact": {"name": "corrupt", "version": "2.0"}}, "FAILED", "did not match the manifest"),
    ({"target_version": "1.0"}, "SUCCEEDED", ""),
]


def test_bad_artifacts_are_refused_in_words(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_edge.device.download.MANIFEST_S", 1.0)
    good = push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK).manifest
    push(client, image, "unsigned", "2.0", chunk_size=CHUNK)
    push(client, image, "foreign", "2.0", key=SigningKey.generate(), chunk_size=CHUNK)
    put_manifest(client, "swapped", good)
    renamed = replace(good.artifact, name="renamed")
    put_manifest(client, "renamed", replace(good, artifact=renamed))
    put_corrupt(client, image)

    async def one(number: int, fields: dict[str, Any]) -> dict[str, Any]:
        device_id = f"d{number}"
        statuses = Statuses(client, f"devices/{device_id}/status")
        waiting = asyncio.ensure_future(Device(broker, tmp_path / device_id, device_id).run(statuses.ended))
        await until_known(client, device_id)
        order(client, device_id, **fields)
        await waiting
        return statuses.last()

    async def scenario() -> None:
        ends = await asyncio.gather(*(one(number, fields) for number, (fields, _, _) in enumerate(BAD)))
        for (fields, state, said), last in zip(BAD, ends, strict=True):
            assert (last["state"], last["version"]) == (state, "1.0"), (fields, last)
            assert said in last.get("message", ""), (fields, last)

    run(scenario)


def put_manifest(client: Client, name: str, manifest: Manifest) -> None:
    client.produce([Row(manifest_topic(name, "2.0"), manifest.to_bytes(), retain=True)])


def put_corrupt(client: Client, image: Path) -> None:
    """Publishes a signed manifest whose chunks include one that a user with write access has replaced."""
    pushed = push(client, image, "corrupt", "2.0", key=KEY, chunk_size=CHUNK).manifest
    rows = [Row(chunks_topic("corrupt", "2.0"), os.urandom(CHUNK)) for _ in range(CHUNKS - 1)]
    places = [client.produce([row])[0].offset for row in rows]
    last = pushed.place.offset_of(0)
    assert places[0] > last
    forged = replace(pushed.place, runs=((places[0], CHUNKS - 1), (places[-1] + 1, 1)))
    client.produce([Row(chunks_topic("corrupt", "2.0"), os.urandom(100))])
    put_manifest(client, "corrupt", replace(pushed, place=forged))


def test_full_flash_fails_the_update_in_words_and_leaves_the_old_firmware(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)

    class Full(FileFlash):
        def append(self, artifact: Any, chunk: bytes) -> None:
            if self.resume(artifact) == 3:
                raise OSError(28, "No space left on device")
            super().append(artifact, chunk)

    device = Device(broker, tmp_path, wrap=lambda flash: Full(tmp_path / "flash", firmware=OLD))
    last = update(device, client)
    assert (last["state"], last["version"]) == ("FAILED", "1.0")
    assert "cannot be stored: no space left" in last["message"]
    assert list((tmp_path / "flash").glob("*.part")) == []


def test_device_in_the_words_of_uplink_says_the_same(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    topic = "/tenants/demo/devices/d1/action/status"
    statuses = Statuses(client, topic)

    def said() -> list[dict[str, Any]]:
        return [one for array in statuses.all() for one in array]

    async def ended() -> bool:
        return any(one["state"] == "Completed" for one in said())

    async def scenario() -> None:
        device = Device(broker, tmp_path, words=UplinkWords(tenant="demo"))
        waiting = asyncio.ensure_future(device.run(ended))
        # Uplink has no word for ONLINE, so wait for its subscription instead.
        while '"filters":[{' not in (await asyncio.to_thread(broker.get, "/api/v1/clients/d1"))[1]:
            await asyncio.sleep(0.01)
        order(client)
        await waiting

    run(scenario)
    found = said()
    assert list(dict.fromkeys(one["state"] for one in found)) == [
        "Received",
        "Running",
        "Downloading",
        "Downloaded",
        "Installing",
        "Completed",
    ]
    plain = {"id", "sequence", "timestamp", "state", "progress", "errors"}
    assert all(set(one) - {"version"} == plain for one in found)
    assert found[-1]["version"] == "2.0"
    assert {one["id"] for one in found} == {"a1"}
    assert found[-1]["progress"] == 100
