"""What a device accepts: it holds its product, its hardware id, a key list and a security floor, and checks everything
against them before anything is written (docs/adr/0021).

The newest key list, the floor and the latest signed time are one file that is replaced at once, so that a power cut
leaves the old or the new one. Nothing here talks to a broker; `device.key_feed` does.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from broker_edge.artifacts.manifest import Manifest
from broker_edge.device.files import write_json
from broker_edge.errors import ConfigError, HeadwaterError
from broker_edge.policy import DIRECTOR, Floor, Policy, PolicyError, Root, SignedCommand, parse_chain

log = logging.getLogger(__name__)

_WHAT = "this command"


@dataclass(frozen=True, slots=True)
class Held:
    """What must survive a restart.

    `time_us` is the latest time in what root or targets keys have signed. A new key list sets it to its own time, also
    back: that repairs a fleet after a policy with a time in the future.
    """

    root: Root
    floor: Floor | None = None
    time_us: int = 0


class HeldStore(Protocol):
    """`save` is durable when it returns."""

    def load(self) -> Held | None: ...

    def save(self, held: Held) -> None: ...


class FileHeld:
    """A JSON file. Damage is a ConfigError: a device that forgot its floor would accept old images."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Held | None:
        if not self._path.exists():
            return None
        try:
            body = json.loads(self._path.read_text())
            floor = body["floor"]
            return Held(
                root=Root.of_json(body["root"]),
                floor=None if floor is None else Floor.of_json(floor),
                time_us=int(body["time_us"]),
            )
        except (OSError, KeyError, TypeError, ValueError, RecursionError, HeadwaterError) as error:
            raise ConfigError(
                f"{self._path} is damaged ({error}): put the file of a backup there; without it the device would "
                "forget which keys are revoked"
            ) from error

    def save(self, held: Held) -> None:
        floor = None if held.floor is None else held.floor.to_json()
        write_json(self._path, {"root": held.root.signed.to_json(), "floor": floor, "time_us": held.time_us})


class MemoryHeld:
    """The flash of a simulated device."""

    def __init__(self) -> None:
        self._held: Held | None = None

    def load(self) -> Held | None:
        return self._held

    def save(self, held: Held) -> None:
        self._held = held


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """With what a device is made. `root` and `floor` count only while the device holds nothing newer."""

    root: Root
    product: str
    hardware: str
    floor: Floor | None = None


def _clock_us() -> int:
    return time.time_ns() // 1_000


class CommandRefused(Exception):
    """A command that must not be carried out; the message goes into the status."""

    def __init__(self, message: str, *, may_be_newer: bool = False) -> None:
        super().__init__(message)
        self.may_be_newer = may_be_newer
        """Whether a newer key list could change the answer."""


