"""An ext4 file system in a file, whose power can be cut.

`LoopImage.cut_power` makes ext4 discard everything it has not written, including its journal (EXT4_IOC_SHUTDOWN with
NOLOGFLUSH): what the page cache held is gone after the next mount, as after a power failure. Sectors that the file
system did write stay complete, so torn sectors are not simulated. Needs root, mkfs.ext4 and loop devices.
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
        self.mount_point = folder / "mnt"
        self._file = folder / "disk.img"
        self._size_bytes = size_bytes
        self._mounted = False

    def __enter__(self) -> LoopImage:
        self.mount_point.mkdir(parents=True)
        with self._file.open("wb") as image:
            image.truncate(self._size_bytes)
        # Reserve no blocks for root: a full disk must be full for every user.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._file))
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            if self._mounted:
                _run("umount", "-l", str(self.mount_point))
        self._file.unlink(missing_ok=True)

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._file), str(self.mount_point))
        self._mounted = True

    def unmount(self, *, seconds: float = 10.0) -> None:
        """Waits while the file system is busy: a killed process closes its files a little after its end."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                _run("umount", str(self.mount_point))
            except subprocess.CalledProcessError as busy:
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, f"umount {self.mount_point}: {busy.stderr.strip()}") from busy
                time.sleep(0.01)
            else:
                self._mounted = False
                return

    def cut_power(self) -> None:
        """From now on nothing reaches the disk. Kill the processes that use it, then call `power_on`."""
        folder = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _LOG_NOT_FLUSHED))
        finally:
            os.close(folder)

    def write_some_back(self, moments: random.Random, *, share: float = 0.7) -> None:
        """Writes some dirty pages of this share of the files to the disk, as a kernel or a disk may do at any time.

        A following `cut_power` leaves partial writes, with later bytes but without earlier ones.
        """
        for path in sorted(self.mount_point.rglob("*")):
            if not path.is_file() or moments.random() >= share:
                continue
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # The broker may remove files.
                size, start = os.fstat(file.fileno()).st_size, 0
                while start < size:
                    length = moments.choice((1, 1, 2, 8)) * PAGE_BYTES
                    if moments.random() < 0.5:
                        _write_back(file.fileno(), start, length)
                    start += length

    def power_on(self) -> None:
        self.unmount()
        self.mount()

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
