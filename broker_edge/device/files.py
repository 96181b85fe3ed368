"""Small JSON files of a device that a power cut leaves either old or new, never partial."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from broker_edge.draft import open_draft

AGAIN_S = 30.0
"""How long to wait before something is written again that must be, and that a full disk did not take."""


def write_json(path: Path, value: Any) -> None:
    """Replaces the file. Once this returns, the new content survives a power cut."""
    draft = path.with_suffix(".new")
    with open_draft(draft, text=True) as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Removes the file if it exists. Once this returns, the removal survives a power cut."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames and removals in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
