"""The power cut itself: synced bytes survive it, bytes that were only written do not."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
from pathlib import Path

import pytest
from support.netns_nodes import UNSHARE

from broker_edge.torture.loop_image import _unmount
from broker_edge.torture.waiting import wait_until

SIZE = 64 * 1024


def _write_then_cut(image, *, sync: bool, flags: int) -> bytes:
    path = image.mount_point / "file"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(SIZE))
        os.fsync(file.fileno())
    folder = os.open(image.mount_point, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    pages = mmap.mmap(-1, SIZE)  # Page-aligned, as direct writes require.
    pages.write(b"\xaa" * SIZE)
    file = os.open(path, os.O_WRONLY | flags)
    try:
        os.write(file, pages)
        if sync:
            os.fdatasync(file)
        image.cut_power()
    finally:
        os.close(file)
    image.power_on()
    return path.read_bytes()


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["cached", "direct"])
def test_synced_bytes_survive_power_cut(loop_image, flags):
    assert _write_then_cut(loop_image(32), sync=True, flags=flags) == b"\xaa" * SIZE


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["cached", "direct"])
def test_unsynced_bytes_are_gone_after_power_cut(loop_image, flags):
    assert _write_then_cut(loop_image(32), sync=False, flags=flags) == bytes(SIZE)


def test_write_back_leaves_writes_half_there(loop_image, seed):
    image = loop_image(32)
    path = image.mount_point / "file"
    pages = 512
    with path.open("wb", buffering=0) as file:
        # One page per write: a larger write may become one folio of the page cache, which is written to disk as a
        # whole.
        for _ in range(pages):
            file.write(bytes(4_096))
        os.fsync(file.fileno())
        file.seek(0)
        file.write(b"\xaa" * pages * 4_096)
        image.write_some_back(random.Random(seed), share=1.0)
        image.cut_power()
    image.power_on()
    held = path.read_bytes()
    there = sum(held[page * 4_096] == 0xAA for page in range(pages))
    assert 0 < there < pages, f"seed {seed}"


def test_full_image_takes_writes_again_after_space_is_back(loop_image):
    image = loop_image(32)
    ballast = image.fill()
    assert image.free_bytes() == 0
    ballast.unlink()
    assert image.free_bytes() > 16 << 20


@pytest.mark.parametrize("propagation", ["slave", "private"])
def test_a_machine_of_another_test_does_not_keep_the_disk(loop_image, propagation):
    """`private` is the control."""
    image = loop_image(32)
    own = os.readlink("/proc/self/ns/mnt")
    with subprocess.Popen([*UNSHARE[:-1], propagation, "cat"], stdin=subprocess.PIPE) as machine:
        wait_until(lambda: os.readlink(f"/proc/{machine.pid}/ns/mnt") != own, seconds=20, what="its namespace")
        command = Path(f"/proc/{machine.pid}/cmdline")
        wait_until(lambda: command.read_bytes().startswith(b"cat"), seconds=20, what="its program")
        image.cut_power()
        if propagation == UNSHARE[-1]:
            image.power_on()
        else:
            _unmount(image.mount_point)
            with pytest.raises(OSError, match="busy"):
                _unmount(image._outer_mount_point, seconds=0.2)
