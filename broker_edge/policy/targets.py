"""The policy of an artifact (TUF: targets): for which product and hardware it is, and until when.

It is a field of the manifest beside `artifact`, and its signatures cover the whole `artifact`. Nothing here knows the
time or a device.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker_edge.artifacts.keys import SigningKey
from broker_edge.artifacts.manifest import Artifact, Manifest, canonical
from broker_edge.errors import HeadwaterError
from broker_edge.policy.roots import TARGETS, Root
from broker_edge.policy.signed import PolicyError, Signed, list_of, parsed, period, text
from broker_edge.policy.versions import Floor, VersionOrder

HARDWARE_MAX = 256
_PREFIX = b"headwater targets v1\n"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a device must be to install `artifact`, whose version is one of `order`. `floor` is what a device that has
    confirmed it accepts at least from then on; None changes nothing."""

    artifact: Artifact
    product: str
    hardware: frozenset[str]
    order: VersionOrder
    floor: Floor | None
    signed_us: int
    expires_us: int
    signed: Signed

    @classmethod
    def make(
        cls,
        artifact: Artifact,
        *,
        product: str,
        hardware: Collection[str],
        order: VersionOrder,
        floor: str | None = None,
        signed_us: int,
        expires_us: int,
    ) -> Policy:
        """An unsigned policy. Raises PolicyError."""
        body: dict[str, Any] = {
            "type": "targets",
            "product": product,
            "hardware": sorted(set(hardware)),
            "order": str(order),
            "floor": floor,
            "signed_us": signed_us,
            "expires_us": expires_us,
        }
        return cls.of_json(artifact, Signed(body).to_json())

    @classmethod
    def of(cls, manifest: Manifest) -> Policy:
        """The policy in a manifest. Raises PolicyError if there is none, or if it cannot be read."""
        if manifest.policy is None:
            what = f"{manifest.artifact.name} {manifest.artifact.version}"
            raise PolicyError(f"{what} has no policy: sign one with `headwater artifacts policy` and push it")
        return cls.of_json(manifest.artifact, manifest.policy)

    @classmethod
    def of_json(cls, artifact: Artifact, value: Any) -> Policy:
        """Raises PolicyError. Signatures are not checked here."""
        signed = Signed.of_json(value, what="the policy of an artifact")
        body = signed.body
        try:
            if body["type"] != "targets":
                raise ValueError("type, which must be targets")
            hardware = list_of(body["hardware"], "hardware", most=HARDWARE_MAX)
            signed_us, expires_us = period(body)
            order, floor = VersionOrder(body["order"]), body["floor"]
            found = cls(
                artifact=artifact,
                product=text(body["product"], "product"),
                hardware=frozenset(text(one, "hardware") for one in hardware),
                order=order,
                floor=None if floor is None else Floor(order, text(floor, "floor")),
                signed_us=signed_us,
                expires_us=expires_us,
                signed=signed,
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PolicyError(f"this is not the policy of an artifact: wrong or missing {error}") from error
        order.check(artifact.version)
        if found.floor is not None:
            found.floor.check(artifact.version)
        return found

    @classmethod
    def parse(cls, payload: bytes) -> Policy:
        """Reads the file that several people sign: `{"artifact": …, "policy": …}`. Raises PolicyError."""
        body = parsed(payload, what="the policy of an artifact")
        try:
            artifact, policy = Artifact.of_json(body["artifact"]), body["policy"]
        except (KeyError, TypeError, ValueError, RecursionError, HeadwaterError) as error:
            raise PolicyError(f"this is not the policy of an artifact: wrong or missing {error}") from error
        return cls.of_json(artifact, policy)

    def to_bytes(self) -> bytes:
        body = {"artifact": self.artifact.to_json(), "policy": self.signed.to_json()}
        return json.dumps(body, indent=1).encode() + b"\n"

    def in_manifest(self) -> Mapping[str, Any]:
        """The field `policy` of the manifest."""
        return self.signed.to_json()

    def signed_bytes(self) -> bytes:
        return _PREFIX + canonical({"artifact": self.artifact.to_json(), "policy": dict(self.signed.body)})

    def and_signature(self, key: SigningKey) -> Policy:
        return replace(self, signed=self.signed.and_signature(key, self.signed_bytes()))

    def check_signed(self, root: Root) -> None:
        """Raises PolicyError unless a threshold of the targets keys of `root` has signed it."""
        what = f"the policy of {self.artifact.name} {self.artifact.version}"
        root.must_have_signed(TARGETS, what, self.signed_bytes(), self.signed)
