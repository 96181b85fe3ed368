"""Parses statuses in the format of Bytebeam's uplink into fields of `action_events` rows (docs/protocols.md §5). Pure.

A record is an array of responses with a single log position, so of several responses about one attempt the last one
counts. Fields that the format does not have (boot, result) stay empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actions.engine.json_fields import (
    ACTION_ID_MAX,
    FACT_MAX,
    INT32_MAX,
    INT64_MAX,
    TIME_MAX_US,
    WrongField,
    loaded,
    number,
    short,
    text,
    whole_number,
)

TOPIC = "/tenants/{tenant}/devices/{id}/action/status"
STATES = {
    "Received": "ACCEPTED",
    "Downloading": "IN_PROGRESS",
    "Downloaded": "IN_PROGRESS",
    "Installing": "IN_PROGRESS",
    "Running": "IN_PROGRESS",
    "Completed": "SUCCEEDED",
    "Failed": "FAILED",
    "Rejected": "REJECTED",
    "Cancelled": "CANCELLED",
}
_FAILURES = ("FAILED", "REJECTED")


@dataclass(frozen=True, slots=True)
class UplinkTopic:
    """The status topic of such devices: with a level `{id}`, and `{tenant}` for a level of any value.

    Raises ValueError for a text that is not such a topic.
    """

    template: str

    def __post_init__(self) -> None:
        levels = self.template.split("/")
        fixed = [level for level in levels if level not in ("{id}", "{tenant}")]
        if levels.count("{id}") != 1 or any(set(level) & set("+#{}$") for level in fixed):
            raise ValueError(f"{self.template!r} is not a topic with one level {{id}}, such as {TOPIC}")

    @property
    def filter(self) -> str:
        return self.template.replace("{tenant}", "+").replace("{id}", "+")

    def device_of(self, topic: str) -> str | None:
        """The device that publishes on `topic`; None for any other topic."""
        levels, wanted = topic.split("/"), self.template.split("/")
        if len(levels) != len(wanted):
            return None
        if any(want not in ("{id}", "{tenant}", level) for want, level in zip(wanted, levels, strict=True)):
            return None
        return levels[wanted.index("{id}")] or None


@dataclass(frozen=True, slots=True)
class Response:
    """`index` is its position in the array; `said` holds the resulting columns."""

    index: int
    said: Mapping[str, Any]


def responses(value: bytes) -> tuple[list[Response], list[str]]:
    """The responses of a record that count, and the problems of the others. Raises WrongField if none is valid."""
    body = loaded(value)
    if not isinstance(body, list) or not body:
        raise WrongField("the payload is not a JSON array of responses")
    found: dict[tuple[str, int], Response] = {}
    wrong: list[str] = []
    for index, one in enumerate(body):
        try:
            said = _said(one)
        except WrongField as error:
            wrong.append(f"response {index + 1} of {len(body)}: {error}")
            continue
        found[said["action_id"], said["attempt"]] = Response(index, said)
    return sorted(found.values(), key=lambda response: response.index), wrong


def _said(one: Any) -> dict[str, Any]:
    if not isinstance(one, dict):
        raise WrongField(f"it must be an object, not {short(one)}")
    name = text(one, "state", required=True)
    state = STATES.get(name or "")
    if state is None:
        raise WrongField(f"unknown state {short(name)}; known are {', '.join(STATES)}")
    action_id, attempt = _attempt(text(one, "id", required=True) or "")
    time_ms = number(one, "timestamp", 0, TIME_MAX_US // 1_000)
    return {
        "action_id": action_id,
        "attempt": attempt,
        "state": state,
        "seq": number(one, "sequence", 0, INT64_MAX),
        "progress": number(one, "progress", 0, 100),
        "message": _message(one) if state in _FAILURES else None,
        "version": text(one, "version", longest=FACT_MAX),
        # The format has no place for these two.
        "product": None,
        "hardware": None,
        "device_time": None if time_ms is None else time_ms * 1_000,
    }


def _attempt(id_: str) -> tuple[str, int]:
    action_id, slash, digits = id_.partition("/")
    attempt = whole_number(digits, 1, INT32_MAX) if slash else 1
    if not action_id or attempt is None:
        raise WrongField(f"id must be <action_id> or <action_id>/<attempt>, not {short(id_)}")
    if len(action_id) > ACTION_ID_MAX:
        raise WrongField(f"the action's id has {len(action_id)} characters; the limit is {ACTION_ID_MAX}")
    return action_id, attempt


def _message(one: Mapping[str, Any]) -> str | None:
    errors = one.get("errors")
    if errors is None:
        return None
    if not isinstance(errors, list):
        raise WrongField(f"errors must be a list of texts, not {short(errors)}")
    texts = [text({"errors": error}, "errors", required=True) or "" for error in errors]
    return "; ".join(texts) or None
