"""Drives the action engine as its job does: ticks, a fake log, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from actions.engine import (
    Action,
    Artifact,
    Decision,
    Device,
    EngineState,
    Limits,
    Logs,
    Place,
    Report,
    Request,
    Selector,
    Target,
    TargetState,
    apply,
    record_places,
    tick,
)

SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND


def devices_of(*ids: str, labels: Mapping[str, str] | None = None) -> dict[str, Device]:
    return {id_: Device(device_id=id_, tenant="default", labels=labels or {}) for id_ in ids}


def action_of(action_id: str = "a1", **fields: object) -> Action:
    defaults: dict[str, object] = {
        "action_id": action_id,
        "tenant": "default",
        "type": "command",
        "name": "echo",
        "params": '{"text":"hi"}',
        "selector": Selector(device_ids=("d1",)),
        "created_us": START_US,
    }
    return Action(**{**defaults, **fields})  # type: ignore[arg-type]


@dataclass
class Engine:
    """Runs ticks as the job does: applies the decision, publishes to a fake log, records the offsets."""

    devices: Mapping[str, Device]
    limits: Limits = field(default_factory=Limits)
    now_us: int = START_US
    state: EngineState = field(default_factory=EngineState)
    actions: list[Action] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    artifacts: Mapping[tuple[str, str, str], Artifact] = field(default_factory=dict)
    published: list[str] = field(default_factory=list)
    broker_up: bool = True
    logs: Logs = field(default_factory=Logs)
    read_us: Mapping[str, int] | None = None
    """As the job says it; None: no log is behind."""
    contents: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """log id → idempotency key → value, of the logs that are named."""
    last: Decision = field(default_factory=Decision)
    _next_offset: int = 100

    def tick(self, *reports: Report, after_s: float = 1) -> Decision:
        self.now_us += int(after_s * SECOND)
        self.last = tick(
            self.state,
            self.actions,
            self.requests,
            reports,
            self.devices,
            self.now_us,
            artifacts=self.artifacts,
            limits=self.limits,
            logs=self.logs,
            read_us=self.read_us,
        )
        self.state = apply(self.state, self.last)
        if self.broker_up and self.last.publishes:
            places = {}
            for publish in self.last.publishes:
                broker = self.logs.serving(publish.log_id)
                assert broker is not None, f"{publish.idempotency_key} is owed to a log that nobody serves"
                if broker.away:
                    continue
                if broker.log_id is not None:
                    known = self.contents.setdefault(broker.log_id, {})
                    assert known.setdefault(publish.idempotency_key, publish.value) == publish.value
                self.published.append(publish.idempotency_key)
                places[publish] = Place(2, self._next_offset, broker.log_id)
                self._next_offset += 1
            self.state = apply(self.state, record_places(self.state, places, self.now_us))
        return self.last

    def target(self, device_id: str = "d1", action_id: str = "a1") -> Target:
        return self.state.targets[action_id][device_id]

    def report(self, state: str, offset: int, *, device_id: str = "d1", **fields: object) -> Report:
        defaults: dict[str, object] = {
            "source": "status",
            "log_id": "log",
            "partition": 5,
            "offset": offset,
            "device_id": device_id,
            "action_id": "a1",
            "attempt": 1,
            "state": state,
            "at_us": self.now_us,
            "recorded_us": self.now_us,
            "boot": "b1",
            "seq": offset,
        }
        return Report(**{**defaults, **fields})  # type: ignore[arg-type]

    def receipt(self, offset: int, **fields: object) -> Report:
        return self.report("DELIVERED", offset, source="receipt", partition=2, boot=None, seq=None, **fields)

    def ask(self, kind: str, **fields: object) -> None:
        self.cancel(kind=kind, **fields)

    def said(self) -> list[str]:
        """The answers and announcements of the last tick."""
        return [event.message for event in self.last.events]

    def phase(self, action_id: str = "a1") -> str:
        return self.state.actions[action_id].phase.value

    def sent(self) -> list[str]:
        """The devices whose commands are in the log, in order."""
        return [key.split("/")[1] for key in self.published if len(key.split("/")) == 3]

    def cancel(self, **fields: object) -> None:
        defaults: dict[str, object] = {
            "request_id": f"r{len(self.requests)}",
            "tenant": "default",
            "action_id": "a1",
            "kind": "cancel",
            "by": "ann",
            "at_us": self.now_us,
        }
        self.requests.append(Request(**{**defaults, **fields}))  # type: ignore[arg-type]


def started(*ids: str, **fields: object) -> Engine:
    engine = Engine(devices=devices_of(*(ids or ("d1",))))
    engine.actions.append(action_of(selector=Selector(device_ids=ids or ("d1",)), **fields))
    engine.tick()
    return engine


def states(engine: Engine) -> Collection[TargetState]:
    return [target.state for target in engine.state.targets["a1"].values()]
