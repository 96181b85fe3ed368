"""Describes an artifact: its description, signature and position in a log, and their JSON (docs/artifacts.md, section
2).

All outside data is checked here, counts and sizes first. This module neither talks to a broker nor makes signatures.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker_edge.errors import HeadwaterError, RefusedError

CHUNK_BYTES = 256 * 1024
CHUNK_BYTES_MIN = 1024
CHUNK_BYTES_MAX = 960 * 1024
CHUNKS_MAX = 8_192

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIGNED_PREFIX = b"headwater artifact v1\n"
_INT64_MAX = 2**63 - 1


def canonical(value: Any) -> bytes:
    """JSON with one spelling: keys sorted, no spaces, ASCII only. `value` has no floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


class ArtifactError(HeadwaterError):
    """An artifact is not valid: an unreadable manifest, or a wrong digest or signature."""


def check_name(what: str, text: str) -> str:
    """Checks a name or version for use in a topic, a path and a file name; raises RefusedError."""
    if _NAME.fullmatch(text) is None:
        rule = "1 to 64 letters, digits, `.`, `_` and `-`, the first a letter or a digit"
        raise RefusedError(f"`{text:.80}` is not a valid {what} of an artifact: write {rule}", field=what)
    return text


def chunks_topic(name: str, version: str) -> str:
    return f"artifacts/{name}/{version}/chunks"


def manifest_topic(name: str, version: str) -> str:
    return f"artifacts/{name}/{version}/manifest"


def name_of(topic: str) -> tuple[str, str] | None:
    """Name and version from a manifest topic; None for any other topic."""
    levels = topic.split("/")
    if len(levels) != 4 or levels[0] != "artifacts" or levels[3] != "manifest":
        return None
    return (levels[1], levels[2]) if all(_NAME.fullmatch(level) for level in levels[1:3]) else None


@dataclass(frozen=True, slots=True)
class Artifact:
    """The file: `chunks` are the sha256 of its parts in order, all of `chunk_size` bytes except the last."""

    name: str
    version: str
    size: int
    sha256: str
    chunk_size: int
    chunks: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_name("version", self.version)
        if not CHUNK_BYTES_MIN <= self.chunk_size <= CHUNK_BYTES_MAX:
            raise RefusedError(f"chunks have {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes, not {self.chunk_size}")
        if self.size < 1:
            raise RefusedError(f"{self.name} {self.version} is empty: there is nothing to install")
        if chunks_of(self.size, self.chunk_size) > CHUNKS_MAX:
            raise RefusedError(
                f"{self.name} {self.version} has {self.size} bytes, more than {CHUNKS_MAX} chunks of "
                f"{self.chunk_size}: choose larger chunks"
            )
        if len(self.chunks) != chunks_of(self.size, self.chunk_size):
            raise ArtifactError(f"{self.name} {self.version} names {len(self.chunks)} chunks for {self.size} bytes")
        if not all(_SHA256.fullmatch(digest) for digest in (self.sha256, *self.chunks)):
            raise ArtifactError(f"{self.name} {self.version} has a digest that is not a sha256")

    def size_of(self, index: int) -> int:
        """The size of a chunk in bytes."""
        return self.chunk_size if index < len(self.chunks) - 1 else self.size - index * self.chunk_size

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "size": self.size,
            "sha256": self.sha256,
            "chunk_size": self.chunk_size,
            "chunks": list(self.chunks),
        }

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Artifact:
        """Raises KeyError, TypeError, ValueError or HeadwaterError for anything else."""
        chunks = body["chunks"]
        if not isinstance(chunks, list) or len(chunks) > CHUNKS_MAX:
            raise ValueError("chunks")
        return cls(
            name=_text(body["name"]),
            version=_text(body["version"]),
            size=_number(body["size"]),
            sha256=_text(body["sha256"]),
            chunk_size=_number(body["chunk_size"]),
            chunks=tuple(_text(digest) for digest in chunks),
        )

    def signed_bytes(self) -> bytes:
        """The bytes that a signature covers."""
        return _SIGNED_PREFIX + canonical(self.to_json())