class Guard:
    """Use from one event loop. Raises PolicyError if `settings.root` is not signed by its own keys."""

    def __init__(
        self,
        settings: GuardSettings,
        store: HeldStore,
        *,
        clock_us: Callable[[], int] = _clock_us,
    ) -> None:
        self._settings, self._store, self._clock_us = settings, store, clock_us
        settings.root.check_signed()
        before = store.load()
        held = before or Held(settings.root, time_us=settings.root.signed_us)
        if settings.root.version > held.root.version:
            held = replace(held, root=settings.root, time_us=settings.root.signed_us)
        elif settings.root.version == held.root.version and settings.root.signed.body != held.root.signed.body:
            log.warning("the device holds another version %d of the key list, which counts", held.root.version)
        if settings.floor is not None:
            held = replace(held, floor=settings.floor if held.floor is None else held.floor.raised(settings.floor))
        if held != before:
            store.save(held)
        self._held = held

    @property
    def root(self) -> Root:
        return self._held.root

    @property
    def floor(self) -> Floor | None:
        return self._held.floor

    @property
    def product(self) -> str:
        return self._settings.product

    @property
    def hardware(self) -> str:
        return self._settings.hardware

    def now_us(self) -> int:
        """The clock, but not before the latest signed time that this device has seen."""
        return max(self._clock_us(), self._held.time_us)

    def learn(self, payload: bytes) -> bool:
        """Takes the key lists of a record that follow the one held. Returns whether there was one; says in the log what
        it does not accept."""
        before = self._held
        held = before
        try:
            for root in parse_chain(payload):
                if root.version > held.root.version:
                    root.check_next(held.root)
                    held = replace(held, root=root, time_us=root.signed_us)
        except PolicyError as error:
            log.warning("a device keeps version %d of its key list: %s", held.root.version, error)
        if held is before:
            return False
        try:
            self._store.save(held)
        except OSError as error:
            # It counts all the same: what it revokes must not be believed because a disk is full.
            what = f"version {held.root.version} of the key list is not stored ({error.strerror})"
            log.warning("%s: after a restart the device asks for it again", what)
        self._held = held
        log.info("a device takes version %d of its key list", held.root.version)
        return True

    # -- firmware --------------------------------------------------------------------------------------------------

    def check(self, manifest: Manifest) -> None:
        """Raises PolicyError unless this device may install the artifact now."""
        policy = Policy.of(manifest)
        self._must_be_valid_root()
        policy.check_signed(self.root)
        if policy.signed_us > self._held.time_us:
            held = replace(self._held, time_us=policy.signed_us)
            self._store.save(held)
            self._held = held
        what = f"{manifest.artifact.name} {manifest.artifact.version}"
        if policy.product != self.product:
            raise PolicyError(f"{what} is for the product {policy.product}, and this device is a {self.product}")
        if self.hardware not in policy.hardware:
            known = ", ".join(sorted(policy.hardware))
            raise PolicyError(f"{what} is for hardware {known}, and this device has {self.hardware}")
        if self.floor is not None:
            self.floor.check(manifest.artifact.version)
        self._must_be_valid(f"the policy of {what}", policy.expires_us)

    def confirmed(self, manifest: Manifest) -> None:
        """Raises the floor to that of an image that works. May be repeated."""
        # Without a policy, the update began before this device had a guard.
        floor = None if manifest.policy is None else Policy.of(manifest).floor
        if floor is None:
            return
        raised = floor if self.floor is None else self.floor.raised(floor)
        if raised != self.floor:
            held = replace(self._held, floor=raised)
            self._store.save(held)
            self._held = held

    # -- commands --------------------------------------------------------------------------------------------------

    def command(self, payload: bytes, device_id: str) -> bytes:
        """The bytes of a command that count. Raises CommandRefused unless a director has signed it for this device.

        Without the role in the key list every command counts as it is.
        """
        role = self.root.role(DIRECTOR)
        signed = SignedCommand.of(payload)
        if role is None:
            return payload if signed is None else signed.body
        if signed is None:
            raise CommandRefused("this command is not signed: set actions.signing_key where the actions job runs")
        try:
            self._must_be_valid_root()
            self.root.must_have_signed(DIRECTOR, _WHAT, signed.signed_bytes(), signed.signed())
        except PolicyError as error:
            unknown = signed.signature.key_id not in role.key_ids
            reason = f"{_WHAT} is signed with key {signed.signature.key_id}, which is no director" if unknown else error
            raise CommandRefused(str(reason), may_be_newer=unknown or self._is_expired(self.root.expires_us)) from error
        try:
            self._must_be_valid(_WHAT, signed.expires_us)
        except PolicyError as error:
            raise CommandRefused(str(error)) from error
        if (named := _device_of(signed.body)) != device_id:
            raise CommandRefused(f"this command is for the device {named}, not for {device_id}")
        return signed.body

    # -- time ------------------------------------------------------------------------------------------------------

    def _is_expired(self, expires_us: int) -> bool:
        return self.now_us() >= expires_us

    def _must_be_valid(self, what: str, expires_us: int) -> None:
        if self._is_expired(expires_us):
            clock = "by the clock of this device" if self.now_us() == self._clock_us() else "by what it has seen signed"
            raise PolicyError(f"{what} expired on {_day(expires_us)}; it is {_day(self.now_us())} {clock}")

    def _must_be_valid_root(self) -> None:
        self._must_be_valid(f"version {self.root.version} of the key list", self.root.expires_us)


def _device_of(body: bytes) -> Any:
    try:
        return json.loads(body).get("device_id")
    except (ValueError, RecursionError, AttributeError):
        return None


def _day(at_us: int) -> str:
    """A time that a message can show, whatever the number is."""
    try:
        return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{at_us} µs"
