"""The faults that the engine and the agent once had, put back one at a time: controls of `test_engine_machine`.

Each entry replaces functions of today by those that lacked something. The fence of two engines is a matter of the
tables: its control is in test_engine_store.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from actions.engine import Action, Decision, Report, Request, Target, TargetState, tick
from actions.engine.model import ERRORS
from broker_edge.device.calls import Command
from broker_edge.device.journal import Entry
from support import machine_limits as limits
from support import machine_promises as promises
from support.agent_device import SteppedAgent

Patch = pytest.MonkeyPatch

admission, dispatch, lifecycle, reporting, requests, sending, ticking, timeouts, waves = (
    importlib.import_module(f"actions.engine.{name}")
    for name in (
        "admission",
        "dispatch",
        "lifecycle",
        "reporting",
        "requests",
        "sending",
        "tick",
        "timeouts",
        "waves",
    )
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Which promises it breaks, and how it comes back."""

    breaks: tuple[str, ...]
    patch: Callable[[Patch], None] = lambda _: None
    tick: Callable[..., Decision] = tick
    agent: type[SteppedAgent] = SteppedAgent
    world: frozenset[str] = frozenset()


class _Busy(SteppedAgent):
    """Does not know that a new attempt asks for what it does already."""

    def _is_settled_by(self, command: Command, older: Entry) -> bool:
        return command.order is None and super()._is_settled_by(command, older)


class _Eager(SteppedAgent):
    """Carries out every attempt that it has not had, whatever became of the others."""

    def _take(self, command: Command) -> None:
        if command.order is not None:
            super()._take(command)
            return
        self._journal.put(Entry(*command.key, "ACCEPTED"))
        self._start(command)


def _no_adoption(patch: Patch) -> None:
    now = reporting.settled_by_earlier
    patch.setattr(
        reporting, "settled_by_earlier", lambda target, *rest: now(target, *rest) if target.unsent else target
    )


def _no_withdrawal(patch: Patch) -> None:
    def ended(target: Target, message: str, now_us: int, first: str | None) -> Target:
        state = TargetState.REMOVED if target.leaving else TargetState.TIMED_OUT
        done: Target = lifecycle.finished(
            target, state, now_us, message=message, updated_us=now_us, copies=target.copies
        )
        return done

    def next_attempt(target: Target, **more: Any) -> Target:
        after: Target = replace(again(target, **more), copies=target.copies)
        return after

    again = lifecycle.next_attempt
    patch.setattr(timeouts, "_ended", ended)
    for module in (lifecycle, requests, admission):
        patch.setattr(module, "next_attempt", next_attempt)


def _hears_nothing(*known: Any, **more: Any) -> Decision:
    return tick(*known, **{**more, "read_us": None})


def _removes_all(patch: Patch) -> None:
    patch.setattr(admission, "hold", lambda *_: None)


def _by_alphabet(patch: Patch) -> None:
    patch.setattr(admission, "_in_order", sorted)


def _drops_cancels(patch: Patch) -> None:
    now = timeouts._ended

    def ended(target: Target, *rest: Any) -> Target:
        after: Target = now(target, *rest)
        return replace(after, copies=target.copies) if target.outbox == "cancel" else after

    patch.setattr(timeouts, "_ended", ended)


def _removed_for_ever(patch: Patch) -> None:
    patch.setattr(admission, "_was_cancelled", lambda *_: True)


def _nobody_is_enough(patch: Patch) -> None:
    now = waves.Tally.add

    def add(self: Any, *rest: Any) -> None:
        now(self, *rest)
        self.left_out = 0

    patch.setattr(waves.Tally, "add", add)


def _forgets_errors(patch: Patch) -> None:
    now = waves.Tally.add

    def add(self: Any, kind: Any, count: int) -> None:
        now(self, kind if kind.state in ERRORS else kind._replace(erred=False), count)

    patch.setattr(waves.Tally, "add", add)


def _any_gate(
    state: Any,
    actions: Collection[Action],
    asked: Collection[Request],
    reports: Collection[Report],
    *more: Any,
    **named: Any,
) -> Decision:
    rows = [replace(one, wave=None, at_us=more[1]) for one in asked]
    return tick(state, actions, rows, reports, *more, **named)


def _sends_what_is_gone(patch: Patch) -> None:
    patch.setattr(ticking, "_call_off", lambda _: None)
    patch.setattr(ticking, "is_without_artifact", lambda *_: False)


def _retries(reason: str) -> Callable[[Patch], None]:
    """A retry does not see that no command can reach the device for this reason."""

    def put_back(patch: Patch) -> None:
        now = requests._unreachable

        def unreachable(work: Any, target: Target, *rest: Any) -> str | None:
            said: str | None = now(work, target, *rest)
            return None if said is not None and reason in said else said

        patch.setattr(requests, "_unreachable", unreachable)

    return put_back


