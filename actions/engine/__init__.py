"""The action engine: which device owes what, decided by one pure function.

`tick` takes what is known (state, actions, requests, reports, devices, the time) and answers with a `Decision`: rows to
write, records to publish. It reads no table, publishes nothing and asks no clock: `pipelines.actions` does, around it.
"""

from .action import Action, Artifact, Artifacts, Device, Ota, Request, Rollout, Selector, Timeouts
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
    "EngineState",
    "Limits",
    "Ota",
    "Place",
    "Publish",
    "Quarantined",
    "Report",
    "Request",
    "Rollout",
    "Selector",
    "Target",
    "TargetState",
    "Timeouts",
    "apply",
    "bucket",
    "record_places",
    "rests_until_us",
    "tick",
]
