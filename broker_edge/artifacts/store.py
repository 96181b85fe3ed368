"""The artifacts of a broker: find, list, verify, remove. Uses Flight and bounded memory; never writes chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker_edge._arrow import pa
from broker_edge.artifacts.keys import Trust
from broker_edge.artifacts.manifest import (
    ArtifactError,
    ChunkRuns,
    Manifest,
    check_name,
    chunks_topic,
    manifest_topic,
    name_of,
)
from broker_edge.client import Client
from broker_edge.errors import HeadwaterError, NotFoundError
from broker_edge.values import Row

MANIFESTS = "artifacts/+/+/manifest"
# Offsets per read request; their records, about 2 MiB of chunks, arrive together.
_READ_CHUNKS = 32
_READ_ROWS = 8

Progress = Callable[[int, int], None]
"""Called with the chunks done and the total."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest record of a manifest topic: its position and the manifest, which is None if it was removed or is
    damaged."""

    offset: int
    manifest: Manifest | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of `ArtifactStore.list`; `problem` says why a manifest cannot be used."""

    name: str
    version: str
    manifest: Manifest | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Checked:
    """An artifact whose chunks all match the manifest; `key_id` of the signature, if that was checked too."""

    manifest: Manifest
    key_id: str | None


class ArtifactStore:
    """The artifacts in the log of `client`'s broker. Every method raises HeadwaterError.

    >>> store = ArtifactStore(client)
    >>> store.find("pump", "1.4.0")
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def find(self, name: str, version: str) -> Manifest | None:
        """The manifest; None if the artifact does not exist or was removed. Raises ArtifactError for a damaged one."""
        newest = self.newest(name, version)
        if newest is None:
            return None
        if newest.problem is not None:
            raise ArtifactError(
                f"the manifest of {name} {version} at offset {newest.offset} is damaged: {newest.problem}"
            )
        return newest.manifest

    def get(self, name: str, version: str) -> Manifest:
        """Like `find`, but raises NotFoundError if the artifact does not exist."""
        found = self.find(name, version)
        if found is None:
            raise NotFoundError(f"{self.client.server} has no artifact {name} {version}")
        return found

    def newest(self, name: str, version: str) -> Newest | None:
        """The newest record of the manifest topic, removals included."""
        topic = manifest_topic(check_name("name", name), check_name("version", version))
        return self._newest(topic).get(topic)

    def list(self) -> list[Listed]:
        """All artifacts, by name and version. A manifest that cannot be used is listed with the reason."""
        found = []
        for topic, newest in sorted(self._newest(MANIFESTS).items()):
            named = name_of(topic)
            if named is not None and (newest.manifest is not None or newest.problem is not None):
                found.append(Listed(*named, newest.manifest, newest.problem))
        return found

    def remove(self, name: str, version: str) -> None:
        """Removes the artifact from the list. Its bytes stay until retention or a purge removes them."""
        newest = self.newest(name, version)
        if newest is None or (newest.manifest is None and newest.problem is None):
            raise NotFoundError(f"{self.client.server} has no artifact {name} {version}")
        key = f"{manifest_key(name, version, newest)}/rm"
        row = Row(manifest_topic(name, version), b"", retain=True, idempotency_key=key)
        self.client.produce([row])

    def verify(
        self, name: str, version: str, *, trust: Trust | None = None, progress: Progress | None = None
    ) -> Checked:
        """Reads all chunks back and compares every digest, and with `trust` the signature. Raises ArtifactError."""
        manifest = self.get(name, version)
        artifact = manifest.artifact
        if trust is not None:
            trust.check(artifact, manifest.signature)
        whole = hashlib.sha256()
        index = 0
        for chunk in self.chunks(manifest):
            if index == len(artifact.chunks) or hashlib.sha256(chunk).hexdigest() != artifact.chunks[index]:
                raise ArtifactError(f"chunk {index} of {name} {version} does not match the manifest")
            whole.update(chunk)
            index += 1
            if progress is not None:
                progress(index, len(artifact.chunks))
        if index != len(artifact.chunks):
            raise ArtifactError(f"{name} {version} has {index} of {len(artifact.chunks)} chunks in the log")
        if whole.hexdigest() != artifact.sha256:
            raise ArtifactError(f"the chunks of {name} {version} together do not match the manifest")
        key_id = manifest.signature.key_id if trust is not None and manifest.signature is not None else None
        return Checked(manifest, key_id)

    def chunks(self, manifest: Manifest) -> Iterator[bytes]:
        """The payloads at the offsets of the chunks, in order; other records are skipped."""
        artifact, place = manifest.artifact, manifest.place
        topic = chunks_topic(artifact.name, artifact.version)
        for start, end in _ranges(place):
            with self.client.fetch(place.number, start, end, filters=topic, batch_rows=_READ_ROWS) as batches:
                for batch in batches:
                    yield from _payloads(batch)

    def _newest(self, filter_: str) -> dict[str, Newest]:
        """The newest record by topic, over all partitions that hold topics of the filter."""
        found: dict[str, Newest] = {}
        ranges: dict[int, tuple[int, int]] = {}
        for topic in self.client.topics(filter_):
            start, end = ranges.get(topic.partition, (topic.first, topic.next))
            ranges[topic.partition] = (min(start, topic.first), max(end, topic.next))
        for partition, (start, end) in ranges.items():
            with self.client.fetch(partition, start, end, filters=filter_, batch_rows=_READ_ROWS) as batches:
                for batch in batches:
                    for topic, offset, value in zip(
                        batch.column("topic").to_pylist(),
                        batch.column("offset").to_pylist(),
                        _payloads(batch),
                        strict=True,
                    ):
                        found[topic] = _newest_of(topic, offset, value)
        return found


def manifest_key(name: str, version: str, follows: Newest | None) -> str:
    """The idempotency key of the manifest that follows a record: of two concurrent writers only one succeeds."""
    return f"artifact/{name}/{version}/after/{'none' if follows is None else follows.offset}"


def _newest_of(topic: str, offset: int, value: bytes) -> Newest:
    if not value:
        return Newest(offset, None)
    try:
        manifest = Manifest.parse(value)
        if name_of(topic) != (manifest.artifact.name, manifest.artifact.version):
            raise ArtifactError(f"it is the manifest of {manifest.artifact.name} {manifest.artifact.version}")
    except HeadwaterError as error:
        return Newest(offset, None, str(error))
    return Newest(offset, manifest)


def _ranges(place: ChunkRuns) -> Iterator[tuple[int, int]]:
    """The runs, cut into pieces so that a single read stays small."""
    for first, count in place.runs:
        for start in range(first, first + count, _READ_CHUNKS):
            yield start, min(start + _READ_CHUNKS, first + count)


def _payloads(batch: pa.RecordBatch) -> Iterator[bytes]:
    for value in batch.column("value"):
        yield value.as_py()
