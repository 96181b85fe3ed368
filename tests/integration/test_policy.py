"""Policy on the device against the real broker: a fleet that is offered what does not fit it, key lists that change
while devices run, and power cuts around the security floor."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.signing import Keys, Maker, new_keys, policy_of
from support.update_device import (
    CHUNK,
    CHUNKS,
    KEY,
    OLD,
    Cut,
    Device,
    after,
    end_of,
    not_written,
    order,
    until_known,
    update,
)

from broker_edge import Client
from broker_edge.artifacts import ArtifactStore, Trust, push
from broker_edge.artifacts.upload import describe
from broker_edge.device import FileFlash, FileHeld, Fleet, FleetSettings, UpdatePolicy
from broker_edge.device.flash import Boot
from broker_edge.device.simulated import Updates
from broker_edge.device.standalone import StandaloneSettings
from broker_edge.device.standalone import run as standalone_run
from broker_edge.policy import Floor, VersionOrder, publish_roots
from broker_edge.torture.process import BrokerProcess

OLD_FLOOR = Floor(VersionOrder.PEP440, "1.0")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "pump"
    path.write_bytes(os.urandom((CHUNKS - 1) * CHUNK + 100))
    return path


@pytest.fixture
def maker() -> Maker:
    return Maker()


def store(
    client: Client, image: Path, maker: Maker, version: str = "2.0", *, by: Keys | None = None, **fields: Any
) -> None:
    """Pushes the image with the old signature, and with a policy."""
    given = {"order": VersionOrder.PEP440, **fields}
    policy = policy_of(
        describe(image, "pump", version, chunk_size=CHUNK), maker.targets[:2] if by is None else by, **given
    )
    push(client, image, "pump", version, key=KEY, chunk_size=CHUNK, policy=policy.in_manifest())


def guarded(broker: BrokerProcess, folder: Path, maker: Maker, **fields: Any) -> Device:
    return Device(broker, folder, guard=maker.settings(floor=OLD_FLOOR), **fields)


def floor_of(folder: Path) -> Floor | None:
    held = FileHeld(folder / "policy.json").load()
    return None if held is None else held.floor


# -- a fleet -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """An image that no device of a fleet with the hardware p2 and p3 may take, but for `takers`."""

    why: str
    version: str = "2.0"
    fields: dict[str, Any] | None = None
    signers: int = 2
    takers: str = ""


OFFERS = (
    Offer("is for hardware p2, and this device has p3", "2.1", {"hardware": ["p2"]}, takers="p2"),
    Offer("is for hardware p9", "2.2", {"hardware": ["p9"]}),
    Offer("is for the product valve", "2.3", {"product": "valve", "hardware": ["p2", "p3"]}),
    Offer("is below the security floor 1.0 (pep440)", "0.9", {"hardware": ["p2", "p3"]}),
    Offer("the policy of pump 2.4 expired on", "2.4", {"hardware": ["p2", "p3"], "signed_us": 1, "expires_us": 2}),
    Offer("has 1 of the 2 valid signatures", "2.5", {"hardware": ["p2", "p3"]}, signers=1),
)
DEVICES = 6


def test_no_device_takes_an_image_that_is_not_for_it(
    broker: BrokerProcess, client: Client, image: Path, maker: Maker
) -> None:
    """Other hardware, below the floor, expired, too few keys. Devices without a guard take them all: the control."""
    guards = tuple(maker.settings(hardware=one, floor=OLD_FLOOR) for one in ("p2", "p3"))
    publish_roots(client, [maker.root])
    for offer in OFFERS:
        store(client, image, maker, offer.version, by=maker.targets[: offer.signers], **(offer.fields or {}))
    ends = run_fleet(broker, client, maker, Updates(KEY.trust(), guards=guards), "new")
    for offer in OFFERS:
        of_offer = [end for (_, version), end in ends.items() if version == offer.version]
        took = {id_ for (id_, version), end in ends.items() if version == offer.version and end["state"] == "SUCCEEDED"}
        assert took == ({"new-0001", "new-0003", "new-0005"} if offer.takers else set()), offer
        refused = [end for end in of_offer if end["state"] == "REJECTED"]
        assert len(refused) == DEVICES - len(took)
        assert all(offer.why in end["message"] for end in refused), refused
    old = run_fleet(broker, client, maker, Updates(KEY.trust()), "old")
    assert Counter(end["state"] for end in old.values()) == {"SUCCEEDED": DEVICES * len(OFFERS)}


def run_fleet(
    broker: BrokerProcess, client: Client, maker: Maker, updates: Updates, prefix: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """Orders each image from each device, one after the other. Returns the last status by device and version."""
    host, port = broker.mqtt
    settings = FleetSettings(DEVICES, host=host, port=port, prefix=prefix, telemetry=False, updates=updates)

    async def scenario() -> dict[tuple[str, str], dict[str, Any]]:
        fleet = Fleet(settings, [{}])
        await fleet.start()
        found = {}
        for version in (offer.version for offer in OFFERS):
            named = {"action_id": version, "artifact": {"name": "pump", "version": version}, "target_version": version}
            for device in fleet.devices:
                order(client, device.device_id, key=maker.director, **named)
            for device in fleet.devices:
                found[device.device_id, version] = await until_end(client, device.device_id, version)
        await fleet.stop()
        return found

    return asyncio.run(asyncio.wait_for(scenario(), 240))


async def until_end(client: Client, device_id: str, action_id: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while (found := await asyncio.to_thread(end_of, client, device_id, action_id)) is None:
            await asyncio.sleep(0.02)
    return found


# -- one device --------------------------------------------------------------------------------------------------------


def test_a_fitting_image_is_installed_and_raises_the_floor(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    store(client, image, maker, floor="1.5")
    store(client, image, maker, "1.2")
    assert update(guarded(broker, tmp_path, maker), client, key=maker.director)["state"] == "SUCCEEDED"
    assert floor_of(tmp_path) == Floor(VersionOrder.PEP440, "1.5")
    older = {"artifact": {"name": "pump", "version": "1.2"}, "target_version": "1.2"}
    device = guarded(broker, tmp_path, maker)
    last = after(device, client, key=maker.director, action_id="a2", **older)
    assert (last["state"], last["message"]) == ("REJECTED", "version 1.2 is below the security floor 1.5 (pep440)")
    assert not_written(tmp_path)


def test_a_device_as_a_process_of_its_own_keeps_what_it_holds(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    """As `headwater devices run` does it, across the restart that starts the new image."""
    second = maker.next_root()
    publish_roots(client, [maker.root, second])
    store(client, image, maker, floor="1.5")
    host, port = broker.mqtt
    trust = UpdatePolicy(Trust(()))
    settings = StandaloneSettings("d1", tmp_path, host, port, trust, guard=maker.settings(floor=OLD_FLOOR))

    async def live() -> None:
        while await standalone_run(settings):
            pass

    async def scenario() -> dict[str, Any]:
        device = asyncio.ensure_future(live())
        await until_known(client, "d1")
        order(client, key=maker.director)
        found = await until_end(client, "d1", "a1")
        device.cancel()
        await asyncio.gather(device, return_exceptions=True)
        return found

    assert asyncio.run(asyncio.wait_for(scenario(), 240))["state"] == "SUCCEEDED"
    held = FileHeld(tmp_path / "policy.json").load()
    assert held is not None
    assert (held.root, held.floor) == (second, Floor(VersionOrder.PEP440, "1.5"))


def test_nothing_is_written_of_an_image_that_is_refused(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    store(client, image, maker, hardware=["p9"])
    last = update(guarded(broker, tmp_path, maker), client, key=maker.director)
    assert (last["state"], last["version"]) == ("REJECTED", "1.0")
    assert not_written(tmp_path)
    assert not (tmp_path / "flash" / "slot-b").exists()


def test_a_device_with_a_guard_refuses_old_manifests_and_unsigned_orders(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    push(client, image, "pump", "2.0", key=KEY, chunk_size=CHUNK)
    last = update(guarded(broker, tmp_path, maker), client)
    assert (last["state"], "this command is not signed" in last["message"]) == ("REJECTED", True)
    last = after(guarded(broker, tmp_path, maker), client, key=maker.director, action_id="a2")
    assert (last["state"], "pump 2.0 has no policy" in last["message"]) == ("REJECTED", True)


def test_a_device_without_a_guard_takes_new_manifests_and_signed_orders_as_before(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    publish_roots(client, [maker.root])
    store(client, image, maker, hardware=["p9"])
    assert update(Device(broker, tmp_path), client, key=maker.director)["state"] == "SUCCEEDED"


def test_a_policy_travels_with_a_copy_to_another_broker(client: Client, image: Path, maker: Maker) -> None:
    store(client, image, maker)
    before = ArtifactStore(client).get("pump", "2.0")
    push(client, image, "pump", "2.0", chunk_size=CHUNK)
    assert ArtifactStore(client).get("pump", "2.0").policy == before.policy is not None


def test_a_device_that_was_away_takes_the_key_lists_that_it_missed(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    """All keys were changed, in two steps; its image and its order are signed with keys that it has never seen."""
    targets, (director,) = new_keys(3), new_keys(1)
    second = maker.next_root(targets=targets)
    third = maker.next_root(targets=targets, director=[director], version=3)
    publish_roots(client, [maker.root, second, third])
    store(client, image, maker, by=targets[:2])
    assert update(guarded(broker, tmp_path, maker), client, key=director)["state"] == "SUCCEEDED"
    held = FileHeld(tmp_path / "policy.json").load()
    assert held is not None
    assert held.root == third


def test_a_key_that_is_revoked_while_an_update_waits_stops_it(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    publish_roots(client, [maker.root])
    store(client, image, maker)
    device = guarded(broker, tmp_path, maker)

    def revoke(step: str) -> None:
        if step == "wait":
            publish_roots(client, [maker.next_root(targets=maker.targets[1:])])
            asyncio.get_running_loop().create_task(goes_on())

    async def goes_on() -> None:
        while (held := FileHeld(tmp_path / "policy.json").load()) is None or held.root.version == 1:
            await asyncio.sleep(0.01)
        device.fit.set()

    device.hooks.append(revoke)
    last = update(device, client, key=maker.director, mode="soft")
    assert (last["state"], last["version"]) == ("REJECTED", "1.0")
    assert "has 1 of the 2 valid signatures" in last["message"]
    assert not_written(tmp_path)


@pytest.mark.parametrize("moment", ["before the confirmation", "behind the confirmation"])
def test_a_power_cut_around_the_confirmation_neither_loses_nor_anticipates_the_floor(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker, moment: str
) -> None:
    store(client, image, maker, floor="2.0")
    cuts = [1]
    floors: list[Floor | None] = []

    class Flash(FileFlash):
        def set_boot(self, boot: Boot) -> None:
            is_confirmation = boot.trial is None and boot.good.version == "2.0"
            if is_confirmation and cuts[0]:
                cuts[0] -= 1
                floors.append(floor_of(tmp_path))
                if moment == "behind the confirmation":
                    super().set_boot(boot)
                device.again.set()
                raise Cut
            super().set_boot(boot)

    device = guarded(broker, tmp_path, maker, wrap=lambda flash: Flash(tmp_path / "flash", firmware=OLD))
    assert update(device, client, key=maker.director)["state"] == "SUCCEEDED"
    assert (cuts, floors, floor_of(tmp_path)) == ([0], [OLD_FLOOR], Floor(VersionOrder.PEP440, "2.0"))


def test_an_image_that_does_not_work_is_rolled_back_although_its_floor_is_higher(
    broker: BrokerProcess, client: Client, image: Path, tmp_path: Path, maker: Maker
) -> None:
    store(client, image, maker, floor="2.0")

    def broken(firmware: Any) -> None:
        raise RuntimeError("no such valve")

    last = update(guarded(broker, tmp_path, maker, works=broken), client, key=maker.director)
    assert (last["state"], last["version"], floor_of(tmp_path)) == ("FAILED", "1.0", OLD_FLOOR)
