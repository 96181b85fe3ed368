"""Which actions enter the memory of the engine, and which leave it. They are loaded again from the tables if news about
them arrives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from actions.engine import Action, Decision, EngineState, apply, in_past, row_in_past
from actions.table_store import Loaded

Definitions = Mapping[str, Collection[Action]]


def with_all(state: EngineState, loaded: Loaded, now_us: int) -> EngineState:
    """The state with all that the tables say about some actions."""
    targets = tuple(in_past(target, now_us) for target in loaded.targets)
    states = tuple(row_in_past(row, now_us) for row in loaded.states)
    after = apply(state, Decision(target_updates=targets, state_updates=states, waiting=state.waiting))
    said = state.said | loaded.said
    return replace(after, said=said, devices=state.devices, logs=state.logs, moving=state.moving)


def forgettable(state: EngineState, definitions: Definitions, before_us: int) -> set[str]:
    """Actions that ended before this time, except those whose targets open actions still look at."""
    old = {id_ for id_, row in state.actions.items() if row.ended_us is not None and row.updated_us < before_us}
    for id_, rows in definitions.items():
        if id_ not in old:
            old -= {needed for row in rows for needed in row.rollout.depends_on}
    old -= {action_id for action_id, _ in state.copied}
    return old - _superseding(state, definitions)


def forgotten(state: EngineState, old: Collection[str]) -> EngineState:
    """The state without these actions."""
    return replace(
        state,
        actions={id_: row for id_, row in state.actions.items() if id_ not in old},
        targets={id_: rows for id_, rows in state.targets.items() if id_ not in old},
        unloaded={id_: counts for id_, counts in state.unloaded.items() if id_ not in old},
        said=frozenset(event_id for event_id in state.said if _action_of(event_id) not in old),
    )


def is_over(state: EngineState, action_id: str) -> bool:
    row = state.actions.get(action_id)
    return row is not None and row.phase.over


def _superseding(state: EngineState, definitions: Definitions) -> set[str]:
    """Updates that have taken devices from an update which may still get new ones: a device that joins it later must
    not get the older image."""
    begun = {
        id_: (row.started_us, action)
        for id_, rows in definitions.items()
        for action in rows
        if action.is_ota and (row := state.actions.get(id_)) is not None
    }
    joined = [at for id_, (at, one) in begun.items() if one.rollout.dynamic and not is_over(state, id_)]
    return {id_ for id_, (at, one) in begun.items() if one.ota.supersede and joined and at >= min(joined)}


def _action_of(event_id: str) -> str:
    """The action in the id of an event of the engine. An id written by somebody else matches no action."""
    return event_id.split("/", 2)[1] if event_id.count("/") >= 2 else ""
