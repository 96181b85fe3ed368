"""Waves: which devices go first, when the next wave may begin, and when an action stops by itself. Pure; sends nothing.

Everything is judged from the rows of the targets. `action_state` adds what does not follow from them: the open wave,
since when it has its successes, and approvals.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from .action import Action
from .index import Kind
from .model import ERRORS, SECOND_US, ActionPhase, ActionState, TargetState
from .selection import BUCKETS, bucket

_WAVES_MAX = 100
_LEFT_OUT = frozenset({TargetState.SKIPPED, TargetState.REMOVED, TargetState.CANCELLED})


class WavesError(ValueError):
    """The text does not describe waves; the message says why."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Up to `percentage` of the devices (including earlier waves), and the conditions for the next wave."""

    percentage: float
    success_percentage: float = 100
    error_percentage: float | None = None
    min_reported: int = 1
    soak_s: int = 0
    approve: bool = False


_ONE = (Wave(percentage=100, success_percentage=0),)


@lru_cache(maxsize=256)
def parsed(text: str) -> tuple[Wave, ...]:
    """The waves in the text. Raises WavesError."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WavesError(f"is not JSON: {error}") from error
    if not isinstance(rows, list) or not 1 <= len(rows) <= _WAVES_MAX:
        raise WavesError(f"must be a list of 1 to {_WAVES_MAX} objects")
    waves = tuple(_wave(number, row) for number, row in enumerate(rows, start=1))
    shares = [wave.percentage for wave in waves]
    if shares != sorted(set(shares)) or shares[-1] != 100:
        raise WavesError("must have increasing percentages that end with 100")
    return waves


def _wave(number: int, row: object) -> Wave:
    if not isinstance(row, dict):
        raise WavesError(f"has a wave {number} that is not an object")
    known = [field.name for field in fields(Wave)]
    unknown = sorted(set(row) - set(known))
    if unknown:
        raise WavesError(f"has the unknown key {unknown[0]!r} in wave {number}; known are {', '.join(known)}")
    for name in ("percentage", "success_percentage", "error_percentage"):
        value = row.get(name, None if name != "percentage" else "nothing")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise WavesError(f"has {name} {value!r} in wave {number}; write a number from 0 to 100")
    if not row["percentage"]:
        raise WavesError(f"has an empty wave {number}")
    for name, low in (("min_reported", 1), ("soak_s", 0)):
        value = row.get(name, low)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise WavesError(f"has {name} {value!r} in wave {number}; write a whole number of at least {low}")
    if not isinstance(row.get("approve", False), bool):
        raise WavesError(f"has approve {row['approve']!r} in wave {number}; write true or false")
    return Wave(**{name: value for name, value in row.items() if value is not None})


def waves_of(action: Action) -> tuple[Wave, ...]:
    return parsed(action.rollout.waves) if action.rollout.waves else _ONE


def placed(action: Action, device_ids: Iterable[str]) -> dict[str, int]:
    """The wave of each device selected at the start: devices are sorted by hash, and each share is rounded up."""
    waves = waves_of(action)
    if len(waves) == 1:
        return dict.fromkeys(device_ids, 0)
    ranked = sorted(device_ids, key=lambda id_: (_hash(action, id_), id_))
    places: dict[str, int] = {}
    for number, wave in enumerate(waves):
        until = math.ceil(len(ranked) * wave.percentage / 100)
        places.update(dict.fromkeys(ranked[len(places) : until], number))
    return places


def placed_later(action: Action, device_id: str) -> int:
    """The wave of a device that joined after the start: by its hash alone, so that no other device moves."""
    at = _hash(action, device_id)
    waves = waves_of(action)
    return next((number for number, wave in enumerate(waves) if at < wave.percentage * BUCKETS / 100), len(waves) - 1)


def _hash(action: Action, device_id: str) -> int:
    # Not the hash of `percentage`: a wave would then be a prefix of the same order, and its share would be wrong.
    return bucket(f"{action.action_id}/wave", device_id)


@dataclass(slots=True)
class Tally:
    """Counts of the targets of one wave. `counted` excludes SKIPPED, REMOVED and CANCELLED."""

    counted: int = 0
    left_out: int = 0
    open: int = 0
    succeeded: int = 0
    errors: int = 0
    """Also open targets of which an earlier attempt ended in error: retries must not hide them from an abort."""

    @property
    def ended(self) -> int:
        return self.succeeded + self.errors

    def add(self, kind: Kind, count: int) -> None:
        if kind.state in _LEFT_OUT:
            self.left_out += count
            return
        self.counted += count
        if kind.state is TargetState.SUCCEEDED:
            self.succeeded += count
        elif kind.state in ERRORS:
            self.errors += count
        else:
            self.open += count
            self.errors += count if kind.erred else 0


def tallied(action: Action, kinds: Mapping[Kind, int]) -> list[Tally]:
    """One tally for each wave."""
    tallies = [Tally() for _ in waves_of(action)]
    for kind, count in kinds.items():
        tallies[min(kind.wave, len(tallies) - 1)].add(kind, count)
    return tallies


def abort_reason(action: Action, row: ActionState, tallies: Sequence[Tally]) -> str | None:
    """Why the action must stop now, or None."""
    limit = action.rollout.abort_percentage
    if limit is not None:
        errors, ended = sum(t.errors for t in tallies), sum(t.ended for t in tallies)
        if _over(errors, ended, limit, action.rollout.abort_min_reported or 1):
            return f"aborted: {errors} of {ended} devices ended in error, more than {limit:g} %"
    waves = waves_of(action)
    for number in range(min(row.wave + 1, len(waves))):
        share, tally = waves[number].error_percentage, tallies[number]
        if share is not None and _over(tally.errors, tally.ended, share, waves[number].min_reported):
            where = f"wave {number + 1}" if len(waves) > 1 else "the wave"
            return f"aborted: {tally.errors} of {tally.ended} devices of {where} ended in error, more than {share:g} %"
    return None


def _over(errors: int, ended: int, percentage: float, min_reported: int) -> bool:
    return ended >= min_reported and errors * 100 > percentage * ended


def advanced(
    action: Action, row: ActionState, tallies: Sequence[Tally], now_us: int, heard_us: int | None = None
) -> ActionState:
    """`row` with the wave that may be open now. For an action that is RUNNING or WAITING_APPROVAL. A soak is over only
    if nothing was wrong up to its end, so it is judged at `heard_us`, up to which reports are known; None: now."""
    heard_us = now_us if heard_us is None else heard_us
    waves, before = waves_of(action), row
    while row.wave < len(waves) - 1:
        if row.approved <= row.wave:
            row, waits = _at_gate(row, None if row.wave < 0 else waves[row.wave], tallies, now_us, heard_us)
            if waits is not None:
                return _waiting(before, replace(row, phase=waits), now_us)
        row = replace(row, wave=row.wave + 1, gate_us=None)
    return replace(row, phase=ActionPhase.RUNNING, waits_us=None)


def _waiting(before: ActionState, row: ActionState, now_us: int) -> ActionState:
    """The row with the time since when this gate waits for an approval."""
    if row.phase is not ActionPhase.WAITING_APPROVAL:
        return replace(row, waits_us=None)
    if before.phase is row.phase and before.wave == row.wave:
        return row
    return replace(row, waits_us=now_us)


def soaked_us(action: Action, row: ActionState) -> int | None:
    """When the soak of the open wave ends, if there is one."""
    if row.gate_us is None or row.wave < 0:
        return None
    return row.gate_us + waves_of(action)[min(row.wave, row.waves - 1)].soak_s * SECOND_US


def _at_gate(
    row: ActionState, wave: Wave | None, tallies: Sequence[Tally], now_us: int, heard_us: int
) -> tuple[ActionState, ActionPhase | None]:
    """What the gate after `wave` waits for; None if it is open. Without a wave: the gate before the first one."""
    if wave is None:
        return row, ActionPhase.WAITING_APPROVAL
    tally = tallies[row.wave]
    # A wave of which no device took part has shown nothing. Waves that never had a device ask nothing.
    is_unproven = wave.success_percentage > 0 and tally.left_out > 0 and tally.counted == 0
    if is_unproven or tally.succeeded * 100 < wave.success_percentage * tally.counted:
        row = replace(row, gate_us=None)
        return row, ActionPhase.RUNNING if tally.open else ActionPhase.WAITING_APPROVAL
    if row.gate_us is None:
        row = replace(row, gate_us=now_us)
    if row.gate_us is not None and wave.soak_s and heard_us - row.gate_us < wave.soak_s * SECOND_US:
        return row, ActionPhase.RUNNING
    return row, ActionPhase.WAITING_APPROVAL if wave.approve else None
