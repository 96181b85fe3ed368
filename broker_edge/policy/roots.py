"""Key lists (TUF: root): which keys have which role, and how many of a role must sign. Versions follow one by one.

A key list is signed by its own root keys, and by those of the version before it. That is how keys are rotated, and a
key that the newest version does not name is revoked. Nothing here knows the time.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from broker_edge.artifacts.keys import SigningKey, key_id
from broker_edge.artifacts.manifest import canonical
from broker_edge.policy.signed import (
    PolicyError,
    Role,
    Signed,
    list_of,
    must_be_signed,
    number,
    object_of,
    parsed,
    period,
    text,
)

ROOT, TARGETS, DIRECTOR = "root", "targets", "director"
_ROLES = (ROOT, TARGETS, DIRECTOR)
_NEEDED = (ROOT, TARGETS)
KEYS_MAX = 64
CHAIN_MAX = 256
CHAIN_BYTES_MAX = 960 * 1024
"""Below the packet size that a device accepts."""
_PREFIX = b"headwater root v1\n"


@dataclass(frozen=True, slots=True)
class Root:
    """A key list. `signed_us` is when it was made, `expires_us` from when it counts no more: Unix microseconds."""

    version: int
    signed_us: int
    expires_us: int
    keys: Mapping[str, Ed25519PublicKey]
    """By key id."""
    roles: Mapping[str, Role]
    signed: Signed

    @classmethod
    def make(
        cls,
        roles: Mapping[str, tuple[Sequence[Ed25519PublicKey], int]],
        *,
        version: int = 1,
        signed_us: int,
        expires_us: int,
    ) -> Root:
        """An unsigned key list. `roles` gives keys and threshold of each role. Raises PolicyError."""
        keys = {key_id(key): key for given, _ in roles.values() for key in given}
        body = {
            "type": "root",
            "version": version,
            "signed_us": signed_us,
            "expires_us": expires_us,
            "keys": {id_: _text_of(key) for id_, key in sorted(keys.items())},
            "roles": {
                name: {"key_ids": sorted({key_id(key) for key in given}), "threshold": threshold}
                for name, (given, threshold) in roles.items()
            },
        }
        return cls.of_json(Signed(body).to_json())

    @classmethod
    def of_json(cls, value: Any) -> Root:
        """Raises PolicyError. Signatures are not checked here."""
        signed = Signed.of_json(value, what="a key list")
        body = signed.body
        try:
            if body["type"] != "root":
                raise ValueError("type, which must be root")
            keys = _keys(object_of(body["keys"], "keys"))
            roles = {
                text(name, "a role"): _role(name, object_of(one, name), keys)
                for name, one in object_of(body["roles"], "roles").items()
            }
            missing = [name for name in _NEEDED if name not in roles]
            if missing:
                raise ValueError(f"the role {missing[0]}")
            if DIRECTOR in roles and roles[DIRECTOR].threshold != 1:
                raise ValueError("the threshold of director, which must be 1: a command has one signature")
            signed_us, expires_us = period(body)
            return cls(
                version=number(body["version"], "version", least=1),
                signed_us=signed_us,
                expires_us=expires_us,
                keys=keys,
                roles=roles,
                signed=signed,
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PolicyError(f"this is not a key list: wrong or missing {error}") from error

    @classmethod
    def parse(cls, payload: bytes) -> Root:
        """Reads the JSON of a file. Raises PolicyError."""
        return cls.of_json(parsed(payload, what="a key list"))

    def to_bytes(self) -> bytes:
        return json.dumps(self.signed.to_json(), indent=1).encode() + b"\n"

    def signed_bytes(self) -> bytes:
        return _PREFIX + canonical(self.signed.body)

    def and_signature(self, key: SigningKey) -> Root:
        return replace(self, signed=self.signed.and_signature(key, self.signed_bytes()))

    def role(self, name: str) -> Role | None:
        return self.roles.get(name)

    def check_signed(self, signers: Root | None = None) -> None:
        """Raises PolicyError unless a threshold of the root keys of `signers` (default: its own) has signed it."""
        by = signers or self
        whose = f"the root keys of version {by.version}"
        what = f"version {self.version} of the key list, by {whose},"
        must_be_signed(what, self.signed_bytes(), self.signed.signatures, by.roles[ROOT], by.keys)

    def check_next(self, after: Root) -> None:
        """Raises PolicyError unless this is the version after `after`, signed by the root keys of both."""
        if self.version != after.version + 1:
            raise PolicyError(f"version {self.version} of the key list does not follow version {after.version}")
        self.check_signed(after)
        self.check_signed()

    def must_have_signed(self, role: str, what: str, message: bytes, signed: Signed) -> None:
        """Raises PolicyError unless a threshold of the role's keys has signed."""
        found = self.roles.get(role)
        if found is None:
            raise PolicyError(f"version {self.version} of the key list has no role {role}")
        must_be_signed(what, message, signed.signatures, found, self.keys)


def parse_chain(payload: bytes) -> tuple[Root, ...]:
    """The key lists of a record on `artifacts/root`, oldest first. Raises PolicyError; checks no signature."""
    if len(payload) > CHAIN_BYTES_MAX:
        raise PolicyError(f"the key lists have {len(payload)} bytes, more than {CHAIN_BYTES_MAX}")
    body = parsed(payload, what="a key list")
    try:
        if not isinstance(body, dict) or body.get("v") != 1:
            raise ValueError("v, which must be 1")
        roots = tuple(Root.of_json(one) for one in list_of(body["roots"], "roots", most=CHAIN_MAX))
    except (KeyError, ValueError) as error:
        raise PolicyError(f"these are not key lists: wrong or missing {error}") from error
    if any(later.version != earlier.version + 1 for earlier, later in itertools.pairwise(roots)):
        raise PolicyError("the key lists are not in the order of their versions")
    return roots


def chain_bytes(roots: Sequence[Root]) -> bytes:
    """The record, without the oldest versions if all of them would be too large for devices."""
    kept = list(roots[-CHAIN_MAX:])
    while len(payload := canonical({"v": 1, "roots": [root.signed.to_json() for root in kept]})) > CHAIN_BYTES_MAX:
        del kept[0]
    return payload


def check_chain(roots: Sequence[Root]) -> None:
    """Raises PolicyError unless each version is signed as the successor of the one before it."""
    roots[0].check_signed()
    for earlier, later in itertools.pairwise(roots):
        later.check_next(earlier)


def _keys(body: Mapping[str, Any]) -> Mapping[str, Ed25519PublicKey]:
    if not 1 <= len(body) <= KEYS_MAX:
        raise ValueError(f"keys, 1 to {KEYS_MAX} of them")
    found = {}
    for id_, value in body.items():
        try:
            key = Ed25519PublicKey.from_public_bytes(base64.b64decode(value, validate=True))
        except (binascii.Error, TypeError, ValueError) as error:
            raise ValueError(f"the key {id_:.60}, 32 bytes in Base64") from error
        if key_id(key) != id_:
            raise ValueError(f"the id of the key {id_:.60}")
        found[id_] = key
    return found


def _role(name: str, body: Mapping[str, Any], keys: Mapping[str, Ed25519PublicKey]) -> Role:
    ids = frozenset(text(one, "a key id") for one in list_of(body["key_ids"], "key_ids", most=KEYS_MAX))
    unknown = sorted(ids - keys.keys())
    if unknown:
        raise ValueError(f"the key {unknown[0]} of the role {name}")
    return Role(ids, number(body["threshold"], "threshold", least=1))


def _text_of(key: Ed25519PublicKey) -> str:
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
