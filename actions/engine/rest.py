"""Computes until when the clock alone changes nothing, so that a tick without news need not check every target. Pure.

It errs on the early side: a tick without effect only costs time, while a missed one would delay a timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .action import Action, Request
from .index import Index, index_of
from .model import SECOND_US, ActionState, EngineState, Limits
from .reported import depends_on_time, judges_next_us
from .sending import SENDING, rate_eases_us
from .timeouts import first_due_us
from .waves import soaked_us

_REST_MAX_US = 60 * SECOND_US
"""Maximum time between two complete ticks."""


def rests_until_us(
    state: EngineState, actions: Iterable[Action], requests: Collection[Request], now_us: int, limits: Limits
) -> int:
    """The first moment at which a tick may decide something without news.

    Call it after a tick that decided nothing at `now_us`, with the resulting state and with the rows and requests of
    that tick. Returns `now_us` itself if anything prevents resting.
    """
    wait_us = limits.wait_unmatched_s * SECOND_US
    until = min(
        (
            now_us + _REST_MAX_US,
            *(request.at_us + wait_us for request in requests),
            *(report.recorded_us + wait_us for report in state.waiting),
        )
    )
    for action in actions:
        row = state.actions.get(action.action_id)
        if row is None:
            return now_us
        if not row.phase.over and action.digest == row.digest:
            index = index_of(state, action.action_id)
            until = min(until, _of_action(action, row, index, now_us, limits, until))
            if depends_on_time(action):
                until = min(until, judges_next_us(state, now_us))
        if until <= now_us:
            return now_us
    return until


def _of_action(action: Action, row: ActionState, index: Index, now_us: int, limits: Limits, until: int) -> int:
    if action.deadline_us is not None:
        until = min(until, action.deadline_us)
    soaked = soaked_us(action, row)
    if soaked is not None and soaked > now_us:  # A past soak was already judged and now waits for a user.
        until = min(until, soaked)
    sends = row.phase in SENDING and row.stopped is None
    not_before_us = action.rollout.not_before_us
    if sends and not_before_us is not None and not_before_us > now_us:
        until, sends = min(until, not_before_us), False
    if index.owing:
        return now_us
    if sends:
        again = [index.of[id_] for id_ in index.again]
        later = [one.retry_us for one in again if one.wave <= row.wave and (one.retry_us or 0) > now_us]
        until = min((until, *(moment for moment in later if moment is not None)))
        if sum(count for kind, count in index.kinds.items() if kind.unsent and kind.wave <= row.wave) > len(later):
            until = min(until, _lets_go_us(action, row, index, now_us))
    first_us = first_due_us(index, action, limits)
    return max(now_us, until if first_us is None else min(until, first_us))


def _lets_go_us(action: Action, row: ActionState, index: Index, now_us: int) -> int:
    """When the clock may release a target whose turn it is. Its other conditions change only with news."""
    if action.rollout.maintenance_window is not None:
        return now_us
    if action.rollout.rate_per_minute is not None:
        eases_us = rate_eases_us(row, index.sent, now_us)
        return now_us if eases_us is None else eases_us
    return now_us + _REST_MAX_US
