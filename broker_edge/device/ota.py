"""A firmware update, step by step: download, verify, wait, install, reboot, confirm, or roll back.

The flash stores each step before it takes effect, so a device that is cut off at any point continues with that step or
begins it again; every step may be repeated. The updater reports through the `Call` that it is given, and raises
`Restart` to let the owner of the agent restart the device. docs/protocols.md, section 5, lists the steps.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from broker_edge.artifacts.keys import Trust
from broker_edge.artifacts.manifest import ArtifactError, Manifest, check_name
from broker_edge.device.calls import Call, Order, Rejected
from broker_edge.device.download import STALL_S, Download, fetch_manifest
from broker_edge.device.files import AGAIN_S
from broker_edge.device.flash import BOOTS_MAX, Firmware, Flash, Job
from broker_edge.device.key_feed import KeyFeed
from broker_edge.device.link import Link, LinkClosed
from broker_edge.errors import HeadwaterError, NotFoundError, RefusedError

log = logging.getLogger(__name__)

# Space for what else the file system needs while an image is downloaded: the JSON files, some blocks.
_SPARE_BYTES = 1 << 20
_PROGRESS_PERCENT = 10


class Restart(Exception):
    """The device must restart now; the flash holds the next step."""


class UpdateFailed(Exception):
    """The update has failed finally; the message goes into the status."""


class Platform(Protocol):
    """The device's own decisions about updates."""

    async def may_install(self) -> None:
        """Returns when the device allows the installation. Only called for `soft` updates."""

    async def check(self, firmware: Firmware) -> None:
        """Raises if the firmware that has just started does not work; it is then rolled back."""


class Willing:
    """Installs at once, and accepts any firmware that starts."""

    async def may_install(self) -> None:
        return

    async def check(self, firmware: Firmware) -> None:
        return


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """Unless `allow_unsigned` is set, only artifacts signed by a key of `trust` are installed. A device with a guard
    asks that instead."""

    trust: Trust
    allow_unsigned: bool = False
    stall_s: float = STALL_S
    pace_s: float = 0.0
    again_s: float = AGAIN_S


async def _no_hook(step: str) -> None:
    return


