"""What the engine promises, checked after each turn of a `support.machine_world` against what really happened.

The checks do not use the rules of the engine: they compare its rows with the logs, the devices and the requests.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from actions.engine import Action, ActionPhase, Decision, EngineState, Limits, Publish, Target, TargetState
from actions.engine.selection import select
from actions.engine.waves import waves_of
from support.engine import SECOND
from support.machine_limits import SendingLimits
from support.model_device import FINAL, Key, Log

if TYPE_CHECKING:
    from support.machine_world import World

S = TargetState
ERRORS = (S.FAILED, S.REJECTED, S.TIMED_OUT)
LEFT_OUT = (S.SKIPPED, S.REMOVED, S.CANCELLED)

ENDS = "every target ends, or says what it waits for"
TRUE_ENDING = "a target ends as its device did"
TRUE_TIMEOUT = "no target times out while a report of it is unread"
GOOD_ABORT = "an action in which no device failed is not aborted"
BAD_SPREADS = "an abort bounds the devices that get a bad command"
WITHDRAWN = "a command that nobody wants is withdrawn from its log"
CALLED_OFF = "no command of what a user has cancelled enters a log"
SUPERSEDED = "no update is sent to a device that has the one by which it was superseded"
UNWANTED = "no device begins what nobody wants and nobody withdraws"
CANARY = "a wave in which nobody took part opens no other"
GATE = "an approval opens the gate for which it was given"
POISONED = "a record that a broker refuses stops no other"
DEPENDS = "an action may depend on one that is as new"
REMOVED = "a momentary empty table removes nobody"
RETURNS = "a device that is back in a dynamic action gets another attempt"
TWO_UPDATES = "a device has one update at a time"
ONCE = "a device carries out an action once, and each attempt at most once"
COUNTS = "the row of an action counts its targets"
FINAL_STAYS = "a final state is final"
ONE_CONTENT = "one key, one content"
CHECKSUM = "a command to install names the checksum"
BUSY_REFUSED = "no attempt is refused because of an earlier attempt of the same action"
CANCEL_FIRST = "the cancel of an update that is over is before the next update"


class BrokenPromise(AssertionError):
    def __init__(self, promise: str, detail: object) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


class MachinePromises:
    def __init__(self, world: World) -> None:
        self._world, self.limits = world, SendingLimits(world)
        self.removals_meant: set[str] = set()
        """Devices whose row somebody has taken out of a table that was not empty."""
        self.ended_once: set[str] = set()
        """Actions that were over at some time."""

    def breaks(self, promise: str, detail: object) -> None:
        raise BrokenPromise(promise, detail)

    # -- after each turn ---------------------------------------------------------------------------------------------

    def ticked(self, before: EngineState, decision: Decision) -> None:
        after, world = self._world.state, self._world
        for publish in decision.publishes:
            self._owed(publish)
        actions = {action.action_id: action for action in world.tables.actions}
        touched = {target.action_id for target in decision.target_updates}
        touched |= {row.action_id for row in decision.state_updates}
        for action_id in touched:
            rows, row = after.targets.get(action_id, {}), after.actions[action_id]
            counts = Counter(target.state.value for target in rows.values())
            open_ = sum(not target.final for target in rows.values())
            if row.phase is not ActionPhase.REFUSED and (dict(row.counts), row.open) != (dict(counts), open_):
                self.breaks(COUNTS, f"{row} with {counts}")
        for target in decision.target_updates:
            # An action without a row starts, perhaps again after a kill between the commits of its targets and its row.
            is_known = target.action_id in before.actions
            was = before.targets.get(target.action_id, {}).get(target.device_id) if is_known else None
            if was is not None and was is not target:
                self._changed(was, target)
            elif was is None and target.outbox and target.final:
                self.breaks(FINAL_STAYS, target)
            if target.outbox == "command" and (was is None or was.unsent or was.attempt < target.attempt):
                self.limits.sent(actions[target.action_id], target)
                if target.mode is not None:
                    self._is_only_update(target)
        for row in decision.state_updates:
            if row.phase.over:
                self.ended_once.add(row.action_id)
            self._judged(actions[row.action_id], before, after)

    def _owed(self, publish: Publish) -> None:
        if "/" in publish.device_id:
            self.breaks(POISONED, publish.idempotency_key)
        body = json.loads(publish.value)
        if body["type"] == "ota" and not body["artifact"].get("sha256"):
            self.breaks(CHECKSUM, publish.idempotency_key)

    def _changed(self, was: Target, now: Target) -> None:
        world = self._world
        is_late = was.state in ERRORS and now.state is S.SUCCEEDED and now.late
        if was.final and now.attempt == was.attempt and now.state is not was.state and not is_late:
            self.breaks(FINAL_STAYS, f"{was} became {now}")
        if now.final and now.outbox:
            self.breaks(FINAL_STAYS, f"something is owed to {now}")
        if now.attempt < was.attempt:
            self.breaks(FINAL_STAYS, f"{was} became {now}")
        timed_out = now.state is S.TIMED_OUT or (now.attempt > was.attempt and "ended TIMED_OUT" in (now.message or ""))
        if timed_out and not was.final and not was.unsent:
            self._timed_out(was)
        if now.state is S.REMOVED and not was.final and world.promises.is_there(now.device_id):
            action = next(one for one in world.tables.actions if one.action_id == now.action_id)
            is_meant = any(one.kind == "remove" and one.action_id == now.action_id for one in world.tables.requests)
            if not (action.rollout.dynamic or is_meant or was.state is S.CANCELLING):
                self.breaks(REMOVED, now)

    def is_there(self, device_id: str) -> bool:
        """Nobody has ever taken the row of this device out, except with all others at once."""
        return device_id in self._world.everyone and device_id not in self.removals_meant

    def _timed_out(self, was: Target) -> None:
        """No log that a broker serves may have an unread final report from before the moment at which it was due.

        Of the logs that the engine connects with the device: of its command and the copies of it, of its receipt, and
        of its newest status. A device that has moved may report through another one, of which nothing has been read
        yet. To wait for the reports in all logs would be no better promise: one broker that is away, or whose reports
        nobody reads, would then keep every device of the fleet from timing out, and a report that comes too late still
        replaces the timeout.
        """
        world = self._world
        action = next(one for one in world.tables.actions if one.action_id == was.action_id)
        times = action.timeouts
        given = [s for s in (times.queued_s, times.delivered_s, times.in_progress_s, times.step_s) if s is not None]
        due_us = was.since_us - world.skew_us + min(given, default=3600) * SECOND
        if action.deadline_us is not None:
            due_us = min(due_us, action.deadline_us - world.skew_us)
        device = world.devices[was.device_id]
        known = {was.log_id, was.receipt_log_id, *(copy.partition("/")[2] for copy in was.copies)}
        fact = world.state.facts.get(was.device_id)
        known.add(fact.log_id if fact is not None else None)
        for box in world.boxes:
            if box.log.id not in known or box.known.log_id != box.log.id:
                continue
            for partition, rows in box.log.reports.items():
                for row in rows[box.log.read[partition] :]:
                    about = (row["device_id"], row["action_id"], row["attempt"])
                    if about == (device.id, was.action_id, was.attempt) and row["at_us"] < due_us:
                        self.breaks(TRUE_TIMEOUT, f"{was} due at {due_us}: {row}")

    def _is_only_update(self, target: Target) -> None:
        """No other update is under way on the device when this one becomes owed."""
        for action in self._world.tables.actions:
            other = self._world.state.targets.get(action.action_id, {}).get(target.device_id)
            if other is None or other is target or not action.is_ota or other.final or other.unsent:
                continue
            is_called_off = other.outbox is None or other.cancel_log_id is not None
            if other.state is S.CANCELLING and is_called_off and other.delivered_us is None:
                continue  # Its cancel is behind the command, which the device has not had.
            self.breaks(TWO_UPDATES, f"{target} and {other}")

    # -- waves and aborts --------------------------------------------------------------------------------------------

    def _judged(self, action: Action, before: EngineState, after: EngineState) -> None:
        row, targets = after.actions[action.action_id], after.targets.get(action.action_id, {}).values()
        was = before.actions.get(action.action_id)
        if row.phase is ActionPhase.REFUSED and "depends_on" in row.message:
            self.breaks(DEPENDS, row)
        if was is None or row.phase is ActionPhase.REFUSED:
            return
        for wave in range(max(was.wave, 0), row.wave):
            self._opened(action, wave, row.approved, list(targets))
        if row.stopped is not None and row.stopped.startswith("aborted") and was.stopped is None:
            self._aborted(action, list(targets))

    def _opened(self, action: Action, wave: int, approved: int, targets: list[Target]) -> None:
        there = [target for target in targets if target.wave == wave]
        is_asked = waves_of(action)[wave].success_percentage > 0
        is_approved = self._world.is_approved(action.action_id, wave + 1)
        if there and is_asked and all(target.state in LEFT_OUT for target in there) and not is_approved:
            self.breaks(CANARY, f"wave {wave + 1} of {action.action_id}: {there}")
        if waves_of(action)[wave].approve and not is_approved:
            self.breaks(GATE, f"wave {wave + 2} of {action.action_id} opens, approved up to {approved}")

    def _aborted(self, action: Action, targets: list[Target]) -> None:
        """A device that failed, refused or was silent for too long is a reason; nothing else is. Whether a silence is
        true is another promise."""
        for target in targets:
            ended = self._ended(target.device_id, action.action_id)
            failed = any(state in ("FAILED", "REJECTED") for states in ended.values() for state in states)
            if failed or target.state is S.TIMED_OUT or target.erred:
                return
        self.breaks(GOOD_ABORT, f"{action.action_id}: {targets}")

    def _ended(self, device_id: str, action_id: str) -> dict[Key, list[str]]:
        device = self._world.devices.get(device_id)
        if device is None:
            return {}
        return {key: states for key, states in device.truth.ended.items() if key[0] == action_id}

    # -- records and devices -----------------------------------------------------------------------------------------

    def placed(self, publish: Publish, log: Log) -> None:
        if publish.kind == "command" and self._is_called_off(publish):
            self.breaks(CALLED_OFF, publish.idempotency_key)
        if json.loads(publish.value)["type"] == "ota" and publish.kind == "command":
            self._is_free(publish, log)
            self._is_newest(publish)
        self.repeated(publish)

    def repeated(self, publish: Publish) -> None:
        for log in [*self._world.logs, *self._world.gone]:
            if log.value(publish.idempotency_key) not in (None, publish.value):
                self.breaks(ONE_CONTENT, publish.idempotency_key)

    def _is_called_off(self, publish: Publish) -> bool:
        """Whether a cancel of this device, or of all of them, has been answered, and nobody has asked for a retry."""
        id_, is_off = publish.action_id, False
        requests = {f"engine/{id_}/request/{one.request_id}": one for one in self._world.tables.requests}
        # In the order of the answers. Not by their times: somebody may set the clock back.
        for answer in self._world.tables.events.values():
            one = requests.get(answer.event_id)
            is_about = one is not None and one.action_id == id_ and one.device_id in (None, publish.device_id)
            if is_about and answer.state == "DONE" and one.kind in ("cancel", "retry"):
                is_off = one.kind == "cancel"
        return is_off

    def _is_newest(self, publish: Publish) -> None:
        """A user may still ask for the older update, by a retry."""
        world, id_ = self._world, publish.action_id
        if any(one.kind == "retry" and one.action_id == id_ for one in world.tables.requests):
            return
        ids = [action.action_id for action in world.tables.actions]
        # Not by their times: somebody may set the clock back.
        for action in world.tables.actions[ids.index(id_) + 1 :]:
            newer, row = world.state.actions.get(action.action_id), world.state.actions[id_]
            if newer is None or not action.ota.supersede:
                continue
            target = world.state.targets.get(action.action_id, {}).get(publish.device_id)
            is_newer = (newer.started_us, action.action_id) > (row.started_us, id_)
            # One that was sent, or came late, and not one that another action has made true.
            if is_newer and target is not None and target.state is S.SUCCEEDED and target.sent_us is not None:
                self.breaks(SUPERSEDED, f"{publish.idempotency_key} after {target}")

    def _is_free(self, publish: Publish, log: Log) -> None:
        """An update that is over has its cancel in this log: the device would refuse the next one."""
        for rows in self._world.state.targets.values():
            target = rows.get(publish.device_id)
            if target is None or not target.final or target.action_id == publish.action_id or target.mode is None:
                continue
            name = f"{target.action_id}/{target.device_id}/{target.attempt}"
            if f"{target.attempt}/{log.id}" in target.copies and f"{name}/cancel" not in log.places:
                self.breaks(CANCEL_FIRST, f"{publish.idempotency_key} before the cancel of {target}")

    def begins(self, device_id: str, publish: Publish, log: Log) -> None:
        """A device takes this command from its log."""
        target = self._world.state.targets.get(publish.action_id, {}).get(device_id)
        if target is None or f"{publish.idempotency_key}/cancel" in log.places:
            return
        is_older = target.attempt > publish.attempt and not target.unsent
        is_over = target.final and target.state is not S.SUCCEEDED and target.attempt >= publish.attempt
        is_told = target.state in (S.FAILED, S.REJECTED) and target.attempt == publish.attempt
        is_ending = target.state is S.CANCELLING and target.attempt == publish.attempt
        if is_ending and target.outbox is None and target.cancel_log_id == log.id:
            self.breaks(UNWANTED, f"{publish.idempotency_key} in {log.id}: {target}")
        # A copy is withdrawn in the first turn that knows it and can reach its log.
        copy = f"{publish.attempt}/{log.id}"
        is_copy = copy in target.copies
        was_reached = log.id in self._world.reached and (*target.key, copy) in self._world.withdrawn
        is_unwanted = (is_older or is_over) and not is_told
        # A withdrawal waits for its broker for 30 days.
        is_given_up = self._world.now_us - target.updated_us >= Limits().withdraw_s * SECOND
        is_forgotten = not is_copy and not is_given_up
        if (is_unwanted and (was_reached or is_forgotten)) or (is_ending and is_copy and was_reached):
            self.breaks(UNWANTED, f"{publish.idempotency_key} in {log.id}: {target}")

    def settled(self) -> None:
        """Called after each turn: what devices have done by now."""
        for device in self._world.devices.values():
            truth = device.truth
            for key, busy in truth.refused_busy:
                if busy[0] == key[0]:
                    self.breaks(BUSY_REFUSED, f"{device.id} refused {key} because of {busy}")
            if truth.lost_journal:
                continue
            done = Counter(key[0] for key, states in truth.ended.items() if "SUCCEEDED" in states)
            for key, times in truth.begun.items():
                if times > 1:
                    self.breaks(ONCE, f"{device.id} began {key} {times} times")
            for action in self._world.tables.actions:
                begun = [key for key in truth.begun if key[0] == action.action_id]
                first = [key for key in begun if "SUCCEEDED" in truth.ended[key]]
                if not action.is_ota and done[action.action_id] and any(key > min(first) for key in begun if first):
                    self.breaks(ONCE, f"{device.id} began {begun} of {action.action_id}, and {first} had succeeded")
        for action_id, most in self._world.bounds.items():
            self._bounded(action_id, most)

    def _bounded(self, action_id: str, most: int) -> None:
        """Every device fails: one after another, until the errors stop the action."""
        rows = self._world.state.targets.get(action_id, {})
        began = [id_ for id_, one in self._world.devices.items() if any(key[0] == action_id for key in one.truth.begun)]
        counted = [id_ for id_ in began if id_ in rows and rows[id_].state not in LEFT_OUT]
        if len(counted) > most:
            self.breaks(BAD_SPREADS, f"{counted} began {action_id}, at most {most} may: {list(rows.values())}")

    # -- the end -----------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        """Everything has worked for days."""
        world = self._world
        for action_id, rows in world.state.targets.items():
            action = next(one for one in world.tables.actions if one.action_id == action_id)
            for target in rows.values():
                if not target.final:
                    self.breaks(ENDS, target)
                self._is_true(action, target)
        for log in world.logs:
            for publish in log.records:
                self._is_withdrawn(publish, log)

    def returned(self, action: Action) -> None:
        """Nobody has stopped the action, and all devices of the table are there.

        An action that ended at its deadline is not dynamic any more. If somebody sets the clock back and retries one of
        its devices, that device gets an attempt, and no other one returns: nobody asked for it.
        """
        world = self._world
        row = world.state.actions[action.action_id]
        is_asked = any(one.kind == "cancel" and one.action_id == action.action_id for one in world.tables.requests)
        if (
            action.action_id in self.ended_once
            or not action.rollout.dynamic
            or row.stopped is not None
            or is_asked
            or row.phase.over
        ):
            return
        selected = select(action, world.tables.devices).selected
        for target in world.state.targets.get(action.action_id, {}).values():
            was_unwanted = "it had been cancelled before" in (target.message or "")  # By a user, or superseded.
            if target.state is S.REMOVED and target.device_id in selected and not was_unwanted:
                self.breaks(RETURNS, target)

    def _is_withdrawn(self, publish: Publish, log: Log) -> None:
        target = self._world.state.targets.get(publish.action_id, {}).get(publish.device_id)
        if publish.kind != "command" or target is None or f"{publish.idempotency_key}/cancel" in log.places:
            return
        truth = self._world.devices[publish.device_id].truth
        key = (publish.action_id, publish.attempt)
        if log.id not in truth.acknowledged[key] and target.final:
            self.breaks(WITHDRAWN, f"{publish.idempotency_key} in {log.id}: {target}")

    def _is_true(self, action: Action, target: Target) -> None:
        truth = self._world.devices.get(target.device_id)
        if truth is None or target.state in LEFT_OUT:
            return
        said = truth.truth.ended[action.action_id, target.attempt]
        if target.state in (S.FAILED, S.REJECTED) and target.state.value not in said:
            self.breaks(TRUE_ENDING, f"{target}, and the device reported {said}")
        any_success = any("SUCCEEDED" in states for states in self._ended(target.device_id, action.action_id).values())
        # Another action may have installed the same version.
        if target.state is S.SUCCEEDED and not any_success and action.target_version not in truth.truth.versions:
            self.breaks(TRUE_ENDING, f"{target}, and the device reported no success")
        first = next((state for state in said if state in FINAL), None)
        # A device that had only downloaded when somebody forced it has not done what is wanted then.
        installs = action.is_ota and (action.ota.mode != "download_only" or target.forced)
        did_it = any_success if action.ota.mode != "download_only" else "SUCCEEDED" in said
        is_there = did_it and action.target_version in truth.truth.versions
        wants = is_there if installs else first == "SUCCEEDED"
        if wants and target.state is not S.SUCCEEDED and not self._world.is_lost(target):
            self.breaks(TRUE_ENDING, f"{target}, and the device reported {self._ended(*target.key[::-1])}")
