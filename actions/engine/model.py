"""The engine's own values: targets, states, reports, decisions. No behaviour beyond what a value knows about itself.

Times are Unix microseconds in UTC. Two clocks appear and are never compared with each other: what a device or the
broker reported carries the time of the broker's record, everything else the engine's own `now`. Timeouts use
`since_us`, which is the engine's; the order of reports uses neither (see `lifecycle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from .action import Device

SECOND_US = 1_000_000

LATE_US = SECOND_US
"""A command that is owed for so long may have reached the log at any time since: its rate is counted once more."""


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


ERRORS = frozenset({TargetState.FAILED, TargetState.REJECTED, TargetState.TIMED_OUT})
"""What counts against an action; the others that are not SUCCEEDED count neither way."""


class ActionPhase(StrEnum):
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    """Somebody paused it: nothing more is sent; what is out goes on."""
    WAITING_APPROVAL = "WAITING_APPROVAL"
    """The next wave waits for somebody's approval."""
    STOPPING = "STOPPING"
    """Aborted or cancelled: nothing more is sent; it ends with the last answer."""
    ENDED = "ENDED"
    """Every target is in a terminal state, or there was none."""
    REFUSED = "REFUSED"
    """The row itself was wrong; nothing was sent."""

    @property
    def over(self) -> bool:
        return self in (ActionPhase.ENDED, ActionPhase.REFUSED)


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
    version: str | None = None
    """The firmware that the device runs, by its own word."""
    command_partition: int | None = None
    command_offset: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        return (self.log_id, self.partition, self.offset)

    @property
    def about_bytes(self) -> int:
        """About how much memory it takes."""
        texts = (self.device_id, self.action_id, self.state, self.boot, self.message, self.result, self.version)
        return 500 + sum(len(text) for text in texts if text is not None)


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
    wave: int = 0
    outbox: Literal["command", "cancel", "force"] | None = None
    mode: str | None = None
    """How the device was asked to install, set when the command becomes owed: the bytes of the command follow."""
    forced: bool = False
    """Somebody forced it: the window does not count, and a mode other than `forced` is to be replaced."""
    leaving: bool = False
    """The device is to be REMOVED once its cancel is in the log."""
    claimed: bool = False
    """The device said SUCCEEDED and has not named the version that proves it."""
    retry_us: int | None = None
    """Not to be sent before."""
    sent_us: int | None = None
    """By the engine's clock: when the command became owed, then when the log had it."""
    begun_us: int | None = None
    """By the engine's clock: when it was seen in progress first."""
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

    @property
    def unsent(self) -> bool:
        """Nothing of this attempt can be in the log."""
        return self.state is TargetState.PENDING and self.outbox is None


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
    wave: int = 0
    """The wave that is open; -1 before the approval that the action begins with."""
    waves: int = 1
    gate_us: int | None = None
    """Since when the open wave has the successes that the next one asks for."""
    approved: int = -1
    """The highest wave that somebody let begin."""
    stopped: str | None = None
    """Why nothing more is sent, for good."""
    forced: bool = False
    sent: Mapping[str, int] = field(default_factory=dict)
    """Commands by the second (Unix) in which they became owed, of the last minute; kept where there is a rate."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A row of `device_state`: what a device was last heard to say. The place is that of its newest status."""

    device_id: str
    tenant: str
    last_seen_us: int
    log_id: str
    partition: int
    offset: int
    boot: str | None = None
    version: str | None = None
    last_action_id: str | None = None
    last_status: str | None = None
    updated_us: int = 0


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
    kind: Literal["command", "cancel", "force"]
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
    step_s: int = 24 * 3600
    waiting_max: int = 50_000
    """Reports that may wait for their action; more go to quarantine at once."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """About as much memory they may take: any device may say much about an action that is not there."""
    allow_unsigned: bool = False
    """Whether artifacts without a signature may be installed."""
    trusted_keys: frozenset[str] = frozenset()
    """The ids of keys whose signatures count; empty: any."""


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
    facts: Mapping[str, DeviceState] = field(default_factory=dict)
    """By device id."""
    devices: Mapping[str, Device] | None = field(default=None, compare=False)
    """The mapping that the last tick was given: where it is the same object, nobody has come or gone."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a tick wants done, in this order: events, quarantine, devices, targets, states, only then publishes."""

    target_updates: tuple[Target, ...] = ()
    state_updates: tuple[ActionState, ...] = ()
    publishes: tuple[Publish, ...] = ()
    events: tuple[AuditEvent, ...] = ()
    quarantine: tuple[Quarantined, ...] = ()
    waiting: tuple[Report, ...] = ()
    device_updates: tuple[DeviceState, ...] = ()
    devices: Mapping[str, Device] | None = field(default=None, compare=False)

    @property
    def writes(self) -> bool:
        rows = (self.target_updates, self.state_updates, self.events, self.quarantine, self.device_updates)
        return any(rows)
