"""Artifacts: files for many devices, stored as records of the log (docs/artifacts.md). Push, find, verify, remove.

The format and its checks are here; the device side is `broker_edge.device`. What speaks to a broker needs the extra
`client` and is imported on first use, because a device checks what it gets without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from broker_edge.artifacts.keys import SigningKey, Trust
from broker_edge.artifacts.manifest import Artifact, ArtifactError, ChunkRuns, Manifest, Signature, check_name

if TYPE_CHECKING:
    from broker_edge.artifacts.store import ArtifactStore, Checked
    from broker_edge.artifacts.upload import Pushed, copy, push

__all__ = [
    "Artifact",
    "ArtifactError",
    "ArtifactStore",
    "Checked",
    "ChunkRuns",
    "Manifest",
    "Pushed",
    "Signature",
    "SigningKey",
    "Trust",
    "check_name",
    "copy",
    "push",
]

_HOMES = {"ArtifactStore": "store", "Checked": "store", "Pushed": "upload", "copy": "upload", "push": "upload"}
"""The modules of the names that need the extra."""

# Not for type checkers, which would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOMES.values():
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
