"""How the action engine reads and writes its tables: the interface `TableStore`, and the values that pass through it.

`actions.store` implements it; a test may do so with lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from actions.engine import Action, ActionState, Artifacts, Decision, Device, DeviceState, Report, Request, Target

NOTHING: Final = frozenset[str]()
"""No actions."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions up to which the input tables are read, or settled; -1 means none."""

    actions: int = -1
    requests: int = -1
    reports: int = -1


@dataclass(frozen=True, slots=True)
class News:
    """News of the input tables since the last read. Requests and reports come with the version that added them."""

    actions: tuple[Action, ...] = ()
    requests: Mapping[Request, int] = field(default_factory=dict)
    reports: Mapping[Report, int] = field(default_factory=dict)
    devices: Mapping[str, Device] | None = None
    """All devices, if the table has changed."""
    artifacts: Artifacts | None = None
    """All artifacts, if the table has changed."""
    read: Versions = Versions()
    newest_reports: int = -1
    """The version up to which reports exist; one read may return fewer."""

    @property
    def empty(self) -> bool:
        nothing = not self.actions and not self.requests and not self.reports
        return nothing and self.devices is None and self.artifacts is None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The stored state of some actions."""

    definitions: tuple[Action, ...]
    states: tuple[ActionState, ...]
    targets: tuple[Target, ...]
    said: frozenset[str]


class TableStore(Protocol):
    """The engine's access to its tables. One store per engine; nobody else may write to the tables that it writes."""

    def claim(self) -> None:
        """Takes over as the engine of these tables: later commits of an earlier engine fail."""

    def running(self) -> frozenset[str]:
        """The ids of actions that are not over, whose row is older than one of their targets, that have copies of
        commands in old logs, or that supersede an update which may still get new devices."""

    def load(self, action_ids: Collection[str]) -> Loaded:
        """Everything that is stored about these actions."""

    def load_late(self, asked: Mapping[str, Collection[str]]) -> Loaded:
        """Of those of these actions that are over: their rows, and the targets and events of these devices only. Leaves
        out an action if so many of its targets are asked for that a complete load takes less time."""

    def facts(self) -> Mapping[str, DeviceState]:
        """The stored state of each device, by id."""

    def owners(self) -> Mapping[str, str]:
        """Log id → the broker that it belongs to, by its name or otherwise its address."""

    def keep_owners(self, owners: Mapping[str, str]) -> None:
        """Stores these owners, also in place of earlier ones of the same logs."""

    def news(self) -> News:
        """The news since the last call; the first call starts after what earlier runs have settled. Raises
        EngineFencedError if a newer engine has claimed the tables, soon after it has."""

    def has_changed(self) -> bool:
        """Whether there are news for certain. Only a quick look: False may also mean that looking would take long."""

    def settle(self, *, now: bool = False) -> None:
        """Makes durable what a repeatable commit has left for later, and brings the tables up to date if it is time.
        `now`: it is."""

    def archive(self, before_us: int, loaded: Collection[str] = NOTHING) -> bool:
        """Moves some rows of actions that ended before this time and owe nothing into the archives: events that were
        recorded before it, targets, handled requests; and old rows of quarantine. Not of actions that are `loaded`.
        Returns whether there may be more."""

    def commit(
        self, decision: Decision, settled: Versions, *, new: frozenset[str] = NOTHING, is_repeatable: bool = False
    ) -> None:
        """Writes a decision: events, quarantine, devices, targets, states, in this order. Publishes nothing.

        `new` are actions of which the tables have no state and no targets: their rows need no search for older ones. A
        crash in between leaves a prefix of these writes; the repeated tick then writes the rest. `is_repeatable`: a
        restart would decide the same again, so a part may be written with the next commit, or by `settle`.
        """
