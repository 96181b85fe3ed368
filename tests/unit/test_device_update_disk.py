"""An update whose device cannot write for a moment, or whose statuses the broker refuses: no image stays on trial with
nobody to confirm it or to roll it back."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.device_line import Line

from broker_edge.artifacts import Trust
from broker_edge.artifacts.manifest import Artifact, ChunkRuns, Manifest
from broker_edge.device import Agent, FileFlash, Firmware, Journal, UpdatePolicy, Updater
from broker_edge.device import flash as flash_module
from broker_edge.device import journal as journal_module
from broker_edge.device.files import write_json
from broker_edge.device.flash import Boot, Job
from broker_edge.device.journal import Entry
from broker_edge.device.link import PublishRefused

OLD = Firmware("pump", "1.0")
IMAGE = b"x" * 5_000
SHA256 = hashlib.sha256(IMAGE).hexdigest()
MANIFEST = Manifest(
    Artifact("pump", "2.0", 5_000, SHA256, 8_192, (SHA256,)), None, ChunkRuns("l", "a", 2, ((0, 1),)), 1
)
STARTS_MAX = 4
"""So few that no image has been given up by the boot loader."""
WAIT_S = 60


class RefusingLine(Line):
    """A broker without space for telemetry."""

    async def publish(self, topic: str, payload: bytes, **more: Any) -> None:
        await super().publish(topic, payload, **more)
        raise PublishRefused(0x97)


@dataclass
class Device:
    """A device that has downloaded pump 2.0. It restarts as often as it wants."""

    folder: Path
    works: bool = True
    keys: Any = None

    def __post_init__(self) -> None:
        flash = FileFlash(self.folder, firmware=OLD)
        flash.set_job(
            Job("a1", 1, "forced", "pump", "2.0", None, "verify", manifest=MANIFEST.to_bytes().decode())
        )  # fmt: skip
        Journal(self.folder / "journal.json").put(Entry("a1", 1, "IN_PROGRESS"))
        (self.folder / f"image-{SHA256}.part").write_bytes(IMAGE)

    async def may_install(self) -> None:
        return

    async def check(self, firmware: Firmware) -> None:
        if not self.works:
            raise RuntimeError("no such valve")

    async def live(self, line: Line) -> None:
        """Runs from a start until the device restarts or has nothing to do."""
        again = asyncio.Event()
        policy = UpdatePolicy(Trust(()), allow_unsigned=True, again_s=0.0)
        flash = FileFlash(self.folder, firmware=OLD)
        updater = Updater(flash, line, policy=policy, platform=self, keys=self.keys)  # type: ignore[arg-type]
        updater.start()
        journal = Journal(self.folder / "journal.json")
        agent = Agent("d1", handlers={}, journal=journal, updater=updater, on_restart=again.set, again_s=0.0)
        agent.attach(line)  # type: ignore[arg-type]
        try:
            await agent.catch_up()
            async with asyncio.timeout(WAIT_S):
                while agent._running and not again.is_set():
                    await asyncio.sleep(0)
        finally:
            await agent.close()

    def run(self, *lines: Line) -> tuple[Boot, Job | None, str]:
        """What the flash holds when nothing is left to do, and the state in the journal. Each start has the next line,
        and those after the last one have a line of their own."""

        async def story() -> None:
            for line in itertools.islice(itertools.chain(lines, iter(Line, None)), STARTS_MAX):
                try:
                    await self.live(line)
                except OSError:
                    continue  # It cannot start, so somebody starts it again.

        asyncio.run(story())
        flash, entry = FileFlash(self.folder, firmware=OLD), Journal(self.folder / "journal.json").get("a1", 1)
        assert entry is not None
        return flash.boot(), flash.job(), entry.state


def fail_write(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Lets the write of this number fail, counted from 1. Returns a list that gets the name of its file."""
    failed: list[str] = []
    count = itertools.count(1)

    def write(path: Path, value: Any) -> None:
        if next(count) == number:
            failed.append(path.name)
            raise OSError(errno.ENOSPC, "No space left on device")
        write_json(path, value)

    for module in (flash_module, journal_module):
        monkeypatch.setattr(module, "write_json", write)
    return failed


@pytest.mark.parametrize("works", [True, False], ids=["works", "does not work"])
def test_a_write_that_fails_once_leaves_no_image_on_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    for number in itertools.count(1):
        (folder := tmp_path / str(number)).mkdir()
        device = Device(folder, works)
        with monkeypatch.context() as patch:
            failed = fail_write(patch, number)
            boot, job, state = device.run()
        assert (boot.trial, job) == (None, None), f"write {number}, of {failed}"
        assert (state, boot.good.version) in [("FAILED", "1.0"), *([("SUCCEEDED", "2.0")] if works else [])], number
        if not failed:
            assert state == ("SUCCEEDED" if works else "FAILED")
            break


@pytest.mark.parametrize(("works", "ends"), [(True, ("SUCCEEDED", "2.0")), (False, ("FAILED", "1.0"))])
@pytest.mark.parametrize("start", range(3))
def test_a_broker_that_refuses_statuses_neither_fails_an_update_nor_keeps_a_bad_one(
    tmp_path: Path, works: bool, ends: tuple[str, str], start: int
) -> None:
    boot, job, state = Device(tmp_path, works).run(*[Line()] * start, RefusingLine())
    assert ((state, boot.good.version), boot.trial, job) == (ends, None, None)


def test_a_floor_that_the_disk_does_not_take_is_raised_all_the_same(tmp_path: Path) -> None:
    class Keys:
        """In place of a key feed: its guard stores the floor at the second attempt."""

        attempts = 0

        @property
        def guard(self) -> Keys:
            return self

        async def check(self, manifest: Manifest) -> None:
            return

        def confirmed(self, manifest: Manifest) -> None:
            self.attempts += 1
            if self.attempts == 1:
                raise OSError(errno.ENOSPC, "No space left on device")

    keys = Keys()
    boot, job, state = Device(tmp_path, keys=keys).run()
    assert (state, boot.good.version, job, keys.attempts) == ("SUCCEEDED", "2.0", None, 2)
