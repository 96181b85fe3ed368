"""A power cut: what was acknowledged was on the disk, not in the page cache (invariants I1, I2, I3).

The same cycles with `log.sync: never` must lose acknowledged records: it shows that the cut takes what was not synced.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from support.broker_process import BrokerError, BrokerProcess
from support.crash_cycles import CrashCycles
from support.load_records import Recipe, publishers
from support.log_check import Fault, LogCheck
from support.loop_image import LoopImage
from support.mqtt_witness import MqttWitness, witnesses
from support.strace import injected

IMAGE_MIB = 384
SEGMENT = {"log.segment_bytes": "2MiB"}


def _cycles(
    image: LoopImage,
    broker: BrokerProcess,
    seed: int,
    *,
    strace: str | None,
    seen_by: tuple[MqttWitness, ...] = (),
    has_retention: bool = False,
    **settings: float,
) -> CrashCycles:
    """With `strace`, half of the cuts come while syncs are held back and some of their pages have reached the disk."""
    recipe, moments = Recipe(seed), random.Random(seed)
    sources = publishers(8, protocols=(5,) if has_retention else (5, 4))

    def crash(under_load: bool) -> None:
        if strace is None or not under_load or moments.random() < 0.5:
            image.cut_power()
            broker.kill()
        else:
            with injected(strace, pid=broker.pid, call="fdatasync", what="delay_enter=500ms"):
                time.sleep(moments.uniform(0.0, 0.05))  # the moment of the cut
                image.write_some_back(moments)
                image.cut_power()
                broker.kill()
        image.power_on()

    check = LogCheck(recipe, sources, has_retention=has_retention)
    return CrashCycles(broker, check, recipe, sources, crash=crash, moments=moments, witnesses=seen_by, **settings)


def test_acked_record_survives_power_cut(loop_image, broker_on, need_program, seed, cycles, note):
    image = loop_image(IMAGE_MIB)
    broker = broker_on(image.mount_point / "data", SEGMENT)
    runs = _cycles(image, broker, seed, strace=need_program("strace"), seen_by=witnesses())
    try:
        broker.start()
        for number in range(cycles):
            runs.run(number)
        runs.finish()
    finally:
        note(runs.check.report)
    assert runs.check.report.clean, runs.check.report.details()
    assert runs.check.report.acked >= cycles, runs.check.report.details()


def test_acked_record_survives_power_cut_in_recycled_segments(loop_image, broker_on, need_program, seed, cycles, note):
    """Retention makes new segments of old ones, whose stale batches must never come back. Fewer, longer cycles."""
    image = loop_image(IMAGE_MIB)
    settings = {"log.segment_bytes": "256KiB"} | {
        f"log.classes.{name}.retention.bytes": "1MiB" for name in ("telemetry", "control")
    }
    broker = broker_on(image.mount_point / "data", settings)
    runs = _cycles(image, broker, seed, strace=need_program("strace"), has_retention=True, acked_max=8_000)
    try:
        broker.start()
        recycled = 0
        for number in range((cycles + 1) // 2):
            runs.run(number)
            recycled += sum(_is_recycled(path) for path in broker.data_dir.glob("*/*.seg"))
        runs.finish()
    finally:
        note(runs.check.report)
    assert runs.check.report.clean, runs.check.report.details()
    assert runs.check.report.acked >= cycles, runs.check.report.details()
    assert recycled > 0, "no segment was made of an old one: this test shows nothing"


def _is_recycled(segment: Path) -> bool:
    """docs/format.md, section 3."""
    with segment.open("rb") as file:
        return file.read(38)[37:] == b"\x01"


def test_power_cut_loses_acked_records_without_sync(loop_image, broker_on, seed, note):
    image = loop_image(IMAGE_MIB)
    broker = broker_on(image.mount_point / "data", {**SEGMENT, "log.sync": "never"})
    runs = _cycles(image, broker, seed, strace=None, killed_first=0.0, stopped_first=0.0, starts_interrupted=0.0)
    try:
        broker.start()
        for number in range(5):
            runs.run(number)
            if runs.check.report.counts[Fault.LOST]:
                break
    except BrokerError as error:
        # Without syncs not even the files of the log need to be there.
        pytest.fail(f"the broker must start on what a power cut left: {error}")
    finally:
        note(runs.check.report)
    assert runs.check.report.counts[Fault.LOST] > 0, f"this cut is no cut: {runs.check.report}"
