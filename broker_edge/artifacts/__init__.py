"""Artifacts: files for many devices, stored as records of the log (docs/artifacts.md). Push, find, verify, remove.

The format and its checks are here; the device side is `broker_edge.device`. Needs only the base install.
"""

from broker_edge.artifacts.keys import SigningKey, Trust
from broker_edge.artifacts.manifest import Artifact, ArtifactError, ChunkRuns, Manifest, Signature, check_name
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
