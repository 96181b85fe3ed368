"""What people do to the fleet of a `support.machine_world`, and the days in which everything works at its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actions.engine import Action, Device, Ota, Request, Rollout, Selector, Target, Timeouts
from support.engine import SECOND, action_of
from support.machine_limits import WINDOWS, is_open
from support.machine_world import FIRMWARE, IDS, POISON, Box, World
from support.model_device import Log

WAVES = (
    None,
    '[{"percentage": 25}, {"percentage": 100}]',
    '[{"percentage": 25, "approve": true}, {"percentage": 60, "approve": true}, {"percentage": 100}]',
    '[{"percentage": 50, "success_percentage": 50, "error_percentage": 30, "soak_s": 100}, {"percentage": 100}]',
)
HASTY, DEFAULT = Timeouts(queued_s=60, delivered_s=60, in_progress_s=200, step_s=90), Timeouts()
SELECTORS = (
    Selector(percentage=100),
    Selector(device_ids=IDS),
    Selector(device_ids=IDS[:2]),
    Selector(device_ids=(*IDS[1:], "d9", POISON)),
    Selector(labels={"in": "yes"}),
)
PROFILES: tuple[dict[str, Any], ...] = (
    {"kind": "command"},
    {"kind": "command", "limits": (1, 0, 2), "fails": "always"},
    {"kind": "command", "limits": (2, 40, 0), "fails": "sometimes"},
    {"kind": "command", "limits": (None, 10, 2)},
    {"kind": "command", "waves": 1, "selector": 3},
    {"kind": "command", "waves": 2},
    {"kind": "command", "waves": 3, "fails": "sometimes"},
    {"kind": "command", "deadline_s": 100},
    {"kind": "command", "deadline_s": 20_000},
    {"kind": "command", "depends": "new"},
    {"kind": "command", "depends": "old"},
    {"kind": "2"},
    {"kind": "2", "mode": "soft", "limits": (None, None, 2)},
    {"kind": "3", "mode": "download_only", "limits": (None, 10, 0)},
    {"kind": "3", "supersede": True, "limits": (None, 10, 0)},
    {"kind": "3", "waves": 1, "fails": "always", "limits": (None, None, 2)},
    {"kind": "2", "deadline_s": 100, "supersede": True},
    {"kind": "2", "mode": "soft", "priority": 1, "limits": (None, 10, 1)},
    {"kind": "3", "priority": 2},
    {"kind": "2", "priority": 2, "supersede": True, "limits": (2, None, 0)},
    {"kind": "3", "priority": 1, "rate": 1, "limits": (1, 40, 2)},
    {"kind": "command", "rate": 2, "limits": (3, None, 1)},
    {"kind": "command", "is_windowed": True},
    {"kind": "3", "is_windowed": True, "priority": 1, "limits": (None, None, 1)},
    {"kind": "command", "needs_approval": True},
    {"kind": "2", "needs_approval": True, "waves": 2},
)
"""Of `limits`: devices in flight, the percentage of an abort, and retries."""
ACTIONS_MAX, REQUESTS_MAX = 6, 16
_DRAIN_MAX = 90
_CALM = 8
_LEAPS = (30, 34, 38, 42)
_LEAP_S = 700_000


class Fleet(World):
    """The table `devices` is always one of `everyone` with rows changed, or empty."""

    def live(self, steps: int, most: int = 8) -> None:
        """Devices work, the status job reads, the engine takes a turn."""
        self.devices_work(steps, most=most)
        for box in self.boxes:
            self.collect(box)
        self.turn()

    # -- actions and requests ----------------------------------------------------------------------------------------

    def insert(
        self,
        *,
        kind: str,
        waves: int = 0,
        selector: int = 0,
        limits: tuple[int | None, float | None, int] = (None, None, 0),
        is_dynamic: bool = False,
        times: Timeouts = HASTY,
        deadline_s: int | None = None,
        mode: str = "forced",
        supersede: bool = False,
        fails: str | None = None,
        depends: str | None = None,
        priority: int = 0,
        rate: int | None = None,
        is_windowed: bool = False,
        needs_approval: bool = False,
    ) -> None:
        actions = self.tables.actions
        in_flight, abort, retries = limits
        rollout = Rollout(
            max_in_flight=in_flight,
            abort_percentage=abort,
            retries=retries,
            retry_backoff_s=5,
            membership="dynamic" if is_dynamic else "static",
            depends_on=(actions[-1].action_id,) if depends == "old" and actions else (),
            waves=WAVES[waves],
            priority=priority,
            rate_per_minute=rate,
            maintenance_window=next(iter(WINDOWS)) if is_windowed else None,
            needs_approval=needs_approval,
        )
        id_ = f"m{len(actions)}"
        ota = {} if kind == "command" else {"type": "ota", "ota": Ota("fw", kind, mode=mode, supersede=supersede)}
        more = {"selector": SELECTORS[selector], "timeouts": times, **ota}
        if deadline_s is not None:
            more["deadline_us"] = self.now_us + deadline_s * SECOND
        self._add(action_of(id_, rollout=rollout, created_by="ann", commit_version=len(actions), **more))
        if depends == "new":
            # Its id is before that of the one for which it waits.
            self._add(action_of(f"a{len(actions)}", rollout=Rollout(depends_on=(id_,)), **more))
        if fails is not None:
            self.bad[id_] = fails
        if fails == "always" and None not in limits and waves == 0 and kind == "command":
            self.bounds[id_] = in_flight or 0

    def _add(self, action: Action) -> None:
        self.tables.actions = [*self.tables.actions, action]

    def ask(self, kind: str, action_id: str, device_id: str | None = None, wave: int | None = None) -> None:
        number = len(self.tables.requests)
        if kind == "remove" or (kind == "cancel" and device_id is not None):
            self.bounds.pop(action_id, None)
        request = Request(
            f"r{number:04}", "default", action_id, kind, device_id, by="eve", at_us=self.now_us, wave=wave
        )
        self.tables.requests = [*self.tables.requests, request]

    def approve(self, action_id: str, *, names: bool = True) -> None:
        """As `headwater actions approve`: for the wave that waits now. Or as an older one, without its number."""
        row = self.state.actions.get(action_id)
        wave = (row.wave if row is not None else 0) + 1
        if not names:
            self.meant[f"r{len(self.tables.requests):04}"] = wave
        self.ask("approve", action_id, wave=wave + 1 if names else None)

    def approve_again(self) -> None:
        """Somebody else still sees what an earlier approval was for, and approves it too."""
        earlier = [one for one in self.tables.requests if one.kind == "approve"]
        if earlier:
            again = replace(earlier[-1], request_id=f"r{len(self.tables.requests):04}")
            if earlier[-1].request_id in self.meant:
                self.meant[again.request_id] = self.meant[earlier[-1].request_id]
            self.tables.requests = [*self.tables.requests, again]

    # -- tables ------------------------------------------------------------------------------------------------------

    def set_device(self, id_: str, row: Device | None) -> None:
        """Somebody changes one row of the table, or takes it out."""
        self.everyone = {known: one for known, one in self.everyone.items() if known != id_}
        if row is None:
            self.promises.removals_meant.add(id_)
            self.bounds.clear()
        else:
            self.everyone = {**self.everyone, id_: row}
        self.tables.devices = self.everyone

    def empty_devices(self, *, is_empty: bool) -> None:
        self.tables.devices = {} if is_empty else dict(self.everyone)

    def has_artifact(self, number: int, *, is_there: bool) -> None:
        one = FIRMWARE[number]
        others = {key: row for key, row in self.tables.artifacts.items() if key != one.key}
        self.tables.artifacts = {**others, one.key: one} if is_there else others

    def replace_box(self, box: Box) -> None:
        self.gone.append(box.log)
        for device in self.devices.values():
            if device.log is box.log:
                device.connect(None)
        box.log = Log(f"{box.log.id}x")
        box.heard_us, box.late = 0, None

    # -- the end -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Everything works for days, and every device visits every broker."""
        for box in self.boxes:
            box.is_up, box.is_read, box.answers, box.log.has_artifact = True, True, "now", True
        if not any(id_ in self.tables.devices for id_ in self.everyone):
            self.empty_devices(is_empty=False)
        if any(row.log for row in self.everyone.values()):
            self.everyone = {id_: replace(row, log=None) for id_, row in self.everyone.items()}
            self.tables.devices = self.everyone
        if not self.tables.artifacts:
            self.has_artifact(0, is_there=True)
        for device in self.devices.values():
            device.is_willing = True
        for action in self.tables.actions:
            self.ask("resume", action.action_id)
        calm = 0
        for turn in range(_DRAIN_MAX):
            for number, id_ in enumerate(IDS):
                if turn % 3 == 0 or self.box_of(self.devices[id_]) is None:
                    self.move(id_, turn // 3 + number)
            self.wait(_LEAP_S if turn in _LEAPS else 5)
            while not all(is_open(window, self.now_us) for window in WINDOWS):
                self.wait(60)
            self.live(5)
            for action in self.tables.actions:
                row = self.state.actions[action.action_id]
                if row.phase == "WAITING_APPROVAL":
                    self.approve(action.action_id)
                elif calm == _CALM // 2 or (turn > _LEAPS[-1] and turn % 4 == 0):
                    self._let_end(action)
            calm = 0 if self._unfinished() else calm + 1
            if calm > _CALM and turn > 3 * len(self.boxes):
                break
        self.promises.ended()

    def _let_end(self, action: Action) -> None:
        """A dynamic action lasts until somebody cancels it, and what depends on it waits that long."""
        row = self.state.actions[action.action_id]
        self.promises.returned(action)
        if action.rollout.dynamic and row.open == 0 and not row.phase.over:
            self.ask("cancel", action.action_id)

    def _unfinished(self) -> list[Target]:
        served = {log.id for log in self.logs}
        all_ = [one for rows in self.state.targets.values() for one in rows.values()]
        left = [one for one in all_ if {copy.partition("/")[2] for copy in one.copies} & served]
        return [one for one in all_ if not one.final] + left
