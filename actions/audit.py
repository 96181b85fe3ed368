"""The audit of one action: who asked for what and when, what the engine answered, and how the action ended.

The row of an action has the newest counts: devices that had timed out may still report success after the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from actions.engine.selection import describe
from actions.engine.summary import sentence
from actions.rows import action_of

Row = Mapping[str, Any]
Entry = tuple[int, str, str, str | None, str]
"""Time in Unix µs, who, what, device, text."""


def audited(
    made: Iterable[Row], asked: Iterable[Row], said: Iterable[Row], state: Row | None, late_us: Collection[int]
) -> list[dict[str, Any]]:
    """The entries by time: rows of `actions` and `action_requests`, the engine's events, and the end. `state` is the
    row of `action_state`, `late_us` say when targets that had timed out succeeded."""
    rows: list[Entry] = [(row["created_at"], row["created_by"], "create", None, _created(row)) for row in made]
    rows += [(row["at"], row["by"], row["kind"], row["device_id"], row["reason"]) for row in asked]
    rows += [(row["at"], "engine", row["state"], row["device_id"], row["message"]) for row in said]
    if state is not None and state["phase"] == "ENDED":
        # An end has no event: a retry may take it back, and the state says how it ended last.
        rows.append(_of_end(state, late_us))
    names = ("at", "who", "what", "device_id", "text")
    return [dict(zip(names, row, strict=True)) for row in sorted(rows, key=lambda row: row[0] or 0)]


def _created(row: Row) -> str:
    """What somebody ordered, and for which devices if a saved selector says it."""
    saved, name = row.get("selector"), str(row["name"])
    return f"{name}; selector {saved}: {describe(action_of(row, commit_version=0))}" if saved else name


def _of_end(row: Row, late_us: Collection[int]) -> Entry:
    """The end with the counts of then. Events tell what has changed since."""
    ended_us, message = row["ended_at"], row["message"] or ""
    since = [at_us for at_us in late_us if at_us > ended_us]
    counts = dict(row["counts"] or {})
    newest = sentence(row["targets"], row["open"], counts)
    if not since or not message.endswith(newest):
        return (ended_us, "engine", row["phase"], None, message)
    counts["SUCCEEDED"] = counts.get("SUCCEEDED", 0) - len(since)
    counts["TIMED_OUT"] = counts.get("TIMED_OUT", 0) + len(since)
    then = sentence(row["targets"], row["open"], {state: count for state, count in counts.items() if count > 0})
    return (ended_us, "engine", row["phase"], None, message.removesuffix(newest) + then)
