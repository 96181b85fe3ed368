"""The child processes of this one, so that an interrupted start leaves no JVM behind.

A JVM of PySpark ends when its driver does, but only once it has begun to listen: one whose driver ended a moment
earlier finds the folder gone in which it tells its port, and then stays for ever without anybody.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def children() -> set[int]:
    """Process ids of the children of this process (proc(5))."""
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        # One that ends meanwhile is no child.
        with contextlib.suppress(OSError):
            # The name, which is in parentheses, may have spaces; state and parent follow it.
            _, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid():
                found.add(int(folder.name))
    return found


@contextlib.contextmanager
def ended_on_interrupt() -> Iterator[None]:
    """Ends the children that begin within it if it is left by KeyboardInterrupt."""
    before = children()
    try:
        yield
    except KeyboardInterrupt:
        for child in children() - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        raise
