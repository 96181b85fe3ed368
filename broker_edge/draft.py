"""A file that is written beside another one and then takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any


def open_draft(path: Path, *, text: bool = False) -> IO[Any]:
    """Opens a new, empty file for writing, in place of one that an earlier attempt left.

    A link in its place is removed and not followed: in a folder that others may write, it could lead to any file.

    Args:
        path: The draft. The caller replaces the other file with it.
        text: Whether text is written (UTF-8, line ends as given) and not bytes.

    Raises:
        OSError: The file cannot be created, or another process has just created it.
    """
    path.unlink(missing_ok=True)
    return path.open("x", encoding="utf-8", newline="") if text else path.open("xb")
