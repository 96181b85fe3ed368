"""Opens the files that people name, for reading. Opening a named pipe in their place would wait for its other end."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Raises OSError, also for what is no regular file; its `strerror` says so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def read_regular_text(path: Path, encoding: str = "utf-8") -> str:
    with io.TextIOWrapper(open_regular(path), encoding) as file:
        return file.read()