def chunks_of(size: int, chunk_size: int) -> int:
    return -(-size // chunk_size)


@dataclass(frozen=True, slots=True)
class Signature:
    """An ed25519 signature over `Artifact.signed_bytes`."""

    key_id: str
    value: bytes

    def to_json(self) -> dict[str, Any]:
        return {"algorithm": "ed25519", "key_id": self.key_id, "value": base64.b64encode(self.value).decode()}

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Signature:
        """Raises KeyError, TypeError or ValueError for anything else."""
        if body["algorithm"] != "ed25519":
            raise ValueError(f"algorithm {body['algorithm']!r:.60}")
        try:
            value = base64.b64decode(_text(body["value"]), validate=True)
        except binascii.Error as error:
            raise ValueError(f"signature: {error}") from error
        return cls(_text(body["key_id"]), value)


@dataclass(frozen=True, slots=True)
class ChunkRuns:
    """Where a log has the chunks: runs of (first offset, count), ascending, in one partition."""

    log_id: str
    partition: str
    number: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of_offsets(cls, log_id: str, partition: str, number: int, offsets: Sequence[int]) -> ChunkRuns:
        runs: list[tuple[int, int]] = []
        for offset in offsets:
            if runs and offset == sum(runs[-1]):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((offset, 1))
        return cls(log_id, partition, number, tuple(runs))

    def __post_init__(self) -> None:
        end = 0
        for first, count in self.runs:
            if first < end or count < 1:
                raise ArtifactError(f"the offsets of the chunks are not ascending: {first} after {end}")
            end = first + count

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)

    def offset_of(self, index: int) -> int:
        """The offset of a chunk."""
        for first, count in self.runs:
            if index < count:
                return first + index
            index -= count
        raise IndexError(index)

    def index_at(self, offset: int) -> int | None:
        """The chunk at an offset; None if the manifest has no chunk there."""
        run = bisect.bisect_right(self.runs, offset, key=lambda one: one[0]) - 1
        if run < 0 or offset >= sum(self.runs[run]):
            return None
        return sum(count for _, count in self.runs[:run]) + offset - self.runs[run][0]

    def to_json(self) -> dict[str, Any]:
        runs = [list(run) for run in self.runs]
        return {"log_id": self.log_id, "partition": self.partition, "number": self.number, "runs": runs}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A record of a manifest topic."""

    artifact: Artifact
    signature: Signature | None
    place: ChunkRuns
    pushed_us: int
    policy: Mapping[str, Any] | None = None
    """JSON that `broker_edge.policy` reads: what a device must be to install the artifact. Not checked here."""

    def __post_init__(self) -> None:
        if len(self.place) != len(self.artifact.chunks):
            raise ArtifactError(
                f"{self.artifact.name} {self.artifact.version} has {len(self.artifact.chunks)} chunks "
                f"but offsets for {len(self.place)}"
            )

    def to_bytes(self) -> bytes:
        body = {
            "v": 1,
            "artifact": self.artifact.to_json(),
            "signature": None if self.signature is None else self.signature.to_json(),
            **({} if self.policy is None else {"policy": self.policy}),
            "place": self.place.to_json(),
            "pushed_us": self.pushed_us,
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, payload: bytes) -> Manifest:
        """Raises ArtifactError, with the reason, for anything that is not a manifest of this version."""
        try:
            body = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"this is not a manifest: {error}") from error
        if not isinstance(body, dict) or body.get("v") != 1:
            raise ArtifactError("this is not a manifest of a supported version")
        try:
            return cls(
                artifact=Artifact.of_json(body["artifact"]),
                signature=None if body["signature"] is None else Signature.of_json(body["signature"]),
                place=_place(body["place"]),
                pushed_us=_number(body["pushed_us"]),
                policy=_object(body.get("policy")),
            )
        except RefusedError as error:
            raise ArtifactError(f"this is not a manifest: {error}") from error
        except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
            raise ArtifactError(f"this is not a manifest: wrong or missing {error}") from error


def _place(body: Mapping[str, Any]) -> ChunkRuns:
    runs = body["runs"]
    if not isinstance(runs, list) or len(runs) > CHUNKS_MAX:
        raise ValueError("runs")
    pairs = tuple((_number(first), _number(count)) for first, count in runs)
    return ChunkRuns(_text(body["log_id"]), _text(body["partition"]), _number(body["number"]), pairs)


def _object(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"{value!r:.60}, which is not an object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60}, which is not a string")
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _INT64_MAX:
        raise TypeError(f"{value!r:.60}, which is not a number")
    return value