def _leaves_targets(patch: Patch) -> None:
    now = admission.skipped

    def kept(target: Target, reason: str, now_us: int) -> Target:
        after: Target = now(target, reason, now_us)
        return target if reason.startswith("refused") else after

    patch.setattr(admission, "skipped", kept)


def _owed_is_nowhere(patch: Patch) -> None:
    """A command that is owed counts as one that no log can have."""
    now = lifecycle.cancelled

    def cancelled(target: Target, reason: str, now_us: int) -> Target:
        before = replace(target, outbox=None) if target.outbox == "command" and target.queued_us is None else target
        after: Target = now(before, reason, now_us)
        return after

    for module in (requests, ticking):
        patch.setattr(module, "cancelled", cancelled)


def _forgets_supersedes(patch: Patch) -> None:
    patch.setattr(dispatch, "kept_away", lambda target, _: target)


def _forgets_cancels(patch: Patch) -> None:
    patch.setattr(requests, "kept_away", lambda target, _: target)


def _no_other_attempt(patch: Patch) -> None:
    patch.setattr(reporting, "installs_after_all", lambda *_: None)


def _no_rate(patch: Patch) -> None:
    patch.setattr(sending, "_used", lambda *_: 0)


def _any_number(patch: Patch) -> None:
    now = dispatch.room
    patch.setattr(dispatch, "room", lambda action, *rest: now(_without(action, max_in_flight=None), *rest))


def _no_window(patch: Patch) -> None:
    patch.setattr(sending, "is_open", lambda *_: True)


def _no_approval(patch: Patch) -> None:
    now = admission._start

    def start(work: Any, action: Action) -> None:
        now(work, action)
        row = work.row(action.action_id)
        work.put_row(replace(row, wave=max(row.wave, 0)))

    patch.setattr(admission, "_start", start)


def _without(action: Action, **named: Any) -> Action:
    return replace(action, rollout=replace(action.rollout, **named))


FAULTS: Mapping[str, Fault] = {
    "1 a slow update is refused": Fault((promises.BUSY_REFUSED, promises.TRUE_ENDING), _no_adoption, agent=_Busy),
    "2 a command that timed out stays": Fault((promises.UNWANTED, promises.WITHDRAWN), _no_withdrawal),
    "3 silence of the status job is a timeout": Fault((promises.TRUE_TIMEOUT,), tick=_hears_nothing),
    "4 a poison target stops the others": Fault(
        (promises.POISONED, promises.ENDS), _retries("a level"), world=frozenset({"batch"})
    ),
    "5 an empty table removes everybody": Fault((promises.REMOVED,), _removes_all),
    "6 dependencies start by alphabet": Fault((promises.DEPENDS,), _by_alphabet),
    "7 a deadline drops an owed cancel": Fault((promises.UNWANTED, promises.WITHDRAWN), _drops_cancels),
    "8 a device that left is removed for ever": Fault((promises.RETURNS,), _removed_for_ever),
    "9 a wave of nobody opens the next": Fault((promises.CANARY,), _nobody_is_enough),
    "10 retries hide errors": Fault((promises.BAD_SPREADS,), _forgets_errors),
    "11 a device carries out every attempt": Fault((promises.ONCE,), agent=_Eager),
    "13 an old approval opens the next gate": Fault((promises.GATE, promises.CANARY), tick=_any_gate),
    "14 an artifact that is gone is sent": Fault((promises.CHECKSUM,), _sends_what_is_gone),
    "15 a retry waits for nobody": Fault((promises.ENDS,), _retries("not in the table")),
    "a restart believes an answer without its effect": Fault((promises.CALLED_OFF,), world=frozenset({"requests"})),
    "a device that left may not be cancelled": Fault((promises.CALLED_OFF,), _forgets_cancels),
    "an update comes back with its device": Fault((promises.SUPERSEDED,), _forgets_supersedes),
    "an owed command is in no log": Fault((promises.WITHDRAWN, promises.UNWANTED), _owed_is_nowhere),
    "a refusal leaves what a start had written": Fault((promises.ENDS,), _leaves_targets),
    "a forced download is an error": Fault((promises.TRUE_ENDING, promises.GOOD_ABORT), _no_other_attempt),
    "the rate is not counted": Fault((limits.RATE,), _no_rate),
    "an update in flight is not counted": Fault((limits.IN_FLIGHT,), _any_number),
    "a window is always open": Fault((limits.WINDOW,), _no_window),
    "an action that needs approval starts": Fault((limits.APPROVED,), _no_approval),
}
"""By the number in which they were found, then others; 12 is the fence."""
