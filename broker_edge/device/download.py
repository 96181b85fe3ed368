"""Downloads an artifact from the log by offset: first the manifest, then chunk after chunk into the flash.

The device itself tracks the offset at which it resumes and does not rely on the broker's cursor. Each chunk is checked
and stored before it is acknowledged; besides the link's own buffer, one chunk at a time is in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable

from broker_edge.artifacts.manifest import ArtifactError, Manifest, chunks_topic, manifest_topic
from broker_edge.device.flash import Flash
from broker_edge.device.link import Delivery, Link
from broker_edge.errors import NotFoundError

log = logging.getLogger(__name__)

MANIFEST_S = 10.0
"""How long to wait for the retained manifest after the subscription was granted."""
STALL_S = 30.0
"""After this time without a chunk, subscribe again."""
STALLS_MAX = 10
"""After this many stalls in a row while connected, the artifact's chunks count as missing."""
_WRONG_MAX = 3


async def fetch_manifest(link: Link, name: str, version: str) -> bytes:
    """The newest retained manifest. Raises NotFoundError if there is none, LinkError if the broker refuses."""
    topic = manifest_topic(name, version)
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(delivery: Delivery) -> None:
        if delivery.payload and not came.done():
            came.set_result(delivery.payload)

    await link.listen(topic, take)
    try:
        async with asyncio.timeout(MANIFEST_S):
            return await came
    except TimeoutError as error:
        raise NotFoundError(f"the broker has no artifact {name} {version}") from error
    finally:
        link.unlisten(topic)


class Download:
    """The download of one artifact into the flash. `run` may be cancelled and started again at any time."""

    def __init__(
        self,
        link: Link,
        manifest: Manifest,
        flash: Flash,
        *,
        progress: Callable[[int, int], None] | None = None,
        stall_s: float = STALL_S,
        pace_s: float = 0.0,
    ) -> None:
        """Calls `progress` with the chunks done and the total; with `pace_s` each chunk takes that long."""
        self._link, self._manifest, self._flash = link, manifest, flash
        self._progress, self._stall_s, self._pace_s = progress, stall_s, pace_s
        self._artifact = manifest.artifact
        self._next = 0
        self._wrong = 0
        self._stalls = 0
        self._error: Exception | None = None
        self._moved = asyncio.Event()
        self._lost_place = False
        self.resumed_at = 0
        """The chunk at which the last `run` started."""

    async def run(self) -> None:
        """Returns when all chunks are in the flash. Raises ArtifactError for wrong ones, OSError when the flash is
        full."""
        self._next = self.resumed_at = self._flash.resume(self._artifact)
        topic = chunks_topic(self._artifact.name, self._artifact.version)
        try:
            while not self._is_done():
                self._lost_place = False
                await self._link.listen(topic, self._take, position=self._position, pace_s=self._pace_s)
                await self._follow()
        finally:
            self._link.unlisten(topic)
        if self._error is not None:
            raise self._error

    async def _follow(self) -> None:
        """Returns when all chunks are there, or when a new subscription is needed."""
        while not self._is_done() and not self._lost_place:
            self._moved.clear()
            try:
                async with asyncio.timeout(self._stall_s):
                    await self._moved.wait()
            except TimeoutError:
                self._stalls += self._link.connected
                if self._stalls == STALLS_MAX:
                    self._error = ArtifactError(f"no chunk of {self._artifact.name} {self._artifact.version} arrives")
                log.info("no chunk of %s for %g s: subscribing again", self._artifact.name, self._stall_s)
                return

    def _is_done(self) -> bool:
        return self._error is not None or self._next == len(self._artifact.chunks)

    def _position(self) -> str | None:
        """The log position of the next chunk."""
        if self._next == len(self._artifact.chunks):
            return None
        return f"{self._manifest.place.partition}:{self._manifest.place.offset_of(self._next)}"

    def _take(self, delivery: Delivery) -> None:
        if self._is_done() or delivery.partition != self._manifest.place.partition:
            return
        index = self._manifest.place.index_at(delivery.offset)
        if index is None or index < self._next:
            return  # A chunk of another push, or one that arrived before an interruption.
        if index > self._next:
            self._lost_place = True
        elif hashlib.sha256(delivery.payload).hexdigest() != self._artifact.chunks[index]:
            self._take_wrong(index)
        else:
            self._store(delivery.payload)
        self._moved.set()

    def _take_wrong(self, index: int) -> None:
        """A chunk cannot change unnoticed on the connection, but a proxy may alter it: ask for it again a few times."""
        self._wrong += 1
        self._lost_place = True
        if self._wrong == _WRONG_MAX:
            what = f"{self._artifact.name} {self._artifact.version}"
            self._error = ArtifactError(f"chunk {index} of {what} did not match the manifest {_WRONG_MAX} times")

    def _store(self, chunk: bytes) -> None:
        try:
            self._flash.append(self._artifact, chunk)
        except OSError as error:
            self._error = error
            return
        self._next += 1
        self._wrong = self._stalls = 0
        if self._progress is not None:
            self._progress(self._next, len(self._artifact.chunks))
