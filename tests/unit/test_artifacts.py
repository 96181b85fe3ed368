"""Artifacts: invalid manifests, untrusted signatures, and pushes that are interrupted, concurrent or repeated."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.flight_server import FlightServer, refusal

from broker_edge import Client, ConfigError, HeadwaterError, NotFoundError, RefusedError, Row
from broker_edge.artifacts import ArtifactError, ArtifactStore, ChunkRuns, Manifest, SigningKey, Trust, check_name, push
from broker_edge.artifacts.manifest import Artifact, chunks_topic, manifest_topic
from broker_edge.artifacts.upload import describe

CHUNK = 1024


@pytest.fixture
def client(flight_server: FlightServer) -> Client:
    return Client(flight_server.location, timeout_s=60)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(10 * CHUNK + 7))
    return path


def stored(server: FlightServer, topic: str) -> list[bytes]:
    return [r.value for p in server.log.partitions.values() for r in p.records if r.topic == topic]


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "+", "#", "a+b", "-a", "a b", "ü", "a" * 65, "a\n", "$a"])
def test_names_that_could_leave_their_level_are_refused(text: str, image: Path, client: Client) -> None:
    with pytest.raises(RefusedError, match="write 1 to 64 letters"):
        check_name("name", text)
    with pytest.raises(RefusedError):
        push(client, image, text, "1")
    with pytest.raises(RefusedError):
        push(client, image, "fw", text)


def test_pushed_file_is_stored_once_in_order_and_reads_back(
    flight_server: FlightServer, client: Client, image: Path
) -> None:
    told: list[tuple[int, int]] = []
    done = push(client, image, "fw", "1.0", chunk_size=CHUNK, progress=lambda *at: told.append(at))
    assert (done.stored, done.found, done.existed, told[-1]) == (11, 0, False, (11, 11))
    assert b"".join(stored(flight_server, chunks_topic("fw", "1.0"))) == image.read_bytes()
    checked = ArtifactStore(client).verify("fw", "1.0")
    assert checked.manifest.artifact.sha256 == hashlib.sha256(image.read_bytes()).hexdigest()
    again = push(client, image, "fw", "1.0", chunk_size=CHUNK)
    assert (again.stored, again.existed) == (0, True)
    assert len(stored(flight_server, chunks_topic("fw", "1.0"))) == 11


def test_interrupted_push_goes_on_and_stores_nothing_twice(
    flight_server: FlightServer, client: Client, image: Path
) -> None:
    def cut(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(client, image, "fw", "1", chunk_size=CHUNK, progress=cut)
    assert ArtifactStore(client).find("fw", "1") is None
    done = push(client, image, "fw", "1", chunk_size=CHUNK)
    assert (done.stored, done.found) == (3, 8)
    assert len(stored(flight_server, chunks_topic("fw", "1"))) == 11
    ArtifactStore(client).verify("fw", "1")


def test_chunks_of_a_push_that_was_given_up_are_not_taken_for_ours(client: Client, image: Path) -> None:
    def cut(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(client, image, "fw", "1", chunk_size=CHUNK, progress=cut)
    image.write_bytes(os.urandom(5 * CHUNK))
    assert push(client, image, "fw", "1", chunk_size=CHUNK).found == 0
    ArtifactStore(client).verify("fw", "1")


def test_chunks_whose_beginning_retention_took_are_stored_anew_in_order(
    flight_server: FlightServer, client: Client, image: Path
) -> None:
    store = ArtifactStore(client)
    place = push(client, image, "fw", "1", chunk_size=CHUNK).manifest.place
    flight_server.log.expire(place.number, place.offset_of(4))
    store.remove("fw", "1")
    again = push(client, image, "fw", "1", chunk_size=CHUNK).manifest.place
    assert again.offset_of(0) > place.offset_of(10)
    store.verify("fw", "1")


def test_version_with_other_bytes_is_refused_and_free_after_rm(client: Client, image: Path) -> None:
    store = ArtifactStore(client)
    push(client, image, "fw", "1", chunk_size=CHUNK)
    other = image.with_name("other")
    other.write_bytes(b"other bytes")
    with pytest.raises(RefusedError, match="exists with other bytes"):
        push(client, other, "fw", "1", chunk_size=CHUNK)
    store.remove("fw", "1")
    assert store.find("fw", "1") is None
    assert store.list() == []
    with pytest.raises(NotFoundError):
        store.remove("fw", "1")
    with pytest.raises(NotFoundError):
        store.verify("fw", "1")
    assert push(client, other, "fw", "1", chunk_size=CHUNK).stored == 1
    assert [one.version for one in store.list()] == ["1"]


def test_of_two_that_push_at_once_the_second_is_refused(
    flight_server: FlightServer, client: Client, image: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other bytes")

    def meanwhile(done: int, of: int) -> None:
        if done == of:
            push(client, other, "fw", "1", chunk_size=CHUNK)

    with pytest.raises(RefusedError, match="exists with other bytes"):
        push(client, image, "fw", "1", chunk_size=CHUNK, progress=meanwhile)
    assert len(stored(flight_server, manifest_topic("fw", "1"))) == 1
    ArtifactStore(client).verify("fw", "1")


def test_push_survives_a_broker_that_is_away_for_a_moment(
    flight_server: FlightServer, client: Client, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_edge.artifacts.upload._RETRY_FIRST_S", 0.01)
    failures = [2]

    def before(name: str) -> None:
        if name == "DoPut" and failures[0]:
            failures[0] -= 1
            raise refusal("unavailable", "starting")

    flight_server.before = before
    assert push(client, image, "fw", "1", chunk_size=CHUNK).stored == 11
    assert failures == [0]


def test_empty_file_unreadable_file_and_too_many_chunks_are_refused_in_words(client: Client, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(RefusedError, match="is empty: there is nothing to push"):
        push(client, empty, "fw", "1")
    with pytest.raises(RefusedError, match="cannot read"):
        push(client, tmp_path / "missing", "fw", "1")
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(8_193 * 1024)
    with pytest.raises(RefusedError, match="choose larger chunks"):
        push(client, huge, "fw", "1", chunk_size=1024)
    for chunk_size in (0, 1023, 1024 * 1024):
        with pytest.raises(RefusedError, match="chunks have"):
            push(client, huge, "fw", "1", chunk_size=chunk_size)


def test_file_that_changes_while_it_is_pushed_publishes_nothing(client: Client, image: Path) -> None:
    def change(done: int, of: int) -> None:
        with image.open("r+b") as file:
            file.seek(10 * CHUNK)
            file.write(b"changed")

    with pytest.raises(ArtifactError, match="changed while it was read"):
        push(client, image, "fw", "1", chunk_size=CHUNK, progress=change)
    assert ArtifactStore(client).find("fw", "1") is None


def test_damaged_chunk_and_swapped_places_are_found_by_verify(
    flight_server: FlightServer, client: Client, image: Path
) -> None:
    place = push(client, image, "fw", "1", chunk_size=CHUNK).manifest.place
    partition = flight_server.log.partitions[place.number]
    at = place.offset_of(3)
    partition.records[at] = replace(partition.records[at], value=b"x" * CHUNK)
    with pytest.raises(ArtifactError, match="chunk 3 of fw 1 does not match the manifest"):
        ArtifactStore(client).verify("fw", "1")


def test_signature_counts_only_from_a_trusted_key_over_the_same_bytes(client: Client, image: Path) -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    store = ArtifactStore(client)
    push(client, image, "fw", "1", chunk_size=CHUNK)
    with pytest.raises(ArtifactError, match="not signed"):
        store.verify("fw", "1", trust=key.trust())
    signed = push(client, image, "fw", "1", chunk_size=2048, key=key)
    assert (signed.stored, signed.manifest.artifact.chunk_size) == (0, CHUNK)
    assert store.verify("fw", "1", trust=key.trust()).key_id == key.key_id
    with pytest.raises(ArtifactError, match="which is not trusted"):
        store.verify("fw", "1", trust=other.trust())
    manifest = store.get("fw", "1")
    for change in ({"version": "2"}, {"size": manifest.artifact.size - 1}, {"sha256": "0" * 64}):
        with pytest.raises(ArtifactError, match="is wrong"):
            key.trust().check(replace(manifest.artifact, **change), manifest.signature)


def test_keys_are_written_for_their_owner_and_never_over_others(tmp_path: Path) -> None:
    key = SigningKey.generate()
    public = key.save(tmp_path / "k")
    assert ((tmp_path / "k").stat().st_mode & 0o777, public.name) == (0o600, "k.pub")
    assert SigningKey.load(tmp_path / "k").key_id == key.key_id
    artifact = Artifact("fw", "1", 1, "0" * 64, 1024, ("0" * 64,))
    Trust.load([public]).check(artifact, key.sign(artifact))
    with pytest.raises(ConfigError, match="already exists"):
        SigningKey.generate().save(tmp_path / "k")
    with pytest.raises(ConfigError, match="not a public key"):
        Trust.load([tmp_path / "k"])
    with pytest.raises(ConfigError, match="cannot read"):
        SigningKey.load(tmp_path / "missing")


def body() -> dict[str, object]:
    digest = "ab" * 32
    return {
        "v": 1,
        "artifact": {
            "name": "fw",
            "version": "1",
            "size": 2500,
            "sha256": digest,
            "chunk_size": 1024,
            "chunks": [digest] * 3,
        },
        "signature": None,
        "place": {"log_id": "l", "partition": "artifacts-0", "number": 2, "runs": [[7, 2], [20, 1]]},
        "pushed_us": 0,
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("v",), 2),
        (("artifact",), None),
        (("artifact", "name"), "a/b"),
        (("artifact", "size"), -1),
        (("artifact", "size"), True),
        (("artifact", "size"), 10**30),
        (("artifact", "sha256"), "zz"),
        (("artifact", "chunk_size"), 0),
        (("artifact", "chunks"), []),
        (("artifact", "chunks"), ["ab"] * 3),
        (("artifact", "chunks"), {"a": 1}),
        (("signature",), {"algorithm": "rsa", "key_id": "", "value": ""}),
        (("signature",), {"algorithm": "ed25519", "key_id": "", "value": "%%%"}),
        (("place", "runs"), [[7, 2]]),
        (("place", "runs"), [[7, 2], [8, 1]]),
        (("place", "runs"), [[7, 0], [8, 3]]),
        (("place", "runs"), [[7, 3, 1]]),
        (("place", "runs"), "777"),
        (("place", "runs"), [[0, 2**62], [2**62, 2**63 - 1]]),
        (("pushed_us",), "soon"),
    ],
)
def test_manifest_that_cannot_be_is_refused(path: tuple[str, ...], value: object) -> None:
    right = json.dumps(body()).encode()
    assert Manifest.parse(Manifest.parse(right).to_bytes()) == Manifest.parse(right)
    wrong: dict[str, object] = body()
    inner: dict[str, object] = wrong
    for step in path[:-1]:
        inner = inner[step]  # type: ignore[assignment]
    inner[path[-1]] = value
    with pytest.raises(ArtifactError):
        Manifest.parse(json.dumps(wrong).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_manifest_are_refused(text: bytes) -> None:
    with pytest.raises(ArtifactError):
        Manifest.parse(text)


def test_a_manifest_is_refused_at_whatever_depth_its_values_are_nested() -> None:
    """At some depths the value can be parsed, but formatting it for the message would fail."""
    text = json.dumps({**body(), "pushed_us": "@"})
    for depth in (1, 50, *range(300, 1_000, 3)):
        with pytest.raises(ArtifactError):
            Manifest.parse(text.replace('"@"', "[" * depth + "]" * depth).encode())


def test_broken_and_foreign_manifests_are_named_and_disturb_nothing_else(client: Client, image: Path) -> None:
    store = ArtifactStore(client)
    good = push(client, image, "fw", "1", chunk_size=CHUNK).manifest
    rows = [(manifest_topic("bad", "1"), b"rubbish"), (manifest_topic("fw", "2"), good.to_bytes())]
    client.produce([Row(topic, value, retain=True) for topic, value in rows])
    found = {(one.name, one.version): one.problem for one in store.list()}
    assert found[("fw", "1")] is None
    assert "not a manifest" in str(found[("bad", "1")])
    assert "the manifest of fw 1" in str(found[("fw", "2")])
    with pytest.raises(HeadwaterError, match="is damaged"):
        store.find("fw", "2")


def test_offsets_name_chunks_and_others_name_none() -> None:
    place = ChunkRuns.of_offsets("l", "artifacts-0", 2, [7, 8, 20, 22, 23])
    assert place.runs == ((7, 2), (20, 1), (22, 2))
    assert [place.offset_of(index) for index in range(5)] == [7, 8, 20, 22, 23]
    assert [place.index_at(offset) for offset in (6, 7, 8, 9, 20, 21, 22, 23, 24)] == [
        None,
        0,
        1,
        None,
        2,
        None,
        3,
        4,
        None,
    ]


def test_description_is_of_the_bytes(image: Path) -> None:
    artifact = describe(image, "fw", "1", chunk_size=CHUNK)
    assert [artifact.size_of(index) for index in (0, 10)] == [CHUNK, 7]
    assert artifact.signed_bytes().startswith(b'headwater artifact v1\n{"chunk_size":1024,"chunks":["')
