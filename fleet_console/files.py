"""The files of the page, which are those of the broker: read once, compressed once."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

import broker_edge
from broker_edge.errors import SetupError

FOLDER = Path(broker_edge.__file__).parent / "ui"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Others, such as licences, are not served."""
INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class PageFile:
    kind: str
    tag: str
    compressed: bytes


def page_files() -> dict[str, PageFile]:
    """The files by their path below `ui/`. Raises SetupError if this installation has none."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        kind = _KINDS.get(path.suffix)
        if kind is not None:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path.relative_to(FOLDER).as_posix()] = PageFile(kind, tag, gzip.compress(content, mtime=0))
    if INDEX not in found:
        raise SetupError(f"this installation has no files of the console at {FOLDER}: install headwater again")
    return found
