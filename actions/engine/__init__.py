"""The action engine: one pure function decides which records are owed to which devices.

`tick` takes the known state (state, actions, requests, reports, devices, the time) and returns a `Decision`: rows to
write and records to publish. It reads no table, publishes nothing and asks no clock; `actions.job` does that.
"""

from .action import Action, Artifact, Artifacts, Device, DeviceTable, Ota, Request, Rollout, Selector, Timeouts
from .clock import STEP_US, in_past, moved_clock, row_in_past
from .logs import Logs, Served
from .model import (
    TERMINAL,
    ActionPhase,
    ActionState,
    AuditEvent,
    Decision,
    DeviceState,
    EngineState,
    Limits,
    Place,
    Publish,
    Quarantined,
    Report,
    Target,
    TargetState,
)
from .outbox import record_places
from .rest import rests_until_us
from .selection import bucket
from .tick import apply, tick

__all__ = [
    "STEP_US",
    "TERMINAL",
    "Action",
    "ActionPhase",
    "ActionState",
    "Artifact",
    "Artifacts",
    "AuditEvent",
    "Decision",
    "Device",
    "DeviceState",
    "DeviceTable",
    "EngineState",
    "Limits",
    "Logs",
    "Ota",
    "Place",
    "Publish",
    "Quarantined",
    "Report",
    "Request",
    "Rollout",
    "Selector",
    "Served",
    "Target",
    "TargetState",
    "Timeouts",
    "apply",
    "bucket",
    "in_past",
    "moved_clock",
    "record_places",
    "rests_until_us",
    "row_in_past",
    "tick",
]
