"""The order of versions, told by the policy of an artifact: PEP 440 or SemVer. And the security floor in that order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import semver
from packaging.version import InvalidVersion
from packaging.version import Version as Pep440Version

from broker_edge.policy.signed import PolicyError, text

VERSION_MAX = 256
"""Characters. Devices choose theirs, and Python refuses to read numbers of some thousand digits."""


class VersionOrder(StrEnum):
    PEP440 = "pep440"
    SEMVER = "semver"

    def is_before(self, left: str, right: str) -> bool:
        """Whether `left` is older than `right`. Raises PolicyError for a text that is no version of this order."""
        for version in (left, right):
            if len(version) > VERSION_MAX:
                raise PolicyError(f"a version has {len(version)} characters; the limit is {VERSION_MAX}")
        if self is VersionOrder.PEP440:
            return _pep440(left) < _pep440(right)
        return _semver(left).compare(_semver(right)) < 0

    def check(self, version: str) -> None:
        """Raises PolicyError if the text is no version of this order."""
        self.is_before(version, version)

    def has(self, version: str) -> bool:
        try:
            self.check(version)
        except PolicyError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Floor:
    """The oldest version that may be installed."""

    order: VersionOrder
    version: str

    def __post_init__(self) -> None:
        self.order.check(self.version)

    def __str__(self) -> str:
        return f"{self.version} ({self.order})"

    def check(self, version: str) -> None:
        """Raises PolicyError if the version is older, or no version of this order."""
        if self.order.is_before(version, self.version):
            raise PolicyError(f"version {version} is below the security floor {self}")

    def raised(self, other: Floor) -> Floor:
        """The higher one. A floor of another order counts only if it is as high in the order of this one too."""
        is_higher = self.order.has(other.version) and not self.order.is_before(other.version, self.version)
        return other if is_higher else self

    def to_json(self) -> dict[str, Any]:
        return {"order": str(self.order), "version": self.version}

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> Floor:
        """Raises KeyError, ValueError or PolicyError."""
        return cls(VersionOrder(body["order"]), text(body["version"], "version"))


def _pep440(version: str) -> Pep440Version:
    try:
        return Pep440Version(version)
    except InvalidVersion as error:
        raise PolicyError(f"`{version}` is not a version in the order pep440: write for example 1.4.0") from error


def _semver(version: str) -> semver.Version:
    try:
        return semver.Version.parse(version)
    except ValueError as error:
        raise PolicyError(f"`{version}` is not a version in the order semver: write for example 1.4.0-rc.1") from error