class Updater:
    """Executes one update at a time. `before(step)` is called before each step, and may raise to interrupt the update.

    With `keys`, the guard decides what may be installed, in place of the keys of `policy`.
    """

    def __init__(
        self,
        flash: Flash,
        link: Link,
        *,
        policy: UpdatePolicy,
        platform: Platform | None = None,
        before: Callable[[str], Awaitable[None]] = _no_hook,
        keys: KeyFeed | None = None,
    ) -> None:
        self._flash, self._link, self._policy, self._keys = flash, link, policy, keys
        self._platform = platform or Willing()
        self._before = before
        self._forced = asyncio.Event()

    @property
    def version(self) -> str:
        """The version of the firmware that runs for good. An image on trial may be rolled back, and whoever read its
        version would believe that the update had succeeded."""
        return self._flash.boot().good.version

    def start(self) -> None:
        """The boot loader's part: counts the starts of a new image and gives up after too many."""
        boot = self._flash.boot()
        if (now := boot.started()) != boot:
            self._flash.set_boot(now)

    def take(self, order: Order) -> bool:
        """Stores an order before it is acknowledged. Returns False if another one is in progress."""
        job = self._flash.job()
        if job is not None and job.key != order.key:
            return False
        if job is None:
            self._forced.clear()
            self._flash.set_job(
                Job(order.action_id, order.attempt, order.mode, order.name, order.version, order.sha256, "download")
            )
        return True

    def adopt(self, order: Order) -> None:
        """Lets the update in progress go on as another attempt of the same action."""
        job = self._flash.job()
        if job is None:
            return
        mode = "forced" if "forced" in (job.mode, order.mode) else order.mode
        self._flash.set_job(replace(job, attempt=order.attempt, mode=mode, sha256=job.sha256 or order.sha256))
        if mode == "forced":
            self._forced.set()

    def pending(self) -> Order | None:
        """The order that an earlier run of the device did not finish."""
        job = self._flash.job()
        if job is None:
            return None
        return Order(job.action_id, job.attempt, job.mode, job.name, job.version, job.sha256, job.version)

    def forget(self, key: tuple[str, int]) -> None:
        """Removes an order that has ended and whose end is in the journal."""
        job = self._flash.job()
        if job is not None and job.key == key:
            self._flash.set_job(None)

    def force(self, key: tuple[str, int]) -> None:
        """Makes the update in progress install as soon as possible. Does nothing if `key` is another order."""
        job = self._flash.job()
        if job is not None and job.key == key:
            self._flash.set_job(replace(job, mode="forced"))
            self._forced.set()

    def has_begun(self, key: tuple[str, int]) -> bool:
        """Whether the order has been accepted and has left the first step."""
        job = self._flash.job()
        return job is not None and job.key == key and job.manifest is not None

    def is_past_cancelling(self, key: tuple[str, int]) -> bool:
        """Whether the order can no longer be cancelled."""
        job = self._flash.job()
        return job is not None and job.key == key and job.step in ("install", "confirm", "rollback")

    async def carry_out(self, order: Order, call: Call) -> dict[str, Any]:
        """Continues from the step in the flash. Returns the result of the status SUCCEEDED.

        Raises Restart when the device must restart, Rejected, UpdateFailed, LinkError.
        """
        if not self.take(order):
            raise Rejected("this device has another update in progress")
        if order.mode != "download_only" and self._is_running(order) and self._job().step == "download":
            return {"version": self.version, "installed": False}
        steps = {
            "download": self._download,
            "verify": self._verify,
            "wait": self._wait,
            "install": self._install,
            "confirm": self._confirm,
            "rollback": self._rollback,
        }
        while True:
            step = self._job().step
            await self._before(step)
            try:
                result = await steps[step](call)
            except OSError as error:
                if not self._must_end_well():
                    raise
                log.warning("the step %s is not stored (%s): again in %g s", step, error, self._policy.again_s)
                await asyncio.sleep(self._policy.again_s)
                continue
            if result is not None:
                return result

    def _must_end_well(self) -> bool:
        """Whether an image is on trial or confirmed. If the order ended here, nobody would confirm the image, roll it
        back or raise the floor."""
        return self._job().step in ("confirm", "rollback") or self._flash.boot().trial is not None

    # -- the steps: each ends by writing the next one, with the result, or by an exception --------------------------

    async def _download(self, call: Call) -> dict[str, Any] | None:
        manifest = await self._accepted()
        artifact = manifest.artifact
        told = 0

        def progress(done: int, of: int) -> None:
            nonlocal told
            percent = done * 100 // of
            if percent >= told + _PROGRESS_PERCENT and done < of:
                told = percent
                call.report(percent, step="download")

        download = Download(
            self._link,
            manifest,
            self._flash,
            progress=progress,
            stall_s=self._policy.stall_s,
            pace_s=self._policy.pace_s,
        )
        await call.progress(0, step="download")
        try:
            await download.run()
        except OSError as error:
            self._flash.drop_image()
            why = "no space left" if error.errno == errno.ENOSPC else str(error)
            raise UpdateFailed(f"the image of {artifact.size} bytes cannot be stored: {why}") from error
        except LinkClosed:
            raise
        except HeadwaterError as error:
            self._flash.drop_image()
            raise UpdateFailed(str(error)) from error
        self._go_on("verify")
        return None

    async def _accepted(self) -> Manifest:
        """The manifest, once it matches the order. It is kept in the job, whatever happens to it at the broker."""
        job = self._job()
        if job.manifest is not None:
            return Manifest.parse(job.manifest.encode())
        try:
            # A broker closes the connection of whoever subscribes to a wrong filter, and so would end every connection.
            check_name("name", job.name)
            check_name("version", job.version)
            text = await fetch_manifest(self._link, job.name, job.version)
            manifest = Manifest.parse(text)
            self._must_be_ordered(job, manifest)
            await self._must_be_allowed(manifest)
        except NotFoundError as error:
            raise UpdateFailed(str(error)) from error
        except (ArtifactError, RefusedError) as error:
            raise Rejected(str(error)) from error
        free = self._flash.free_bytes()
        if free < manifest.artifact.size + _SPARE_BYTES:
            raise Rejected(f"the image has {manifest.artifact.size} bytes, but only {free} are free")
        self._flash.set_job(replace(job, manifest=text.decode()))
        return manifest

    async def _must_be_allowed(self, manifest: Manifest) -> None:
        if self._keys is not None:
            await self._keys.check(manifest)
        elif not self._policy.allow_unsigned:
            self._policy.trust.check(manifest.artifact, manifest.signature)

    def _must_be_ordered(self, job: Job, manifest: Manifest) -> None:
        artifact = manifest.artifact
        if (artifact.name, artifact.version) != (job.name, job.version):
            raise ArtifactError(
                f"the manifest is for {artifact.name} {artifact.version}, not for {job.name} {job.version}"
            )
        if job.sha256 is not None and artifact.sha256 != job.sha256:
            raise ArtifactError(
                f"{job.name} {job.version} has sha256 {artifact.sha256[:12]}…, but {job.sha256[:12]}… was ordered"
            )

    async def _verify(self, call: Call) -> dict[str, Any] | None:
        artifact = self._manifest().artifact
        await call.progress(100, step="verify")
        found = self._flash.sha256(artifact)
        if found != artifact.sha256:
            self._flash.drop_image()
            raise UpdateFailed(f"the image has sha256 {found[:12]}…, but the manifest says {artifact.sha256[:12]}…")
        self._go_on("wait")
        return None

    async def _wait(self, call: Call) -> dict[str, Any] | None:
        mode = self._job().mode
        if mode == "download_only":
            return {"version": self.version, "downloaded": self._job().version}
        if mode == "soft" and not self._forced.is_set():
            await call.progress(100, step="wait")
            await self._until_fit()
        if self._keys is not None:
            # It may have waited for weeks, and keys may have been revoked meanwhile.
            try:
                await self._keys.check(self._manifest())
            except ArtifactError as error:
                self._flash.drop_image()
                raise Rejected(str(error)) from error
        # From here on a cancel is too late.
        self._go_on("install")
        return None

    async def _until_fit(self) -> None:
        fit = asyncio.ensure_future(self._platform.may_install())
        forced = asyncio.ensure_future(self._forced.wait())
        try:
            done, _ = await asyncio.wait({fit, forced}, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            fit.cancel()
            forced.cancel()

    async def _install(self, call: Call) -> dict[str, Any] | None:
        artifact = self._manifest().artifact
        await call.progress(100, step="install")
        self._flash.stage(artifact)
        if self._flash.staged_sha256() != artifact.sha256:
            raise UpdateFailed("the image was damaged before it was written to its slot")
        firmware = Firmware(artifact.name, artifact.version, artifact.sha256)
        # In this order, a reset in between repeats the installation, which changes nothing.
        self._flash.set_boot(replace(self._flash.boot(), trial=firmware, boots=0))
        self._go_on("confirm")
        raise Restart(f"to start {artifact.name} {artifact.version}")

    async def _confirm(self, call: Call) -> dict[str, Any] | None:
        boot, job = self._flash.boot(), self._job()
        if boot.trial is None:
            if boot.good.version == job.version and boot.good.sha256 == self._manifest().artifact.sha256:
                self._raise_floor()
                return {"version": boot.good.version, "installed": True}
            raise UpdateFailed(
                f"{job.version} was started {BOOTS_MAX} times without being confirmed: back to {self.version}"
            )
        await call.progress(100, step="confirm")
        try:
            if self._flash.staged_sha256() != boot.trial.sha256:
                raise UpdateFailed("the image in its slot is damaged")
            await self._platform.check(boot.trial)
        except Exception as error:
            self._flash.set_job(replace(job, step="rollback", reason=f"{job.version} does not work: {error}"))
            return None
        self._flash.set_boot(boot.confirmed())
        self._raise_floor()
        return {"version": self.version, "installed": True}

    def _raise_floor(self) -> None:
        """After the confirmation, so that an image that does not work can be rolled back. Repeated if interrupted."""
        if self._keys is not None:
            self._keys.guard.confirmed(self._manifest())

    async def _rollback(self, call: Call) -> dict[str, Any] | None:
        boot, job = self._flash.boot(), self._job()
        if boot.trial is None:
            raise UpdateFailed(f"{job.reason}: rolled back to {self.version}")
        await call.progress(100, step="rollback")
        self._flash.set_boot(boot.rolled_back())
        raise Restart(f"to go back to {boot.good.version}")

    def _job(self) -> Job:
        job = self._flash.job()
        if job is None:
            raise UpdateFailed("the device lost its update: its flash was erased")
        return job

    def _manifest(self) -> Manifest:
        manifest = self._job().manifest
        if manifest is None:
            raise UpdateFailed("the device lost the manifest of its update")
        return Manifest.parse(manifest.encode())

    def _go_on(self, step: str) -> None:
        self._flash.set_job(replace(self._job(), step=step))

    def _is_running(self, order: Order) -> bool:
        running = self._flash.boot().running
        return running.version == order.target_version
