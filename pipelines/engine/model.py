"""The values that the action engine works on. No behaviour beyond what a value knows about itself.

Times are Unix microseconds in UTC. Two clocks appear and are never compared with each other: what a device or the
broker reported carries the time of the broker's record, everything else the engine's own `now`. Timeouts use
`since_us`, which is the engine's; the order of reports uses neither (see `lifecycle`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

SECOND_US = 1_000_000


class TargetState(StrEnum):
    """Where one device stands with one action."""

    PENDING = "PENDING"
    QUEUED = "QUEUED"
    DELIVERED = "DELIVERED"
    ACCEPTED = "ACCEPTED"
    IN_PROGRESS = "IN_PROGRESS"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    REJECTED = "REJECTED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"
    REMOVED = "REMOVED"


TERMINAL = frozenset(
    {
        TargetState.SUCCEEDED,
        TargetState.FAILED,
        TargetState.REJECTED,
        TargetState.TIMED_OUT,
        TargetState.CANCELLED,
        TargetState.SKIPPED,
        TargetState.REMOVED,
    }
)


class ActionPhase(StrEnum):
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    """Every target is in a terminal state, or there was none."""
    REFUSED = "REFUSED"
    """The row itself was wrong; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Which devices an action is for: those that meet every criterion given. `None` is a criterion not given."""

    device_ids: tuple[str, ...] | None = None
    labels: Mapping[str, str] | None = None
    percentage: float | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a target may stay without news, in seconds. `None` takes the default of `Limits`."""

    queued_s: int | None = None
    """Until the device has acknowledged the record (PENDING, QUEUED), or answered a cancel (CANCELLING)."""
    delivered_s: int | None = None
    """From there until the device says that it has begun (DELIVERED, ACCEPTED)."""
    in_progress_s: int | None = None
    """Between two reports of progress."""


@dataclass(frozen=True)
class Action:
    """A row of `actions`: what, to whom, how. `commit_version` is the table version that brought it."""

    action_id: str
    tenant: str
    type: str
    name: str
    params: str
    selector: Selector
    timeouts: Timeouts = Timeouts()
    deadline_us: int | None = None
    created_by: str = ""
    created_us: int = 0
    commit_version: int = 0

    @cached_property
    def digest(self) -> str:
        """Names the content of the row, so that a restarted engine knows which of two rows with one id came first."""
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
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Request:
    """A row of `action_requests`: somebody wants to change a running action. `device_id` None means all its targets."""

    request_id: str
    tenant: str
    action_id: str
    kind: str
    device_id: str | None = None
    by: str = ""
    at_us: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    device_id: str
    tenant: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """A row of `action_events` that came from the broker: a device's status, or the receipt of a command.

    (log_id, partition, offset) is the place of the *report*. A receipt also carries the place of the command.
    """

    source: Literal["status", "receipt"]
    log_id: str
    partition: int
    offset: int
    device_id: str
    action_id: str
    attempt: int
    state: str
    at_us: int
    recorded_us: int
    """When the row entered the table; a report that matches nothing waits from here on."""
    tenant: str = "default"
    boot: str | None = None
    seq: int | None = None
    progress: int | None = None
    message: str | None = None
    result: str | None = None
    command_partition: int | None = None
    command_offset: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        return (self.log_id, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Target:
    """A row of `action_targets`: one device of one action.

    `outbox` is what the engine owes the device and has not seen in the log yet: it is committed before the publish and
    cleared after it, so a restart publishes again under the same idempotency key, which adds nothing.
    """

    action_id: str
    tenant: str
    device_id: str
    state: TargetState
    created_us: int
    since_us: int
    updated_us: int
    attempt: int = 1
    outbox: Literal["command", "cancel"] | None = None
    partition: int | None = None
    offset: int | None = None
    queued_us: int | None = None
    delivered_us: int | None = None
    accepted_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    report_log_id: str | None = None
    report_partition: int | None = None
    report_offset: int | None = None
    boot: str | None = None
    seq: int | None = None
    progress: int | None = None
    message: str | None = None
    result: str | None = None
    late: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return (self.action_id, self.device_id)

    @property
    def final(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class ActionState:
    """A row of `action_state`. `requests_done` is written last, so a request is never taken as handled too early."""

    action_id: str
    tenant: str
    phase: ActionPhase
    digest: str
    targets: int
    open: int
    counts: Mapping[str, int]
    message: str
    started_us: int
    ended_us: int | None
    updated_us: int
    requests_done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A row that the engine adds to `action_events`. The id is derived from the cause: the same cause, the same id."""

    event_id: str
    tenant: str
    action_id: str
    state: str
    message: str
    at_us: int
    device_id: str | None = None
    attempt: int | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """One record for a device. The same key is always the same bytes."""

    action_id: str
    device_id: str
    attempt: int
    kind: Literal["command", "cancel"]
    topic: str
    value: bytes
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where the log has a published record."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    report: Report
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    publish_max: int = 5_000
    """Commands and cancels that may be owed at once: what one tick publishes, and the memory it takes."""
    wait_unmatched_s: int = 600
    queued_s: int = 7 * 24 * 3600
    delivered_s: int = 3600
    in_progress_s: int = 24 * 3600


Targets = Mapping[str, Mapping[str, Target]]
"""action_id → device_id → target."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the tables say, as far as open actions and news about them need it."""

    actions: Mapping[str, ActionState] = field(default_factory=dict)
    targets: Targets = field(default_factory=dict)
    waiting: tuple[Report, ...] = ()
    """Reports that match no target yet. Not stored: they are read again from `action_events` after a restart."""
    said: frozenset[str] = frozenset()
    """Ids of the audit events that `action_events` already has from the engine."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a tick wants done, in this order: events, quarantine, targets, states, and only then publishes."""

    target_updates: tuple[Target, ...] = ()
    state_updates: tuple[ActionState, ...] = ()
    publishes: tuple[Publish, ...] = ()
    events: tuple[AuditEvent, ...] = ()
    quarantine: tuple[Quarantined, ...] = ()
    waiting: tuple[Report, ...] = ()

    @property
    def writes(self) -> bool:
        return bool(self.target_updates or self.state_updates or self.events or self.quarantine)
