"""Pushes a file, or the artifact of another broker: stores the chunks, one batch each, and the manifest last
(docs/artifacts.md, section 3).

A push can be repeated at any point: idempotency keys find what an interrupted push has stored. Memory is limited to a
few chunks, whatever the size of the file.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from broker_edge._arrow import pa
from broker_edge.artifacts.keys import SigningKey
from broker_edge.artifacts.manifest import (
    CHUNK_BYTES,
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    CHUNKS_MAX,
    Artifact,
    ArtifactError,
    ChunkRuns,
    Manifest,
    Signature,
    check_name,
    chunks_of,
    chunks_topic,
    manifest_topic,
)
from broker_edge.artifacts.store import ArtifactStore, Progress, manifest_key
from broker_edge.client import Client
from broker_edge.errors import BrokerError, ConnectError, DeadlineError, RefusedError, UnavailableError
from broker_edge.regular_file import open_regular
from broker_edge.values import Place, Row

# Chunks per call: each is a batch with its own sync, and all of them are in memory.
_CALL_CHUNKS = 8
# How often chunks are appended again because their existing offsets are not in order.
_TAKES_MAX = 3
_RETRIES = 4
_RETRY_FIRST_S = 0.5

_SCHEMA = pa.schema([("topic", pa.string()), ("value", pa.binary()), ("idempotency_key", pa.string())])


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push. `stored` and `found` count chunks; `existed` says that the version was already complete."""

    manifest: Manifest
    stored: int
    found: int
    existed: bool


def describe(path: Path, name: str, version: str, *, chunk_size: int = CHUNK_BYTES) -> Artifact:
    """Reads the file and computes its digests. Raises RefusedError if it cannot be an artifact."""
    check_name("name", name)
    check_name("version", version)
    if not CHUNK_BYTES_MIN <= chunk_size <= CHUNK_BYTES_MAX:
        raise RefusedError(f"chunks have {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes, not {chunk_size}")
    whole, digests, size = hashlib.sha256(), [], 0
    with _open(path) as file:
        announced = path.stat().st_size
        if chunks_of(announced, chunk_size) > CHUNKS_MAX:
            raise RefusedError(
                f"{path} has {announced} bytes, more than {CHUNKS_MAX} chunks of {chunk_size}: choose larger chunks"
            )
        while chunk := file.read(chunk_size):
            whole.update(chunk)
            digests.append(hashlib.sha256(chunk).hexdigest())
            size += len(chunk)
    if size == 0:
        raise RefusedError(f"{path} is empty: there is nothing to push")
    return Artifact(name, version, size, whole.hexdigest(), chunk_size, tuple(digests))


def push(
    client: Client,
    path: Path,
    name: str,
    version: str,
    *,
    key: SigningKey | None = None,
    chunk_size: int = CHUNK_BYTES,
    progress: Progress | None = None,
    policy: Mapping[str, Any] | None = None,
    expected: Artifact | None = None,
) -> Pushed:
    """Stores the file as `name` `version`, signed with `key` if one is given, and with the `policy` of a manifest.

    Pushing the same bytes again changes nothing, except that it adds a missing signature, or another policy. Raises
    RefusedError if the version has other bytes, or if the file is not the `expected` one, and ArtifactError if the file
    changes while it is read.
    """
    artifact = describe(path, name, version, chunk_size=chunk_size)
    if expected is not None and artifact != expected:
        raise RefusedError(
            f"{path} as {name} {version} is not what was signed: {expected.name} {expected.version} with sha256 "
            f"{expected.sha256[:12]}…"
        )
    signed = (lambda one: None) if key is None else key.sign
    return _stored(client, artifact, signed, partial(_read, path, artifact), progress, policy)


def copy(source: Client, target: Client, name: str, version: str, *, progress: Progress | None = None) -> Pushed:
    """Stores the artifact of `source` in the log of `target`, with its signature. Repeatable like `push`.

    Raises NotFoundError if the source does not have it, RefusedError if the target has other bytes for the version, and
    ArtifactError if the chunks of the source do not match its manifest.
    """
    store = ArtifactStore(source)
    manifest = store.get(name, version)
    signature = manifest.signature

    def signed(artifact: Artifact) -> Signature | None:
        return signature if artifact == manifest.artifact else None  # It covers the size of the chunks.

    def chunks() -> Iterator[bytes]:
        whole = hashlib.sha256()
        for number, chunk in enumerate(store.chunks(manifest)):
            whole.update(chunk)
            if number >= len(manifest.artifact.chunks):
                break
            if hashlib.sha256(chunk).hexdigest() != manifest.artifact.chunks[number]:
                raise ArtifactError(
                    f"chunk {number} of {name} {version} on {source.server} does not match the manifest"
                )
            yield chunk
        if whole.hexdigest() != manifest.artifact.sha256:
            raise ArtifactError(f"the chunks of {name} {version} on {source.server} do not match the manifest")

    return _stored(target, manifest.artifact, signed, chunks, progress, manifest.policy)


