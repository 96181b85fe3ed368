"""The engine's own values: targets, states, reports, decisions. They have no behaviour beyond their own fields.

Times are Unix microseconds in UTC. Two clocks are used and never compared with each other: reports of devices and
brokers carry the time of the broker's record; everything else uses the engine's own `now`. Timeouts use `since_us`,
which is the engine's time; the order of reports uses neither (see `lifecycle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from .action import Device
from .logs import Logs

SECOND_US = 1_000_000

LATE_US = SECOND_US
"""A command that is owed for this long may have reached the log at any time since, so it counts for the rate again."""


class TargetState(StrEnum):
    """The state of one action on one device."""

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
"""States that count as errors of an action. Of the other final states only SUCCEEDED counts, as success."""


class ActionPhase(StrEnum):
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    """A user paused it: nothing more is sent; commands already sent continue."""
    WAITING_APPROVAL = "WAITING_APPROVAL"
    """The next wave waits for an approval."""
    STOPPING = "STOPPING"
    """Aborted or cancelled: nothing more is sent; it ends with the last answer."""
    ENDED = "ENDED"
    """Every target is in a terminal state, or there were no targets."""
    REFUSED = "REFUSED"
    """The row itself was invalid; nothing was sent."""

    @property
    def over(self) -> bool:
        return self in (ActionPhase.ENDED, ActionPhase.REFUSED)


@dataclass(frozen=True, slots=True)
class Report:
    """A row of `action_events` that came from the broker: a device's status, or the receipt of a command.

    (log_id, partition, offset) is the position of the *report*. A receipt also carries the position of the command.
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
    """When the row was added to the table; the waiting time of a report without a matching target starts here."""
    tenant: str = "default"
    boot: str | None = None
    seq: int | None = None
    progress: int | None = None
    message: str | None = None
    result: str | None = None
    version: str | None = None
    """The firmware version that the device reports."""
    product: str | None = None
    hardware: str | None = None
    """What the device is, as it reports it."""
    command_partition: int | None = None
    command_offset: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        return (self.log_id, self.partition, self.offset)

    @property
    def about_bytes(self) -> int:
        """Its approximate size in memory."""
        texts = [self.device_id, self.action_id, self.state, self.boot, self.message, self.result, self.version]
        texts += [self.product, self.hardware]
        return 500 + sum(len(text) for text in texts if text is not None)


@dataclass(frozen=True, slots=True)
class Target:
    """A row of `action_targets`: one device of one action.

    `outbox` is the record that the engine owes the device and has not seen in the log yet. It is committed before the
    publish and cleared after it. A restart therefore publishes again under the same idempotency key, which has no
    effect.
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
    """The installation mode, set when the command becomes owed, because the bytes of the command depend on it."""
    forced: bool = False
    """A user forced it: windows are ignored, and a mode other than `forced` will be replaced."""
    leaving: bool = False
    """The target becomes REMOVED once its cancel is in the log."""
    gives_way: str | None = None
    """The action with a higher priority for which its command is withdrawn; then it gets another attempt."""
    given_up: int = 0
    """Attempts that gave way, which do not count as retries."""
    erred: bool = False
    """An earlier attempt ended in error. Until the target succeeds, it counts as an error of its action."""
    claimed: bool = False
    """The device reported SUCCEEDED, but not yet the version that proves it."""
    retry_us: int | None = None
    """The command must not be sent before this time."""
    sent_us: int | None = None
    """By the engine's clock: when the command became owed, then when the log had it."""
    begun_us: int | None = None
    """By the engine's clock: when it was first seen in progress."""
    log_id: str | None = None
    """The log of the command; None: the log of the first broker, whichever that is."""
    partition: int | None = None
    offset: int | None = None
    cancel_log_id: str | None = None
    """The log that has its cancel."""
    receipt_log_id: str | None = None
    """The log of the first receipt: the device took the command there."""
    force_log_id: str | None = None
    """The log that has its force record; empty: that of the first broker."""
    copies: tuple[str, ...] = ()
    """`<attempt>/<log id>` of further logs that may have a command of this target and no cancel behind it."""
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
    """A row of `action_state`. `requests_done` is written last, so a request never counts as handled too early."""

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
    """The open wave; -1 before the approval with which the action begins."""
    waves: int = 1
    gate_us: int | None = None
    """Since when the open wave has the successes that the next one requires."""
    waits_us: int | None = None
    """Since when the gate behind the open wave waits for an approval; None: none does, or the row is an older one."""
    approved: int = -1
    """The highest wave that a user has approved."""
    stopped: str | None = None
    """Why nothing more is sent; final."""
    forced: bool = False
    held: str | None = None
    """What is not carried out because so much of a table has disappeared at once."""
    sent: Mapping[str, int] = field(default_factory=dict)
    """Commands of the last minute by the Unix second in which they became owed; kept only if there is a rate."""
    archived_us: int | None = None
    """Since when targets may be in the archive: the store looks there too. The engine only keeps it."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A row of `device_state`: what a device last reported about itself. The position is that of its newest status."""

    device_id: str
    tenant: str
    last_seen_us: int
    log_id: str
    partition: int
    offset: int
    boot: str | None = None
    version: str | None = None
    product: str | None = None
    hardware: str | None = None
    last_action_id: str | None = None
    last_status: str | None = None
    updated_us: int = 0


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A row that the engine adds to `action_events`. The id is derived from the cause, so a repeated event has the same
    id."""

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
    kind: Literal["command", "cancel", "force", "withdraw"]
    """`withdraw` is a cancel for a copy of the command in another log."""
    topic: str
    value: bytes
    idempotency_key: str
    log_id: str | None = None
    """The log that it is for; None: that of the first broker."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a published record in the log."""

    partition: int
    offset: int
    log_id: str | None = None


