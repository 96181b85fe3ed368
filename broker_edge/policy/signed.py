"""A JSON object with the signatures of several people, and the rule of a threshold.

What the object means is decided elsewhere. A signature covers a prefix that names the kind of the object, so that a
signature of one kind never counts for another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from broker_edge.artifacts.keys import SigningKey
from broker_edge.artifacts.manifest import ArtifactError, Signature

SIGNATURES_MAX = 64
_INT64_MAX = 2**63 - 1


class PolicyError(ArtifactError):
    """What a device must not accept, and why."""


@dataclass(frozen=True, slots=True)
class Role:
    """The keys of a role, and how many different ones must sign."""

    key_ids: frozenset[str]
    threshold: int

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= len(self.key_ids):
            raise PolicyError(f"a threshold of {self.threshold} is impossible with {len(self.key_ids)} keys")

    def to_json(self) -> dict[str, Any]:
        return {"key_ids": sorted(self.key_ids), "threshold": self.threshold}


@dataclass(frozen=True, slots=True)
class Signed:
    """`body` is the object as it was read: fields that this version does not know are covered by the signatures too."""

    body: Mapping[str, Any]
    signatures: tuple[Signature, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"signed": dict(self.body), "signatures": [one.to_json() for one in self.signatures]}

    @classmethod
    def of_json(cls, value: Any, *, what: str) -> Signed:
        """Raises PolicyError, which says `what` it should have been."""
        try:
            body, signatures = value["signed"], value["signatures"]
            if not isinstance(body, dict) or not isinstance(signatures, list) or len(signatures) > SIGNATURES_MAX:
                raise TypeError("signed or signatures")
            return cls(body, tuple(Signature.of_json(one) for one in signatures))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PolicyError(f"this is not {what}: wrong or missing {error}") from error

    def and_signature(self, key: SigningKey, message: bytes) -> Signed:
        """With the signature of `key`, which replaces an earlier one of the same key."""
        others = tuple(one for one in self.signatures if one.key_id != key.key_id)
        return replace(self, signatures=(*others, key.sign_bytes(message)))


def signers(message: bytes, signatures: Iterable[Signature], keys: Mapping[str, Ed25519PublicKey]) -> frozenset[str]:
    """The ids of those of `keys` that have signed the message. A key counts once, however often it signed."""
    found = set()
    for one in signatures:
        key = keys.get(one.key_id)
        if key is None or one.key_id in found:
            continue
        try:
            key.verify(one.value, message)
        except InvalidSignature:
            continue
        found.add(one.key_id)
    return frozenset(found)


def must_be_signed(
    what: str, message: bytes, signatures: Iterable[Signature], role: Role, keys: Mapping[str, Ed25519PublicKey]
) -> None:
    """Raises PolicyError unless enough different keys of the role have signed."""
    found = signers(message, signatures, {id_: keys[id_] for id_ in role.key_ids})
    if len(found) < role.threshold:
        raise PolicyError(f"{what} has {len(found)} of the {role.threshold} valid signatures that it needs")


# -- fields: each raises TypeError or ValueError, which the caller turns into a PolicyError ----------------------------


def number(value: Any, name: str, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INT64_MAX:
        raise ValueError(f"{name}: a whole number from {least}")
    return value


def text(value: Any, name: str, *, longest: int = 64) -> str:
    """A short text of visible ASCII characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{name}: a text of 1 to {longest} characters of ASCII")
    return value


def period(body: Mapping[str, Any]) -> tuple[int, int]:
    """`signed_us` and `expires_us`, in Unix microseconds."""
    signed_us = number(body["signed_us"], "signed_us")
    return signed_us, number(body["expires_us"], "expires_us, later than signed_us", least=signed_us + 1)


def list_of(value: Any, name: str, *, most: int) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise ValueError(f"{name}: a list of 1 to {most}")
    return value


def object_of(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: an object")
    return value


def parsed(payload: bytes, *, what: str) -> Any:
    """The value of a JSON text. Raises PolicyError, which says `what` it should have been."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"this is not {what}, which is JSON: {error}") from error
