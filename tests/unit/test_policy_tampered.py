"""Bytes that somebody changed on the way: nothing but what was signed is accepted, and no other error is raised."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.signing import FOR_EVER, NOW, Maker, policy_of

from broker_edge.artifacts import ArtifactError, Manifest
from broker_edge.device.guard import CommandRefused
from broker_edge.policy import PolicyError, Root, SignedCommand, chain_bytes, parse_chain, sign_command

MAKER = Maker()
MANIFEST = MAKER.manifest("2.0.0", floor="1.5.0")
SECOND = MAKER.next_root(targets=MAKER.targets[1:])
BODY = json.dumps(
    {"action_id": "a1", "device_id": "d1", "attempt": 1, "type": "command", "params": {"x": [1.5, "ü", None]}}
).encode()
COMMAND = sign_command(BODY, MAKER.director, expires_us=FOR_EVER)


def changed(payload: bytes) -> st.SearchStrategy[bytes]:
    """The payload with one piece replaced, removed or added."""
    places = st.tuples(st.integers(0, len(payload)), st.integers(0, 40), st.binary(max_size=20))
    return places.map(lambda at: payload[: at[0]] + at[2] + payload[at[0] + at[1] :])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a JSON value."""
    if isinstance(value, dict):
        return [path, *(found for name, one in value.items() for found in leaves(one, (*path, name)))]
    if isinstance(value, list):
        return [path, *(found for number, one in enumerate(value) for found in leaves(one, (*path, number)))]
    return [path]


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = with_value(value[path[0]], path[1:], new)
    return copied


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(changed(MANIFEST.to_bytes()))
def test_a_changed_manifest_is_refused_or_says_the_same(payload: bytes) -> None:
    try:
        found = Manifest.parse(payload)
        MAKER.guard().check(found)
    except ArtifactError:
        return
    assert found.artifact == MANIFEST.artifact
    assert found.policy is not None
    assert MANIFEST.policy is not None
    assert found.policy["signed"] == MANIFEST.policy["signed"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_field_of_a_policy_is_refused_or_says_the_same(data: st.DataObject) -> None:
    policy = MANIFEST.policy
    path = data.draw(st.sampled_from(leaves(policy)))
    new = with_value(policy, path, data.draw(ANY))
    try:
        MAKER.guard().check(replace(MANIFEST, policy=new))
    except PolicyError:
        return
    assert policy is not None
    assert new["signed"] == policy["signed"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_field_of_a_key_list_is_ignored_or_says_the_same(data: st.DataObject) -> None:
    chain = json.loads(chain_bytes([MAKER.root, SECOND]))
    path = data.draw(st.sampled_from(leaves(chain)))
    guard = MAKER.guard()
    new = json.dumps(with_value(chain, path, data.draw(ANY))).encode()
    if guard.learn(new):
        assert guard.root.signed.body == SECOND.signed.body
    else:
        assert guard.root == MAKER.root


@settings(max_examples=300, deadline=None)
@given(changed(COMMAND))
def test_a_changed_command_is_refused_or_says_the_same(payload: bytes) -> None:
    try:
        body = MAKER.guard().command(payload, "d1")
    except CommandRefused:
        return
    assert body == BODY


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_raise_the_errors_of_their_reader(payload: bytes) -> None:
    for read in (Root.parse, parse_chain):
        with pytest.raises(PolicyError):
            read(payload)
    with pytest.raises(CommandRefused):
        MAKER.guard().command(payload, "d1")


JSON_OBJECTS = st.dictionaries(st.text(max_size=6), ANY, min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(JSON_OBJECTS)
def test_every_command_comes_back_as_it_was_signed(body: dict[str, Any]) -> None:
    payload = json.dumps(body, separators=(",", ":")).encode()
    signed = sign_command(payload, MAKER.director, expires_us=NOW)
    found = SignedCommand.of(signed)
    assert found is not None
    assert (found.body, found.expires_us) == (payload, NOW)
    if "signature" not in body:
        assert {name for name in json.loads(signed) if name not in body} == {"signature"}


def test_control_a_forged_command_would_be_seen_by_its_body_alone() -> None:
    """The bodies differ, so the comparison in the test of changed commands can fail."""
    forged = sign_command(BODY.replace(b"d1", b"d1 "), MAKER.director, expires_us=FOR_EVER)
    found = SignedCommand.of(forged)
    assert found is not None
    assert found.body != BODY


def test_a_policy_with_fields_of_a_later_version_is_read() -> None:
    """They are covered by the signatures, so a later version may rely on them."""
    policy = policy_of(MANIFEST.artifact, ())
    later = replace(policy, signed=replace(policy.signed, body={**policy.signed.body, "vendor": "x"}))
    for key in MAKER.targets[:2]:
        later = later.and_signature(key)
    MAKER.guard().check(replace(MANIFEST, policy=later.in_manifest()))
