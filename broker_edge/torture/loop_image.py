"""An ext4 file system in a file, whose power can be cut.

The file of the disk lies in a file system of its own, whose page cache stands for the cache of the disk: what was
written to the disk, also past the page cache, is lost in a power cut until the disk was told to flush.
`LoopImage.cut_power` makes both file systems discard everything they have not written, including their journals
(EXT4_IOC_SHUTDOWN with NOLOGFLUSH). Sectors that were written stay complete, so torn sectors are not simulated. Needs
root, mkfs.ext4 and loop devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType

PAGE_BYTES = 4096

_libc = ctypes.CDLL(None, use_errno=True)
_SHUTDOWN = 0x8004587D
_LOG_NOT_FLUSHED = 2


def missing_prerequisites() -> list[str]:
    """What this machine lacks for loop images, one sentence each; empty if nothing."""
    lacks = [] if os.geteuid() == 0 else ["root is needed to mount a loop image"]
    for program in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(program, path=_path()) is None:
            lacks.append(f"{program} is missing (Debian: apt-get install e2fsprogs mount)")
    return lacks


class LoopImage:
    """A file system of `size_bytes` on `mount_point`, removed at the end of the `with` block in any case."""

    def __init__(self, folder: Path, *, size_bytes: int) -> None:
        self._folder = folder
        self.mount_point = folder / "mnt"
        self._outer_mount_point = folder / "cache"
        self._outer = folder / "outer.img"
        self._disk = self._outer_mount_point / "disk.img"
        self._size_bytes = size_bytes

    def __enter__(self) -> LoopImage:
        self.mount_point.mkdir(parents=True)
        # Shared, so that an unmount also reaches the copies in mount namespaces that others make meanwhile (`ip netns
        # exec`). Such a copy would keep the disk busy.
        _run("mount", "--bind", str(self._folder), str(self._folder))
        _run("mount", "--make-shared", str(self._folder))
        self._outer_mount_point.mkdir()
        with self._outer.open("wb") as outer:
            outer.truncate(self._size_bytes + self._size_bytes // 8 + (16 << 20))
        _make_file_system(self._outer)
        _mount(self._outer, self._outer_mount_point)
        with self._disk.open("wb") as disk:
            for start in range(0, self._size_bytes, 1 << 20):
                disk.write(bytes(min(1 << 20, self._size_bytes - start)))
            os.fsync(disk.fileno())
        _make_file_system(self._disk)
        _mount(self._disk, self.mount_point)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The last one is a bind mount, of which Python does not know that it is one.
        for mount_point in (self.mount_point, self._outer_mount_point, self._folder):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("umount", "-l", str(mount_point))
        # It is below the bind mount, which hides nothing.
        self._outer.unlink(missing_ok=True)

    def cut_power(self) -> None:
        """From now on nothing reaches the disk. Kill the processes that use it, then call `power_on`."""
        # The cache of the disk first: nothing that the file system still writes may survive.
        for mount_point in (self._outer_mount_point, self.mount_point):
            folder = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _LOG_NOT_FLUSHED))
            finally:
                os.close(folder)

    def write_some_back(self, moments: random.Random, *, share: float = 0.7) -> None:
        """Writes some dirty pages of this share of the files, and then some of the disk's cache, as a kernel and a disk
        may do at any time.

        A following `cut_power` leaves partial writes, with later bytes but without earlier ones.
        """
        for path in sorted(self.mount_point.rglob("*")):
            if path.is_file() and moments.random() < share:
                with contextlib.suppress(FileNotFoundError):  # The broker may remove files.
                    _write_some_back(path, moments)
        _write_some_back(self._disk, moments)

    def power_on(self) -> None:
        _unmount(self.mount_point)
        _unmount(self._outer_mount_point)
        _mount(self._outer, self._outer_mount_point)
        _mount(self._disk, self.mount_point)

    def free_bytes(self) -> int:
        space = os.statvfs(self.mount_point)
        return space.f_bavail * space.f_frsize

    def fill(self, name: str = "ballast") -> Path:
        """Fills the free space with one file, and returns it; removing it frees the space."""
        ballast = self.mount_point / name
        chunk = bytes(1 << 20)
        with ballast.open("wb", buffering=0) as file:
            while chunk:
                try:
                    file.write(chunk)
                except OSError as full:
                    if full.errno != errno.ENOSPC:
                        raise
                    chunk = chunk[: len(chunk) // 2] if len(chunk) > 512 else b""
            os.fsync(file.fileno())
        return ballast


def _make_file_system(file: Path) -> None:
    # Reserve no blocks for root: a full disk must be full for every user.
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(file))


def _mount(file: Path, mount_point: Path) -> None:
    _run("mount", "-o", "loop", str(file), str(mount_point))


def _unmount(mount_point: Path, *, seconds: float = 20.0) -> None:
    """Waits while the file system is busy: a killed process closes its files a little after its end, on a busy machine
    seconds later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            _run("umount", str(mount_point))
        except subprocess.CalledProcessError as busy:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, f"umount {mount_point}: {busy.stderr.strip()}") from busy
            time.sleep(0.01)
        else:
            return


def _write_some_back(path: Path, moments: random.Random) -> None:
    with path.open("rb") as file:
        size, start = os.fstat(file.fileno()).st_size, 0
        while start < size:
            length = moments.choice((1, 1, 2, 8)) * PAGE_BYTES
            if moments.random() < 0.5:
                _write_back(file.fileno(), start, length)
            start += length


def _write_back(file: int, start: int, length: int) -> None:
    wait_write_wait = 7
    if _libc.sync_file_range(file, ctypes.c_int64(start), ctypes.c_int64(length), wait_write_wait) != 0:
        raise OSError(ctypes.get_errno(), "sync_file_range")


def _path() -> str:
    """A PATH with Debian's folders for mkfs and umount, which a user's PATH may lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _run(program: str, *arguments: str) -> None:
    found = shutil.which(program, path=_path())
    if found is None:
        raise FileNotFoundError(f"{program} is missing (Debian: apt-get install e2fsprogs mount)")
    subprocess.run([found, *arguments], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
