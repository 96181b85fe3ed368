"""Keys, key lists and policies for tests of what devices accept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_edge.artifacts import ChunkRuns, Manifest, SigningKey
from broker_edge.artifacts.manifest import Artifact
from broker_edge.device import Guard, GuardSettings, MemoryHeld
from broker_edge.policy import DIRECTOR, ROOT, TARGETS, Floor, Policy, Root, VersionOrder

DAY = 86_400 * 1_000_000
NOW = 20_000 * DAY
"""Where the clock of a test begins: in October 2024, which is past for brokers and devices that have no clock of a
test."""
FOR_EVER = 40_000 * DAY

Keys = Sequence[SigningKey]


def new_keys(number: int) -> list[SigningKey]:
    return [SigningKey.generate() for _ in range(number)]


def key_list(
    roots: Keys,
    targets: Keys,
    director: Keys = (),
    *,
    version: int = 1,
    thresholds: tuple[int, int] = (1, 1),
    signed_us: int = NOW - DAY,
    expires_us: int = FOR_EVER,
    by: Keys | None = None,
) -> Root:
    """`thresholds` are those of root and targets. Signed `by` all root keys, if nobody else is named."""
    roles = {
        ROOT: ([key.public for key in roots], thresholds[0]),
        TARGETS: ([k.public for k in targets], thresholds[1]),
    }
    if director:
        roles[DIRECTOR] = ([key.public for key in director], 1)
    root = Root.make(roles, version=version, signed_us=signed_us, expires_us=expires_us)
    for key in roots if by is None else by:
        root = root.and_signature(key)
    return root


def artifact_of(version: str = "2.0.0", *, name: str = "pump", content: bytes = b"image") -> Artifact:
    digest = hashlib.sha256(content).hexdigest()
    return Artifact(name, version, len(content), digest, 1024, (digest,))


def policy_of(artifact: Artifact, by: Keys, **fields: Any) -> Policy:
    given: dict[str, Any] = {
        "product": "pump",
        "hardware": ["p2"],
        "order": VersionOrder.SEMVER,
        "signed_us": NOW,
        "expires_us": FOR_EVER,
        **fields,
    }
    policy = Policy.make(artifact, **given)
    for key in by:
        policy = policy.and_signature(key)
    return policy


def manifest_of(artifact: Artifact, policy: Policy | None) -> Manifest:
    place = ChunkRuns("log", "artifacts-0", 2, ((0, len(artifact.chunks)),))
    return Manifest(artifact, None, place, NOW, None if policy is None else policy.in_manifest())


@dataclass
class Maker:
    """Makes what a device of the product `pump` with the hardware `p2` is given."""

    roots: list[SigningKey] = field(default_factory=lambda: new_keys(2))
    targets: list[SigningKey] = field(default_factory=lambda: new_keys(3))
    director: SigningKey = field(default_factory=SigningKey.generate)
    root: Root = field(init=False)
    now_us: int = NOW

    def __post_init__(self) -> None:
        self.root = key_list(self.roots, self.targets, [self.director], thresholds=(2, 2))

    def settings(self, **fields: Any) -> GuardSettings:
        return replace(GuardSettings(self.root, "pump", "p2", Floor(VersionOrder.SEMVER, "1.0.0")), **fields)

    def guard(self, store: Any = None, **fields: Any) -> Guard:
        """A guard whose clock is `now_us`."""
        return Guard(self.settings(**fields), store or MemoryHeld(), clock_us=lambda: self.now_us)

    def manifest(self, version: str = "2.0.0", *, by: Keys | None = None, **fields: Any) -> Manifest:
        artifact = artifact_of(version)
        return manifest_of(artifact, policy_of(artifact, self.targets[:2] if by is None else by, **fields))

    def next_root(self, *, by: Keys | None = None, **fields: Any) -> Root:
        """The version after `root`, with the same keys unless others are given."""
        given: dict[str, Any] = {
            "roots": self.roots,
            "targets": self.targets,
            "director": [self.director],
            "thresholds": (2, 2),
            "version": self.root.version + 1,
            **fields,
        }
        return key_list(given.pop("roots"), given.pop("targets"), given.pop("director"), by=by, **given)
