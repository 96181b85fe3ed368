"""The files that the wheel brings: settings with their defaults, a message schema with its rules, alerts, a dashboard.

In a checkout they are links to `conf` and `deploy`, which own them; the wheel has their contents. Jobs read the schema
and the rules there if the current folder has none; `headwater setup files` copies all of them for people to change.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "defaults"


def default_files() -> list[Path]:
    """All of them, relative to `FOLDER`."""
    return sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file())


def schemas() -> str:
    """The folder of message schemas where no setting names one."""
    return _of_current_folder("conf/schemas", "schemas")


def rules() -> str:
    """The folder of quality rules where no setting names one."""
    return _of_current_folder("conf/quality", "quality")


def _of_current_folder(own: str, ours: str) -> str:
    """A checkout, or whoever copied the files, has its own, and they count."""
    return own if Path(own).is_dir() or not (FOLDER / ours).is_dir() else str(FOLDER / ours)
