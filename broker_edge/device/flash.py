"""The state of a device that survives a reset: which firmware starts, the update in progress, and its image.

There are two slots, as in boot loaders: one runs, the other receives the next image, which is tried a few times before
the old firmware starts again. `FileFlash` is a folder; `MemoryFlash` does not keep the bytes of images and serves
fleets of simulated devices. Neither knows the meaning of a step; `ota` does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from broker_edge.artifacts.manifest import Artifact
from broker_edge.device.files import remove, sync_folder, write_json
from broker_edge.errors import ConfigError

BOOTS_MAX = 3
"""How often a new image may start without being confirmed."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Firmware:
    name: str
    version: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Boot:
    """What the boot loader reads. `slot` holds `good`. If `trial` is set, it is in the other slot and starts
    instead."""

    good: Firmware
    slot: str = "a"
    trial: Firmware | None = None
    boots: int = 0

    @property
    def running(self) -> Firmware:
        return self.trial or self.good

    @property
    def other_slot(self) -> str:
        return "b" if self.slot == "a" else "a"

    def started(self) -> Boot:
        """The state after a start: drops a trial that has started too often without being confirmed."""
        if self.trial is None:
            return self
        if self.boots >= BOOTS_MAX:
            return replace(self, trial=None, boots=0)
        return replace(self, boots=self.boots + 1)

    def confirmed(self) -> Boot:
        return Boot(self.trial, self.other_slot) if self.trial is not None else self

    def rolled_back(self) -> Boot:
        return replace(self, trial=None, boots=0)


@dataclass(frozen=True, slots=True)
class Job:
    """The update in progress: the order, the current step, and the manifest once it was accepted."""

    action_id: str
    attempt: int
    mode: str
    name: str
    version: str
    sha256: str | None
    step: str
    manifest: str | None = None
    reason: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return (self.action_id, self.attempt)


class Flash(Protocol):
    """Every call is durable when it returns, except `append`: image bytes that a reset loses are downloaded again."""

    def boot(self) -> Boot: ...

    def set_boot(self, boot: Boot) -> None: ...

    def job(self) -> Job | None: ...

    def set_job(self, job: Job | None) -> None: ...

    def resume(self, artifact: Artifact) -> int:
        """The number of complete and correct chunks of the image; removes everything after them."""

    def append(self, artifact: Artifact, chunk: bytes) -> None: ...

    def sha256(self, artifact: Artifact) -> str:
        """The digest of the stored image."""

    def stage(self, artifact: Artifact) -> None:
        """Puts the image into the slot that is not running. Does nothing if it is already there."""

    def staged_sha256(self) -> str:
        """The digest of the slot that does not hold `good`."""

    def drop_image(self) -> None: ...

    def free_bytes(self) -> int: ...


class FileFlash:
    """A folder: `boot.json`, `job.json`, `slot-a`, `slot-b`, and `image-<sha256>.part` while it downloads."""

    def __init__(self, folder: Path, *, firmware: Firmware) -> None:
        """`firmware` is the initial firmware if the folder has no `boot.json`."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "boot.json").exists():
            self.set_boot(Boot(firmware))

    def boot(self) -> Boot:
        path = self._folder / "boot.json"
        with _damage(path, "put the file of a backup there; without it nobody knows which slot starts"):
            body = json.loads(path.read_text())
            trial = body.pop("trial")
            good = Firmware(**body.pop("good"))
            return Boot(good=good, trial=None if trial is None else Firmware(**trial), **body)

    def set_boot(self, boot: Boot) -> None:
        write_json(self._folder / "boot.json", asdict(boot))

    def job(self) -> Job | None:
        path = self._folder / "job.json"
        with _damage(path, "remove it to give up the update that was in progress"):
            return Job(**json.loads(path.read_text())) if path.exists() else None

    def set_job(self, job: Job | None) -> None:
        path = self._folder / "job.json"
        if job is None:
            remove(path)
        else:
            write_json(path, asdict(job))

    def resume(self, artifact: Artifact) -> int:
        path = self._image(artifact)
        for other in self._folder.glob("image-*.part"):
            if other != path:
                other.unlink()
        good = 0
        with path.open("a+b") as file:
            file.seek(0)
            for index, digest in enumerate(artifact.chunks):
                if hashlib.sha256(file.read(artifact.size_of(index))).hexdigest() != digest:
                    break
                good += 1
            file.truncate(min(good * artifact.chunk_size, artifact.size))
        return good

    def append(self, artifact: Artifact, chunk: bytes) -> None:
        with self._image(artifact).open("ab") as file:
            file.write(chunk)

    def sha256(self, artifact: Artifact) -> str:
        return _sha256(self._image(artifact))

    def stage(self, artifact: Artifact) -> None:
        image, slot = self._image(artifact), self._slot(self.boot().other_slot)
        if not image.exists():
            return
        with image.open("rb") as file:
            os.fsync(file.fileno())
        image.replace(slot)
        sync_folder(self._folder)

    def staged_sha256(self) -> str:
        return _sha256(self._slot(self.boot().other_slot))

    def drop_image(self) -> None:
        for image in self._folder.glob("image-*.part"):
            image.unlink()

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free

    def _image(self, artifact: Artifact) -> Path:
        return self._folder / f"image-{artifact.sha256}.part"

    def _slot(self, slot: str) -> Path:
        return self._folder / f"slot-{slot}"


@contextlib.contextmanager
def _damage(path: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({error}): {advice}") from error


class MemoryFlash:
    """The flash of a simulated device in memory. Of images it keeps only the number of chunks and the digest."""

    def __init__(self, *, firmware: Firmware) -> None:
        self._boot = Boot(firmware)
        self._job: Job | None = None
        self._image = _Image()
        self._staged = ""

    def boot(self) -> Boot:
        return self._boot

    def set_boot(self, boot: Boot) -> None:
        self._boot = boot

    def job(self) -> Job | None:
        return self._job

    def set_job(self, job: Job | None) -> None:
        self._job = job

    def resume(self, artifact: Artifact) -> int:
        if self._image.sha256 != artifact.sha256:
            self._image = _Image(artifact.sha256)
        return self._image.chunks

    def append(self, artifact: Artifact, chunk: bytes) -> None:
        self._image.add(chunk)

    def sha256(self, artifact: Artifact) -> str:
        return self._image.digest()

    def stage(self, artifact: Artifact) -> None:
        if self._image.chunks:
            self._staged = self._image.digest()
            self._image = _Image()

    def staged_sha256(self) -> str:
        return self._staged

    def drop_image(self) -> None:
        self._image = _Image()

    def free_bytes(self) -> int:
        return 1 << 40


class _Image:
    def __init__(self, sha256: str = "") -> None:
        self.sha256 = sha256
        self.hash: Any = hashlib.sha256()
        self.chunks = 0

    def digest(self) -> str:
        return str(self.hash.hexdigest())

    def add(self, chunk: bytes) -> None:
        self.hash.update(chunk)
        self.chunks += 1


def _sha256(path: Path) -> str:
    hash_ = hashlib.sha256()
    if path.exists():
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                hash_.update(piece)
    return hash_.hexdigest()
