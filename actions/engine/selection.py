"""Selects the devices of an action. Works on values only; `validity` judges whether the selector makes sense."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .action import Action, Device, Selector
from .labels import compiled
from .model import DeviceState
from .reported_expression import compiled_reported

BUCKETS = 10_000
"""A percentage has two decimals: 0.01 % is one bucket."""


@dataclass(frozen=True, slots=True)
class Selection:
    selected: tuple[str, ...]
    unknown: tuple[str, ...]
    """Ids that the action lists but that the table `devices` of this tenant does not contain."""


def bucket(action_id: str, device_id: str) -> int:
    """The position of a device in [0, 10000) for this action. A device is in `percentage` p if it is below 100·p.

    It is the first 8 bytes of sha256("<action_id>/<device_id>"), big-endian, modulo 10000, and therefore depends only
    on the two ids: adding or removing devices never changes whether another one is selected, and a larger percentage of
    the same action always contains a smaller one.
    """
    digest = hashlib.sha256(f"{action_id}/{device_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % BUCKETS


def select(action: Action, devices: Mapping[str, Device], reported: Callable[[str], bool] | None = None) -> Selection:
    """The devices that meet every criterion of the action, sorted by id. Call `validity.refusal` first.

    `reported` tests what a device has reported, by its id (`reported_test`); None leaves that criterion out.
    """
    wanted = action.selector.device_ids
    candidates = list(devices) if wanted is None else [id_ for id_ in set(wanted) if id_ in devices]
    test = _tester(action)
    selected = sorted(id_ for id_ in candidates if devices[id_].tenant == action.tenant and test(devices[id_]))
    if reported is not None:
        selected = [id_ for id_ in selected if reported(id_)]
    unknown: list[str] = []
    if wanted is not None:
        unknown = sorted(id_ for id_ in set(wanted) if id_ not in devices or devices[id_].tenant != action.tenant)
    return Selection(selected=tuple(selected), unknown=tuple(unknown))


def _tester(action: Action) -> Callable[[Device], bool]:
    """A test of all criteria except ids, tenant and reports. Looks up what is the same for all devices once."""
    selector: Selector = action.selector
    tests: list[Callable[[Device], bool]] = []
    if selector.labels is not None:
        wanted = list(selector.labels.items())
        tests.append(lambda device: all(device.labels.get(key) == value for key, value in wanted))
    if selector.groups is not None:
        groups = frozenset(selector.groups)
        tests.append(lambda device: not groups.isdisjoint(device.groups))
    if selector.label_expression is not None:
        expression = compiled(selector.label_expression)
        tests.append(lambda device: expression(device.labels))
    if selector.percentage is not None:
        below = round(selector.percentage * BUCKETS / 100)
        tests.append(lambda device: bucket(action.action_id, device.device_id) < below)
    return lambda device: all(test(device) for test in tests)


def reported_test(
    action: Action, fact: Callable[[str], DeviceState | None], now_us: int
) -> Callable[[str], bool] | None:
    """A test of what a device has reported, by its id, at this moment; None if the action does not select by reports.
    `fact` looks the reports up."""
    text = action.selector.reported_expression
    if text is None:
        return None
    holds = compiled_reported(text).holds
    return lambda device_id: holds((fact(device_id), now_us))


def describe(action: Action) -> str:
    """The selector as part of a sentence: "labels site=roof and percentage 10"."""
    selector = action.selector
    parts = []
    if selector.device_ids is not None:
        parts.append(f"the {len(set(selector.device_ids))} listed ids")
    if selector.labels is not None:
        parts.append("labels " + ", ".join(f"{key}={value}" for key, value in sorted(selector.labels.items())))
    if selector.groups is not None:
        parts.append("groups " + ", ".join(sorted(selector.groups)))
    if selector.label_expression is not None:
        parts.append(f"label_expression {selector.label_expression}")
    if selector.reported_expression is not None:
        parts.append(f"reported_expression {selector.reported_expression}")
    if selector.percentage is not None:
        parts.append(f"percentage {selector.percentage:g}")
    return " and ".join(parts)