def _stored(
    client: Client,
    artifact: Artifact,
    signed: Callable[[Artifact], Signature | None],
    chunks: Callable[[], Iterator[bytes]],
    progress: Progress | None,
    policy: Mapping[str, Any] | None,
) -> Pushed:
    """Stores the chunks that the log does not have, then the manifest. `chunks` reads them again for each take."""
    name, version = artifact.name, artifact.version
    signature = signed(artifact)
    store = ArtifactStore(client)
    newest = store.newest(name, version)
    there = None if newest is None else newest.manifest
    log_id = client.version().log_id
    if there is not None and there.place.log_id == log_id:
        _must_be_same(there, artifact)
        # It may be stored in chunks of another size, which the signature covers.
        signature = signed(there.artifact) or there.signature
        if policy is not None and there.artifact != artifact:
            raise RefusedError(
                f"{name} {version} is stored in chunks of {there.artifact.chunk_size} bytes, and the policy was signed "
                f"for chunks of {artifact.chunk_size}: make the policy with the stored size"
            )
        policy = policy if policy is not None else there.policy
        if (there.signature, there.policy) == (signature, policy):
            return Pushed(there, 0, 0, existed=True)
        manifest = Manifest(there.artifact, signature, there.place, _now_us(), policy)
        stored = found = 0
    else:
        place, stored, found = _chunks(client, log_id, chunks, artifact, progress)
        manifest = Manifest(artifact, signature, place, _now_us(), policy)
    row = Row(
        manifest_topic(name, version),
        manifest.to_bytes(),
        retain=True,
        idempotency_key=manifest_key(name, version, newest),
    )
    (at,) = _again(partial(client.produce, [row]))
    if at.duplicate:
        # Another push was faster, or an answer to this one was lost: the manifest in the log decides.
        manifest = store.get(name, version)
        _must_be_same(manifest, artifact)
        _must_be_signed(manifest, signature, policy)
    return Pushed(manifest, stored, found, existed=stored == 0 and found == 0)


def _must_be_same(there: Manifest, artifact: Artifact) -> None:
    if there.artifact.sha256 != artifact.sha256:
        raise RefusedError(
            f"{artifact.name} {artifact.version} exists with other bytes (sha256 {there.artifact.sha256[:12]}…, "
            f"not {artifact.sha256[:12]}…): a version is final, choose another"
        )


def _must_be_signed(there: Manifest, signature: Signature | None, policy: Mapping[str, Any] | None) -> None:
    if (signature is not None and there.signature != signature) or (policy is not None and there.policy != policy):
        raise RefusedError(
            f"{there.artifact.name} {there.artifact.version} was pushed at the same time with another signature: "
            "push it again"
        )


def _chunks(
    client: Client,
    log_id: str,
    chunks: Callable[[], Iterator[bytes]],
    artifact: Artifact,
    progress: Progress | None,
) -> tuple[ChunkRuns, int, int]:
    """Stores the chunks. Returns their offsets, and how many were stored and how many were found."""
    for take in range(_TAKES_MAX):
        places = []
        for rows in _calls(chunks(), artifact, take):
            places += _again(partial(client.produce, rows))
            if progress is not None:
                progress(len(places), len(artifact.chunks))
        offsets = [place.offset for place in places]
        numbers = {place.partition for place in places}
        if len(numbers) != 1:
            raise BrokerError(f"{client.server} put the records of one topic into partitions {sorted(numbers)}")
        if all(before < after for before, after in itertools.pairwise(offsets)):
            (number,) = numbers
            partition = client.offsets(partitions=[number]).partitions[number].name
            found = sum(place.duplicate for place in places)
            runs = ChunkRuns.of_offsets(log_id, partition, number, offsets)
            return runs, len(places) - found, found
    raise ArtifactError(
        f"the chunks of {artifact.name} {artifact.version} could not be stored in order, because another client "
        "is pushing or removing them: push again"
    )


def _read(path: Path, artifact: Artifact) -> Iterator[bytes]:
    """The chunks of the file."""
    with _open(path) as file:
        for digest in artifact.chunks:
            chunk = file.read(artifact.chunk_size)
            if hashlib.sha256(chunk).hexdigest() != digest:
                raise ArtifactError(f"{path} changed while it was read: nothing was published, push it again")
            yield chunk


def _calls(chunks: Iterator[bytes], artifact: Artifact, take: int) -> Iterator[pa.Table]:
    """The chunks in tables of a few batches, one chunk each."""
    topic = chunks_topic(artifact.name, artifact.version)
    key = f"artifact/{artifact.name}/{artifact.version}/{artifact.sha256}/{artifact.chunk_size}/{take}"
    batches: list[pa.RecordBatch] = []
    for index, chunk in enumerate(chunks):
        columns = {"topic": [topic], "value": [chunk], "idempotency_key": [f"{key}/{index}"]}
        batches.append(pa.RecordBatch.from_pydict(columns, schema=_SCHEMA))
        if len(batches) == _CALL_CHUNKS:
            yield pa.Table.from_batches(batches)
            batches = []
    if batches:
        yield pa.Table.from_batches(batches)


def _again(produce: Callable[[], list[Place]]) -> list[Place]:
    """Sends until an answer arrives; the idempotency keys make repetition harmless."""
    for failures in range(_RETRIES):
        try:
            return produce()
        except (ConnectError, UnavailableError, DeadlineError) as error:
            if isinstance(error, UnavailableError) and error.stopped:
                raise
            time.sleep(_RETRY_FIRST_S * 2**failures)
    return produce()


def _open(path: Path) -> IO[bytes]:
    try:
        return open_regular(path)
    except OSError as error:
        raise RefusedError(f"cannot read {path}: {error.strerror}") from error


def _now_us() -> int:
    return time.time_ns() // 1_000
