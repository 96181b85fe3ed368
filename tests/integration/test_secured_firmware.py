"""The rights that our examples give to a device are those that a download needs, and no line is too many."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.programs import StartBroker
from support.secured import make_users
from support.signing import Maker

from broker_edge import Client, Credentials
from broker_edge.artifacts import Manifest, push
from broker_edge.device import FileFlash, Firmware, KeyFeed, Link, SubscribeRefused
from broker_edge.device.download import Download, fetch_manifest
from broker_edge.errors import NotFoundError
from broker_edge.policy import publish_roots
from broker_edge.secured_folder import ACL
from broker_edge.torture.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {"deploy/acl": (ROOT / "deploy/acl").read_text(), "init": ACL}
CHUNK = 16 * 1024
DEVICE = "pump-1"
LINES = (
    "pattern read artifacts/+/+/manifest",
    "pattern replay artifacts/+/+/chunks",
)


def download(broker: BrokerProcess, password: str, folder: Path, version: int) -> bytes:
    """The firmware, as a device gets it."""

    async def fetch() -> bytes:
        host, port = broker.mqtt
        link = Link(DEVICE, host=host, port=port, version=version, user=DEVICE, password=password, receive_maximum=4)
        await link.open(timeout_s=60)
        try:
            manifest = Manifest.parse(await fetch_manifest(link, "fw", "2.0"))
            flash = FileFlash(folder, firmware=Firmware("fw", "1.0"))
            await asyncio.wait_for(Download(link, manifest, flash).run(), 60)
            (part,) = folder.glob("*.part")
            return part.read_bytes()
        finally:
            await link.close(drain_s=0)

    return asyncio.run(fetch())


def secured(start: StartBroker, folder: Path, acl: str) -> tuple[BrokerProcess, dict[str, str]]:
    """A broker with these rights and an artifact that the user of the jobs has pushed."""
    passwords = make_users(folder, DEVICE, "pipeline", "pipelines")
    (folder / "acl").write_text(acl)
    broker = start("broker", {"auth.password_file": str(folder / "users"), "auth.acl_file": str(folder / "acl")})
    user = "pipelines" if "user pipelines" in acl else "pipeline"
    credentials = Credentials(user=user, password=f"file:{folder}/{user}.password")
    (folder / "image").write_bytes(os.urandom(3 * CHUNK + 100))
    with Client("grpc://{}:{}".format(*broker.flight), timeout_s=60, credentials=credentials) as client:
        push(client, folder / "image", "fw", "2.0", chunk_size=CHUNK)
    return broker, passwords


@pytest.mark.parametrize("acl", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_a_device_reads_firmware_with_the_rights_of_the_examples(
    start_broker: StartBroker, tmp_path: Path, acl: str
) -> None:
    broker, passwords = secured(start_broker, tmp_path, acl)
    for version in (5, 4):
        found = download(broker, passwords[DEVICE], tmp_path / f"flash-{version}", version)
        assert found == (tmp_path / "image").read_bytes()


@pytest.mark.parametrize("acl", [*EXAMPLES.values(), ACL.replace("pattern read artifacts/root\n", "")])
def test_a_device_reads_key_lists_with_the_rights_of_the_examples(
    start_broker: StartBroker, tmp_path: Path, acl: str
) -> None:
    """The last one is the control: without its line the device keeps the key list with which it was made."""
    maker = Maker()
    broker, passwords = secured(start_broker, tmp_path, acl)
    user = "pipelines" if "user pipelines" in acl else "pipeline"
    credentials = Credentials(user=user, password=f"file:{tmp_path}/{user}.password")
    with Client("grpc://{}:{}".format(*broker.flight), timeout_s=60, credentials=credentials) as client:
        publish_roots(client, [maker.root, maker.next_root()])

    async def read() -> int:
        host, port = broker.mqtt
        link = Link(DEVICE, host=host, port=port, user=DEVICE, password=passwords[DEVICE])
        await link.open(timeout_s=60)
        feed = KeyFeed(maker.guard(), link, answer_s=60)
        await feed.settled()
        await feed.close()
        await link.close(drain_s=0)
        return feed.guard.root.version

    assert asyncio.run(read()) == (2 if "pattern read artifacts/root\n" in acl else 1)


@pytest.mark.parametrize("line", LINES)
def test_control_without_one_of_the_lines_it_reads_none(
    start_broker: StartBroker, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_edge.device.download.MANIFEST_S", 0.5)
    assert ACL.count(line) == 1
    broker, passwords = secured(start_broker, tmp_path, ACL.replace(f"{line}\n", ""))
    with pytest.raises((SubscribeRefused, NotFoundError)):
        download(broker, passwords[DEVICE], tmp_path / "flash", 5)
