"""User input: actions, requests, devices, artifacts. Values only; `validity` judges whether they make sense.

Times are Unix microseconds in UTC. Texts that have a grammar (waves, windows, label expressions) are stored here as
they were written; the modules of the same names parse them and cache the results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

_SENTENCE_MAX = 1_000


def shortened(sentence: str) -> str:
    """A bounded sentence. It may quote user input, and it is stored in many rows."""
    return sentence if len(sentence) <= _SENTENCE_MAX else f"{sentence[:_SENTENCE_MAX]}…"


@dataclass(frozen=True, slots=True)
class Selector:
    """Which devices an action is for: those that meet every criterion given. `None` means that a criterion is not
    given."""

    device_ids: tuple[str, ...] | None = None
    labels: Mapping[str, str] | None = None
    percentage: float | None = None
    groups: tuple[str, ...] | None = None
    """Devices in any of these groups."""
    label_expression: str | None = None
    reported_expression: str | None = None
    """By what devices report, see `reported_expression`."""
    saved: str | None = None
    """The name of the saved selector from which somebody copied criteria. It selects nothing by itself."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a target may stay in a state, in seconds. `None` means the default of `Limits`."""

    queued_s: int | None = None
    """From the append of the command to the log until the device has it; for a cancel, from its append to its
    answer."""
    delivered_s: int | None = None
    """From then until the device reports that it has begun (DELIVERED, ACCEPTED)."""
    in_progress_s: int | None = None
    """From the beginning to the end of the work."""
    step_s: int | None = None
    """Between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """How an action is rolled out: in which order, how fast, and when it stops by itself."""

    membership: str = "static"
    waves: str | None = None
    """JSON, see `waves`."""
    needs_approval: bool = False
    rate_per_minute: int | None = None
    max_in_flight: int | None = None
    abort_percentage: float | None = None
    abort_min_reported: int | None = None
    not_before_us: int | None = None
    maintenance_window: str | None = None
    """See `windows`."""
    retries: int = 0
    retry_backoff_s: int = 60
    priority: int = 0
    depends_on: tuple[str, ...] = ()

    @property
    def dynamic(self) -> bool:
        return self.membership == "dynamic"


@dataclass(frozen=True, slots=True)
class Ota:
    """The artifact that an action of type `ota` installs, and its conditions."""

    artifact_name: str | None = None
    artifact_version: str | None = None
    mode: str = "forced"
    supersede: bool = False
    requires_versions: tuple[str, ...] | None = None
    target_version: str | None = None


@dataclass(frozen=True)
class Action:
    """A row of `actions`: command, devices, rollout. `commit_version` is the table version that added it."""

    action_id: str
    tenant: str
    type: str
    name: str
    params: str
    selector: Selector
    timeouts: Timeouts = Timeouts()
    deadline_us: int | None = None
    created_by: str = ""
    confirmed_by: str | None = None
    """The log id of the broker that verified the name in `created_by`. Not part of the digest."""
    created_us: int = 0
    commit_version: int = 0
    rollout: Rollout = Rollout()
    ota: Ota = Ota()

    @property
    def is_ota(self) -> bool:
        return self.type == "ota"

    @property
    def target_version(self) -> str | None:
        """The version that a device must report to count as SUCCEEDED; None for a command."""
        return (self.ota.target_version or self.ota.artifact_version) if self.is_ota else None

    @cached_property
    def digest(self) -> str:
        """Identifies the content of the row, so that a restarted engine knows which of two rows with the same id came
        first.

        Unused columns do not count, so a column that is added later does not change any digest.
        """
        body: list[object] = [
            self.tenant,
            self.type,
            self.name,
            self.params,
            self.deadline_us,
            self.created_by,
            self.created_us,
        ]
        body += [self.selector.device_ids, self.selector.percentage, self.timeouts.queued_s]
        body += [self.timeouts.delivered_s, self.timeouts.in_progress_s]
        body += [sorted(self.selector.labels.items()) if self.selector.labels is not None else None]
        more = {**_given(self.rollout), **_given(self.ota)}
        more |= {"groups": self.selector.groups, "label_expression": self.selector.label_expression}
        more |= {"step_s": self.timeouts.step_s, "reported_expression": self.selector.reported_expression}
        more |= {"selector": self.selector.saved}
        used = {name: value for name, value in more.items() if value is not None}
        if used:
            body += [sorted(used.items())]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


def _given(value: Rollout | Ota) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}


@dataclass(frozen=True, slots=True)
class Request:
    """A row of `action_requests`: a user wants to change a running action. `device_id` None means all its targets."""

    request_id: str
    tenant: str
    action_id: str
    kind: str
    device_id: str | None = None
    by: str = ""
    confirmed_by: str | None = None
    """The log id of the broker that verified the name in `by`."""
    at_us: int = 0
    reason: str = ""
    wave: int | None = None
    """The wave that an approval is for, from 1; None: whichever waits."""

    @property
    def who(self) -> str:
        """For a sentence: the user who asked, and the reason."""
        return shortened(f"{self.by or 'somebody'}" + (f": {self.reason}" if self.reason else ""))


@dataclass(frozen=True, slots=True)
class Device:
    """A row of `devices`, written by users."""

    device_id: str
    tenant: str
    labels: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    time_zone: str | None = None
    log: str | None = None
    """A log id or the name of a broker: the device is reached through it."""


class DeviceTable(dict[str, Device]):
    """The table `devices`: the rows in use by id, and the ids whose row says that somebody has retired the device."""

    def __init__(self, in_use: Mapping[str, Device], *, retired: frozenset[str] = frozenset()) -> None:
        super().__init__(in_use)
        self.retired = retired


@dataclass(frozen=True, slots=True)
class Artifact:
    """A row of `artifacts`: an artifact that may be installed, and the devices that may install it (`None`: any)."""

    name: str
    version: str
    tenant: str
    sha256: str = ""
    size_bytes: int = 0
    signature: str | None = None
    key_id: str | None = None
    labels: Mapping[str, str] | None = None
    device_ids: frozenset[str] | None = None
    withdrawn: str | None = None
    """Who withdrew it and why: no command for it is sent any more."""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.tenant, self.name, self.version)

    def lacking(self, device: Device) -> str | None:
        """Why this device may not install it, or None."""
        if self.device_ids is not None and device.device_id not in self.device_ids:
            return "it is not among the devices that may have it"
        for label, value in (self.labels or {}).items():
            if device.labels.get(label) != value:
                return f"it is for devices with {label}={value}"
        return None


Artifacts = Mapping[tuple[str, str, str], Artifact]
"""(tenant, name, version) → artifact."""


def why_gone(action: Action, artifacts: Artifacts) -> str | None:
    """Why what this action installs must not be sent: its row has gone, or somebody has withdrawn it. None: it may."""
    if not action.is_ota:
        return None
    name, version = action.ota.artifact_name or "", action.ota.artifact_version or ""
    artifact = artifacts.get((action.tenant, name, version))
    if artifact is None:
        return shortened(f"the artifact {name} {version} is no longer in the table artifacts")
    if artifact.withdrawn is not None:
        return shortened(f"the artifact {name} {version} was withdrawn by {artifact.withdrawn}")
    return None


def has_artifacts(artifacts: Artifacts, tenant: str) -> bool:
    """Whether the table has an artifact of this tenant. Without one, it is more likely being rewritten than empty."""
    return any(of == tenant for of, _, _ in artifacts)
