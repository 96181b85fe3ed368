"""Which devices an action is for, and what makes a row of `actions` wrong. Looks at values only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from .model import Action, Device

BUCKETS = 10_000
"""A percentage has two decimals: 0.01 % is one bucket."""

_NAME_MAX = 256


@dataclass(frozen=True, slots=True)
class Selection:
    selected: tuple[str, ...]
    unknown: tuple[str, ...]
    """Ids that the action lists and the table `devices` of this tenant does not have."""


def bucket(action_id: str, device_id: str) -> int:
    """The place of a device in [0, 10000) for this action. A device is in `percentage` p when it is below 100·p.

    It is the first 8 bytes of sha256("<action_id>/<device_id>"), big-endian, modulo 10000, and so depends on the two
    ids only: adding or removing devices never changes whether another one is selected, and a larger percentage of the
    same action always contains the smaller one.
    """
    digest = hashlib.sha256(f"{action_id}/{device_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % BUCKETS


def select(action: Action, devices: Mapping[str, Device]) -> Selection:
    """The devices that meet every criterion of the action, sorted by id. Call `refusal` first."""
    selector = action.selector
    known = {id_: device for id_, device in devices.items() if device.tenant == action.tenant}
    unknown: tuple[str, ...] = ()
    candidates = list(known)
    if selector.device_ids is not None:
        wanted = set(selector.device_ids)
        unknown = tuple(sorted(wanted - known.keys()))
        candidates = [id_ for id_ in wanted if id_ in known]
    if selector.labels is not None:
        labels = selector.labels
        candidates = [id_ for id_ in candidates if all(known[id_].labels.get(k) == v for k, v in labels.items())]
    if selector.percentage is not None:
        below = round(selector.percentage * BUCKETS / 100)
        candidates = [id_ for id_ in candidates if bucket(action.action_id, id_) < below]
    return Selection(selected=tuple(sorted(candidates)), unknown=unknown)


def describe(action: Action) -> str:
    """The selector as a clause for a sentence: "labels site=roof and percentage 10"."""
    selector = action.selector
    parts = []
    if selector.device_ids is not None:
        parts.append(f"the {len(set(selector.device_ids))} listed ids")
    if selector.labels is not None:
        parts.append("labels " + ", ".join(f"{key}={value}" for key, value in sorted(selector.labels.items())))
    if selector.percentage is not None:
        parts.append(f"percentage {selector.percentage:g}")
    return " and ".join(parts)


def refusal(action: Action) -> str | None:
    """Why this row cannot be acted on, as a sentence that names the column, or None."""
    return _identity_refusal(action) or _selector_refusal(action) or _content_refusal(action)


def _identity_refusal(action: Action) -> str | None:
    for column, value in (("action_id", action.action_id), ("name", action.name)):
        if not value or len(value) > _NAME_MAX:
            return f"{column} must have 1 to {_NAME_MAX} characters, not {len(value)}"
    if "/" in action.action_id:
        return "action_id must not contain '/', which separates the parts of the idempotency key"
    if action.type != "command":
        return f"type {action.type!r} is not supported; use 'command'"
    return None


def _selector_refusal(action: Action) -> str | None:
    selector = action.selector
    if selector.device_ids is None and selector.labels is None and selector.percentage is None:
        return "no selector: give device_ids, labels or percentage (100 for all devices)"
    if selector.device_ids is not None and not selector.device_ids:
        return "device_ids is an empty list; leave it null or name devices"
    if selector.device_ids is not None and not all(selector.device_ids):
        return "device_ids contains an empty id"
    if selector.labels is not None and not selector.labels:
        return "labels is an empty map; leave it null or name labels"
    if selector.percentage is not None and not 0 < selector.percentage <= 100:
        return f"percentage must be above 0 and at most 100, not {selector.percentage:g}"
    return None


def _content_refusal(action: Action) -> str | None:
    try:
        params = json.loads(action.params or "{}")
    except ValueError as error:
        return f"params is not JSON: {error}"
    if not isinstance(params, dict):
        return "params must be a JSON object"
    for column, seconds in (
        ("timeout_queued_s", action.timeouts.queued_s),
        ("timeout_delivered_s", action.timeouts.delivered_s),
        ("timeout_in_progress_s", action.timeouts.in_progress_s),
    ):
        if seconds is not None and seconds <= 0:
            return f"{column} must be above 0, not {seconds}"
    return None
