"""The statuses of a device: publishes them in order, and keeps the journal up to date with what the broker knows.

A status that ends a command, and ONLINE, are said again until the broker acknowledges them. Which status is due is
decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from broker_edge.device.journal import Entry, Journal
from broker_edge.device.link import Link, PublishRefused
from broker_edge.device.pauses import AGAIN_FIRST_S, pauses
from broker_edge.device.wording import Said, Words

log = logging.getLogger(__name__)

Key = tuple[str, int]
"""(action_id, attempt)"""
_ONLINE = ("", 0)
_UNHEARD_MAX = 1_000
"""As many as a journal keeps. The oldest are then only said again at the next start."""


class Reports:
    """`version` is the running firmware, or None; `product` and `hardware` say what the device is. Each run of a device
    has a boot id, and counts its statuses."""

    def __init__(
        self,
        device_id: str,
        journal: Journal,
        words: Words,
        *,
        version: Callable[[], str | None],
        on_told: Callable[[Said], None] | None,
        product: str | None = None,
        hardware: str | None = None,
        again_s: float = AGAIN_FIRST_S,
    ) -> None:
        self._device_id, self._journal, self._words = device_id, journal, words
        self._version, self._on_told = version, on_told
        self._product, self._hardware = product, hardware
        self._link: Link | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._progress: dict[Key, asyncio.Task[None]] = {}
        self._again_s = again_s
        # What the broker refused, oldest first, and the task that says it again.
        self._unheard: dict[Key, None] = {}
        self._again: asyncio.Task[None] | None = None
        self.boot = uuid.uuid4().hex[:12]
        self._seq = 0

    def attach(self, link: Link) -> None:
        self._link = link

    def begin_boot(self) -> None:
        """New boot id, seq starts again."""
        self.boot = uuid.uuid4().hex[:12]
        self._seq = 0

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What is being published."""
        return list(self._telling)

    async def online(self) -> None:
        await self._say_in_the_end(_ONLINE, self._publish(*_ONLINE, "ONLINE"))

    async def say(
        self, key: Key, state: str, message: str | None = None, progress: int | None = None, step: str | None = None
    ) -> None:
        """Notes a state that is not final, and reports it."""
        self._journal.put(Entry(*key, state, message))
        await self._progress_said(key)
        await self._publish(*key, state, message, progress=progress, step=step)

    async def tell(self, entry: Entry) -> None:
        """Reports what the journal has, and notes that the broker knows it. Returns also if the broker refuses it."""
        key = (entry.action_id, entry.attempt)
        await self._progress_said(key)
        await self._say_in_the_end(key, self._tell(entry))

    async def _tell(self, entry: Entry) -> None:
        await self._publish(entry.action_id, entry.attempt, entry.state, entry.message, entry.result)
        try:
            self._journal.put(replace(entry, told=True))
        except OSError as error:
            log.warning(
                "device %s says the end of %s once more at its next start: its journal is not stored (%s)",
                self._device_id,
                entry.action_id,
                error,
            )

    async def _say_in_the_end(self, key: Key, first: Coroutine[Any, Any, None]) -> None:
        """Waits for the first attempt only: behind a broker that refuses, commands go on and may end."""
        try:
            await first
        except PublishRefused as error:
            what = "that it is online" if key == _ONLINE else f"the end of {key[0]} attempt {key[1]}"
            log.warning("device %s says %s again later: %s", self._device_id, what, error)
            self._unheard[key] = None
            while len(self._unheard) > _UNHEARD_MAX:
                del self._unheard[next(iter(self._unheard))]
            if self._again is None or self._again.done():
                self._again = self._later(self._until_heard())

    async def _until_heard(self) -> None:
        waits = pauses(self._again_s)
        while self._unheard:
            await asyncio.sleep(next(waits))
            # All of them: the broker may refuse one for its size, and take those behind it.
            heard = [key for key in list(self._unheard) if await self._is_heard(key)]
            for key in heard:
                self._unheard.pop(key, None)
            if heard:
                waits = pauses(self._again_s)

    async def _is_heard(self, key: Key) -> bool:
        entry = self._journal.get(*key)
        if key != _ONLINE and (entry is None or entry.told):
            return True
        try:
            await (self._publish(*_ONLINE, "ONLINE") if entry is None else self._tell(entry))
        except PublishRefused:
            return False
        return True

    def tell_soon(self, entry: Entry) -> None:
        """Reports without delaying the link's next record. The link bounds these tasks: one answer per record in
        flight."""
        self._later(self.tell(entry))

    def answer_soon(self, key: Key, state: str, message: str) -> None:
        """Reports something that the journal must not contain."""
        self._later(self._publish(*key, state, message))

    def progress(self, key: Key, percent: int | None, message: str | None = None, step: str | None = None) -> None:
        """Reports progress without waiting. Skipped while an earlier report is being sent; the next one is newer
        anyway."""
        if key in self._progress:
            return
        task = self._later(self._publish(*key, "IN_PROGRESS", message, progress=percent, step=step))
        self._progress[key] = task
        task.add_done_callback(lambda _: self._progress.pop(key, None))

    async def _progress_said(self, key: Key) -> None:
        """Waits for progress reports, so that none of them arrives after a later status."""
        if (task := self._progress.get(key)) is not None:
            await asyncio.wait([task])

    def _later(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        task.add_done_callback(self.look_at)
        return task

    def look_at(self, task: asyncio.Task[None]) -> None:
        """Says in the log why a finished task could not report."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("device %s could not report: %s", self._device_id, error)

    async def _publish(
        self,
        action_id: str,
        attempt: int,
        state: str,
        message: str | None = None,
        result: Any = None,
        *,
        progress: int | None = None,
        step: str | None = None,
    ) -> None:
        if self._link is None:
            raise RuntimeError(f"device {self._device_id} has no link: call attach first")
        self._seq += 1
        said = Said(
            device_id=self._device_id,
            action_id=action_id,
            attempt=attempt,
            state=state,
            boot=self.boot,
            seq=self._seq,
            ts_us=time.time_ns() // 1_000,
            progress=progress,
            message=message,
            result=result,
            version=self._version(),
            step=step,
            # They cannot change while the device runs, so they are said once per run.
            product=None if action_id else self._product,
            hardware=None if action_id else self._hardware,
        )
        record = self._words.record(said)
        if record is None:
            return
        await self._link.publish(*record)
        if self._on_told is not None:
            self._on_told(said)
