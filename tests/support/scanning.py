"""A reference for the ticks of the action engine that scans all targets where the engine looks into its index.

`checked` is `tick`, and fails if the two decide differently, or if an index that was moved along with the changes is
not the one that a scan of the targets gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest import mock

from actions.engine import Decision, EngineState, Target, tick
from actions.engine.index import Index, Kind
from actions.engine.model import SECOND_US
from actions.engine.turns import Turns
from actions.engine.work import Work


def _all(work: Work, action_id: str) -> list[Target]:
    return sorted(work.targets(action_id), key=lambda target: target.device_id)


def _some(work: Work, action_id: str, ids: Collection[str]) -> Iterator[Target]:
    return iter(_all(work, action_id))


def _owing(work: Work, action_id: str) -> list[Target]:
    return [target for target in _all(work, action_id) if target.outbox is not None]


def _kinds(work: Work, action_id: str) -> Counter[Any]:
    return Counter(Kind(one.state, one.wave, one.outbox, one.erred) for one in work.targets(action_id))


def _sent(work: Work, action_id: str) -> Counter[int]:
    return Counter(one.sent_us // SECOND_US for one in work.targets(action_id) if one.sent_us is not None)


def _in_turn(turns: Turns) -> Iterator[Target]:
    work, last = turns._work, turns._row.wave
    found = [one for one in work.targets(turns._action.action_id) if one.unsent and one.wave <= last]
    found = [one for one in found if one.retry_us is None or one.retry_us <= work.now_us]
    return iter(sorted(found, key=lambda target: (target.wave, target.device_id)))


@contextmanager
def scanning() -> Iterator[None]:
    """Inside, every tick looks at all targets."""
    with (
        mock.patch.object(Work, "some", _some),
        mock.patch.object(Work, "owing", _owing),
        mock.patch.object(Work, "kinds", _kinds),
        mock.patch.object(Work, "sent", _sent),
        mock.patch.object(Work, "changed_devices", return_value=None),
        mock.patch.object(Turns, "__iter__", _in_turn),
        mock.patch("actions.engine.tick.due_ids", lambda index, *_: set(index.of)),
    ):
        yield


@dataclass
class Checked:
    """`tick`, compared with the reference at every call."""

    moved: int = 0
    """Indexes that were compared after they had been moved along."""

    def __call__(self, state: EngineState, *arguments: Any, **options: Any) -> Decision:
        for action_id, index in state.indexes.items():
            targets = state.targets.get(action_id)
            if index.of is targets and targets is not None:
                assert content(index) == content(Index(targets)), f"the index of {action_id} is not that of its targets"
                self.moved += 1
        with scanning():
            reference = tick(replace(state, indexes={}), *arguments, **options)
        decision = tick(state, *arguments, **options)
        for field in fields(Decision):
            found, wanted = (_plain(getattr(one, field.name)) for one in (decision, reference))
            assert found == wanted, f"{field.name}: {found} instead of {wanted}"
        return decision


def content(index: Index) -> dict[str, Any]:
    found = {name: getattr(index, name) for name in Index.__slots__ if name not in ("of", "_queue")}
    found["unsent"] = index.unsent().content()
    return found | {"since": index.since.content(), "begun": index.begun.content()}


def _plain(rows: Any) -> Any:
    """The order of rows in a commit says nothing."""
    if isinstance(rows, tuple) and rows and isinstance(rows[0], Target):
        return {target.key: target for target in rows}
    return rows
