"""Late reports: which rows of an ended action must be in memory to judge them. Opens no table.

Such a report can only concern its own target, so a few targets are enough, however many the action has. Of the others,
the row of the action says how many are in each state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from actions.engine import EngineState, Report, Target, row_in_past
from actions.table_store import Loaded

Looked = Mapping[str, Collection[str]]
"""By action: the devices whose targets have been looked up."""


def asked_for(reports: Iterable[Report], known: Collection[str], looked: Looked) -> dict[str, set[str]]:
    """By action that is not `known`: the devices of these reports whose targets have not been looked up yet."""
    asked: dict[str, set[str]] = {}
    for report in reports:
        id_ = report.action_id
        if id_ and id_ not in known and report.device_id not in looked.get(id_, ()):
            asked.setdefault(id_, set()).add(report.device_id)
    return asked


def with_some(state: EngineState, loaded: Loaded, now_us: int) -> tuple[EngineState, frozenset[str]]:
    """The state with the loaded targets of actions that are over, and the ids of these actions. An action whose counts
    do not agree with its targets is left out: it must be loaded completely."""
    actions, targets, unloaded = dict(state.actions), dict(state.targets), dict(state.unloaded)
    found: dict[str, dict[str, Target]] = {}
    taken = set()
    for target in loaded.targets:
        found.setdefault(target.action_id, {})[target.device_id] = target
    for stored in loaded.states:
        id_ = stored.action_id
        row = actions.get(id_) or row_in_past(stored, now_us)
        some = {**targets.get(id_, {}), **found.get(id_, {})}
        others = Counter(row.counts)
        others.subtract(target.state.value for target in some.values())
        if sum(row.counts.values()) != row.targets or any(number < 0 for number in others.values()):
            continue
        actions[id_], targets[id_], unloaded[id_] = row, some, +others
        taken.add(id_)
    said = state.said | loaded.said
    copied = state.copied | {one.key for one in loaded.targets if one.copies and one.action_id in taken}
    after = replace(state, actions=actions, targets=targets, unloaded=unloaded, said=said, copied=copied)
    return after, frozenset(taken)


def without_some(state: EngineState, action_ids: Collection[str]) -> EngineState:
    """The state before the whole of these actions is loaded."""
    partly = state.unloaded.keys() & action_ids
    if not partly:
        return state
    return replace(
        state,
        targets={id_: rows for id_, rows in state.targets.items() if id_ not in partly},
        unloaded={id_: counts for id_, counts in state.unloaded.items() if id_ not in partly},
    )
