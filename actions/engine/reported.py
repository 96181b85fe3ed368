"""Selects by what devices report, and follows it in dynamic actions. Pure.

A device joins whenever its reports fit. One whose reports no longer fit is removed only as long as nothing can have
been sent to it: an update changes the version by which it was selected, and must not be taken back for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from .action import Action
from .admission import remove, take_in
from .model import SECOND_US, EngineState
from .reported_expression import compiled_reported
from .selection import reported_test, select
from .work import Work

JUDGE_EVERY_US = 60 * SECOND_US
"""How often a dynamic action considers that reports have become older."""
_NO_LONGER = "what the device reports is no longer what the action selects"


def depends_on_time(action: Action) -> bool:
    """Whether devices may join or leave this action because time passes."""
    return action.rollout.dynamic and bool(_periods_us(action))


def _periods_us(action: Action) -> tuple[int, ...]:
    text = action.selector.reported_expression
    return () if text is None else compiled_reported(text).periods_us


def judges_next_us(state: EngineState, now_us: int) -> int:
    """When time alone is considered again. A clock that was set back does not delay it."""
    return min(state.judged_us, now_us) + JUDGE_EVERY_US


def follow_reports(work: Work) -> None:
    """Lets devices join and leave dynamic actions by what they have reported. Call it after `apply_reports`."""
    is_time = work.now_us >= judges_next_us(work.state, work.now_us)
    if is_time:
        work.judged_us = work.now_us
    is_changed = work.state.devices is not work.devices
    for action, row in list(work.open_actions()):
        test = reported_test(action, work.fact, work.now_us)
        if test is None or not action.rollout.dynamic:
            continue
        chosen: Collection[str] = work.devices
        if not is_changed:
            aged = _aged(work, _periods_us(action)) if is_time else set[str]()
            chosen = aged | work.facts.keys()
        if chosen:
            _follow(work, action, test, chosen, joins=row.stopped is None)


def _aged(work: Work, periods_us: Collection[int]) -> set[str]:
    """The devices whose newest report has become one of these ages since time was last considered. Both ends count,
    because `<` and `<=` change at different moments."""
    first, last = sorted((work.state.judged_us, work.now_us))
    spans = [(first - period_us, last - period_us) for period_us in periods_us]
    facts = work.state.facts.values() if spans else ()
    return {fact.device_id for fact in facts if any(low <= fact.last_seen_us <= high for low, high in spans)}


def _follow(
    work: Work, action: Action, test: Callable[[str], bool], device_ids: Collection[str], *, joins: bool
) -> None:
    """Judges these devices."""
    candidates = {id_: work.devices[id_] for id_ in device_ids if id_ in work.devices}
    selected = frozenset(select(action, candidates, test).selected)
    if joins:
        take_in(work, action, selected)
    for device_id in sorted(candidates.keys() - selected):
        target = work.target(action.action_id, device_id)
        if target is not None and target.unsent and not test(device_id):
            remove(work, target, _NO_LONGER)