@dataclass(frozen=True, slots=True)
class Quarantined:
    report: Report
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    publish_max: int = 5_000
    """Commands and cancels that may be owed to one log at once. Limits the publishes of one tick and their memory."""
    wait_unmatched_s: int = 600
    queued_s: int = 7 * 24 * 3600
    delivered_s: int = 3600
    in_progress_s: int = 24 * 3600
    step_s: int = 24 * 3600
    waiting_max: int = 50_000
    """Reports that may wait for their action; further ones go to quarantine at once."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Approximate limit for their memory: any device may send many reports about actions that do not exist."""
    allow_unsigned: bool = False
    """Whether artifacts without a signature may be installed."""
    trusted_keys: frozenset[str] = frozenset()
    """The ids of trusted signing keys; empty: any key."""
    needs_confirmed_names: bool = False
    """Whether an approval counts only if brokers have verified the names of its author and of who created the
    action."""
    withdraw_s: int = 30 * 24 * 3600
    """How long the copy of a command in an old log is remembered while nobody serves that log."""
    removal_max_percentage: float = 10
    """More than this share of an action's open targets is not removed at once without a user's word; 100: any share."""


Targets = Mapping[str, Mapping[str, Target]]
"""action_id → device_id → target."""


@dataclass(frozen=True, slots=True)
class Held:
    """The open targets of an action whose devices have left, and which are not removed without a user's word."""

    device_ids: frozenset[str]
    open: int
    """How many open targets the action had when they left."""


@dataclass(frozen=True, slots=True)
class Following:
    """What follows from the table `devices`. Not stored: the first tick looks at all targets."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """By action."""
    returning: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By action: the devices that are selected again before the cancel of their last attempt is in the log."""
    is_emptied: bool = False
    """The table has no rows now, and had some before."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The contents of the tables, as far as open actions and their news need them."""

    actions: Mapping[str, ActionState] = field(default_factory=dict)
    targets: Targets = field(default_factory=dict)
    waiting: tuple[Report, ...] = ()
    """Reports that match no target yet. Not stored: after a restart they are read again from `action_events`."""
    said: frozenset[str] = frozenset()
    """Ids of the engine's audit events that are already in `action_events`."""
    facts: Mapping[str, DeviceState] = field(default_factory=dict)
    """By device id."""
    devices: Mapping[str, Device] | None = field(default=None, compare=False)
    """The mapping given to the last tick. If it is the same object again, no device was added or removed."""
    logs: Logs | None = field(default=None, compare=False)
    """The logs given to the last tick."""
    moving: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)
    """action_id → devices whose queued command waits for room in the log to which they have moved. Not stored: the
    first tick looks at all targets."""
    copied: frozenset[tuple[str, str]] = field(default=frozenset(), compare=False)
    """The keys of targets with copies in other logs."""
    giving_way: frozenset[tuple[str, str]] = field(default=frozenset(), compare=False)
    """The keys of targets that give way."""
    following: Following = field(default=Following(), compare=False)
    unloaded: Mapping[str, Mapping[str, int]] = field(default_factory=dict, compare=False)
    """By action that is over and of which only some targets are here: the others by state. A late report needs no more;
    a request needs all targets."""
    indexes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """By action: the `index.Index` of its targets. Derived, and shared with the states that follow from this one."""
    judged_us: int = field(default=0, compare=False)
    """When dynamic actions last considered that time has passed since the reports of their devices."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The results of a tick, to be applied in this order: events, quarantine, devices, targets, states, then
    publishes."""

    target_updates: tuple[Target, ...] = ()
    state_updates: tuple[ActionState, ...] = ()
    publishes: tuple[Publish, ...] = ()
    events: tuple[AuditEvent, ...] = ()
    quarantine: tuple[Quarantined, ...] = ()
    waiting: tuple[Report, ...] = ()
    device_updates: tuple[DeviceState, ...] = ()
    devices: Mapping[str, Device] | None = field(default=None, compare=False)
    logs: Logs | None = field(default=None, compare=False)
    moving: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)
    following: Following | None = field(default=None, compare=False)
    """None: as before."""
    judged_us: int | None = field(default=None, compare=False)
    """None: as before."""
    wanted: frozenset[tuple[str, str, str, str]] = frozenset()
    """(log id, name, version, sha256) of artifacts that targets of this wave or the next one need there."""
    unread: frozenset[str] = frozenset()
    """Logs whose reports must be read further before a target or a soak that is due can be judged."""

    @property
    def writes(self) -> bool:
        rows = (self.target_updates, self.state_updates, self.events, self.quarantine, self.device_updates)
        return any(rows)
