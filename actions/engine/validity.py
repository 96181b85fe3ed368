"""Finds errors in a row of `actions`, as a sentence that names the column. Works on values only."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterator

from actions.engine.json_fields import DEPTH_MAX, is_deeper

from .action import Action, Artifacts, Ota, Selector, shortened
from .expressions import ExpressionError
from .labels import compiled
from .model import Limits
from .reported_expression import compiled_reported
from .waves import WavesError, parsed
from .windows import WindowError, spans

_NO_CHARACTERS = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
NO_LEVEL = re.compile(rf"[/+#\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_NO_CHARACTERS}]|^$")
"""Characters that a broker does not accept in a topic (MQTT 5, 1.5.4)."""
_NAME_MAX = 256
_PARAMS_BYTES_MAX = 256 * 1024
"""Below the default size limit of a broker for one message."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LIST_MAX = 100_000
_DEPENDS_MAX = 16
_RETRIES_MAX = 100
_TYPES = ("command", "ota")
_MODES = ("forced", "soft", "download_only")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIGNATURE_BYTES = 64


def refusal(action: Action, artifacts: Artifacts | None = None, limits: Limits | None = None) -> str | None:
    """Why this row cannot be executed, or None. Without `artifacts`, the existence of the artifact is not checked."""
    return next(refusals(action, artifacts, limits), None)


def refusals(action: Action, artifacts: Artifacts | None = None, limits: Limits | None = None) -> Iterator[str]:
    """Everything for which `refusal` refuses the row."""
    checks: tuple[Callable[[Action], Iterator[str]], ...] = (_identity, _selector, _content, _rollout, _ota)
    for check in checks:
        yield from check(action)
    if artifacts is not None and action.is_ota:
        yield from _artifact(action, artifacts, limits or Limits())


def unknown_dependency(action_id: str) -> str:
    """Why an action is refused that depends on this one."""
    return f"depends_on names action {action_id}, which does not exist: insert it first"


def _identity(action: Action) -> Iterator[str]:
    for column, value in (("action_id", action.action_id), ("name", action.name)):
        if not value or len(value) > _NAME_MAX:
            yield f"{column} must have 1 to {_NAME_MAX} characters, not {len(value)}"
    if _CONTROL.search(action.action_id):
        yield "action_id must not contain control characters"
    if "/" in action.action_id:
        yield "action_id must not contain '/', which separates the parts of the idempotency key"
    if action.type not in _TYPES:
        yield f"type {action.type!r} is not supported; use {' or '.join(map(repr, _TYPES))}"


def _selector(action: Action) -> Iterator[str]:
    selector = action.selector
    if selector.saved is not None and selector == Selector(saved=selector.saved):
        how = "insert its criteria too, as `headwater actions create --selector` does"
        yield f"selector is only the name {selector.saved[:_NAME_MAX]!r}: {how}"
    if selector == Selector():
        columns = "device_ids, labels, groups, label_expression, reported_expression"
        yield f"no selector: give {columns} or percentage (100 for all devices)"
    for column, ids in (("device_ids", selector.device_ids), ("groups", selector.groups)):
        if ids is not None and not ids:
            yield f"{column} is an empty list; leave it null or name {column.removeprefix('device_')}"
        if ids is not None and not all(ids):
            yield f"{column} contains an empty {'id' if column == 'device_ids' else 'name'}"
        if ids is not None and len(ids) > _LIST_MAX:
            yield f"{column} has {len(ids)} entries; the limit is {_LIST_MAX}"
    if selector.labels is not None and not selector.labels:
        yield "labels is an empty map; leave it null or name labels"
    if selector.percentage is not None and not 0 < selector.percentage <= 100:
        yield f"percentage must be above 0 and at most 100, not {selector.percentage:g}"
    for column, text, compile_ in (
        ("label_expression", selector.label_expression, compiled),
        ("reported_expression", selector.reported_expression, compiled_reported),
    ):
        if text is not None:
            try:
                compile_(text)
            except ExpressionError as error:
                yield f"{column} {error}"


def _content(action: Action) -> Iterator[str]:
    if len(action.params) > _PARAMS_BYTES_MAX:
        yield f"params has {len(action.params)} characters; the limit is {_PARAMS_BYTES_MAX} bytes"
    try:
        params = json.loads(action.params or "{}", parse_constant=_no_number, parse_float=_finite)
        # The size that devices receive, which may be larger: 1e15 becomes 1000000000000000.0.
        size_bytes = len(json.dumps(params, ensure_ascii=False, separators=(",", ":")).encode())
    except (ValueError, RecursionError) as error:
        yield f"params is not JSON: {error}"
        return
    if not isinstance(params, dict):
        yield "params must be a JSON object"
    if is_deeper(params, DEPTH_MAX):
        yield f"params is nested deeper than {DEPTH_MAX}"
    if size_bytes > _PARAMS_BYTES_MAX:
        yield f"params has {size_bytes} bytes; the limit is {_PARAMS_BYTES_MAX}"
    for column, seconds in (
        ("timeout_queued_s", action.timeouts.queued_s),
        ("timeout_delivered_s", action.timeouts.delivered_s),
        ("timeout_in_progress_s", action.timeouts.in_progress_s),
        ("timeout_step_s", action.timeouts.step_s),
    ):
        if seconds is not None and seconds <= 0:
            yield f"{column} must be above 0, not {seconds}"


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _finite(digits: str) -> float:
    found = float(digits)
    if math.isinf(found):
        raise ValueError(f"{digits[:20]} exceeds the numbers that devices can read")
    return found


def _rollout(action: Action) -> Iterator[str]:
    rollout = action.rollout
    if rollout.membership not in ("static", "dynamic"):
        yield f"membership must be 'static' or 'dynamic', not {rollout.membership!r}"
    for column, number in (
        ("rate_per_minute", rollout.rate_per_minute),
        ("max_in_flight", rollout.max_in_flight),
        ("abort_min_reported", rollout.abort_min_reported),
    ):
        if number is not None and number < 1:
            yield f"{column} must be above 0, not {number}"
    if rollout.abort_percentage is not None and not 0 <= rollout.abort_percentage <= 100:
        yield f"abort_percentage must be from 0 to 100, not {rollout.abort_percentage:g}"
    if not 0 <= rollout.retries <= _RETRIES_MAX:
        yield f"retries must be from 0 to {_RETRIES_MAX}, not {rollout.retries}"
    if rollout.retry_backoff_s < 0:
        yield f"retry_backoff_s must be at least 0, not {rollout.retry_backoff_s}"
    if len(rollout.depends_on) > _DEPENDS_MAX:
        yield f"depends_on has {len(rollout.depends_on)} entries; the limit is {_DEPENDS_MAX}"
    if action.action_id in rollout.depends_on:
        yield "depends_on names the action itself"
    if rollout.needs_approval and not action.created_by:
        yield "needs_approval requires another person than created_by, which is empty"
    if action.deadline_us is not None and (rollout.not_before_us or 0) >= action.deadline_us:
        yield "not_before must be earlier than deadline"
    if rollout.waves is not None:
        try:
            waves = parsed(rollout.waves)
        except WavesError as error:
            yield f"waves {error}"
            return
        if any(wave.approve for wave in waves) and not action.created_by:
            yield "waves requires approval by another person than created_by, which is empty"
    if rollout.maintenance_window is not None:
        try:
            spans(rollout.maintenance_window)
        except WindowError as error:
            yield f"maintenance_window {error}"


def _ota(action: Action) -> Iterator[str]:
    ota = action.ota
    if not action.is_ota:
        if ota.artifact_name is not None or ota.artifact_version is not None:
            yield "artifact_name and artifact_version are only for type 'ota'"
        if ota.supersede:
            yield "supersede is only for type 'ota'"
        for column, is_given in (
            ("mode", ota.mode != Ota().mode),
            ("requires_versions", ota.requires_versions is not None),
            ("target_version", ota.target_version is not None),
        ):
            if is_given:
                yield f"{column} is only for type 'ota'"
        return
    for column, value in (("artifact_name", ota.artifact_name), ("artifact_version", ota.artifact_version)):
        if not value:
            yield f"type 'ota' needs {column}"
        elif NO_LEVEL.search(value):
            yield f"{column} {value[:_NAME_MAX]!r} cannot be a level of the topics of artifacts"
    for column, value in (
        ("artifact_name", ota.artifact_name),
        ("artifact_version", ota.artifact_version),
        ("target_version", ota.target_version),
    ):
        if value is not None and len(value) > _NAME_MAX:
            yield f"{column} has {len(value)} characters; the limit is {_NAME_MAX}"
    if ota.mode not in _MODES:
        yield f"mode must be one of {', '.join(_MODES)}, not {ota.mode!r}"


def _artifact(action: Action, artifacts: Artifacts, limits: Limits) -> Iterator[str]:
    name, version = action.ota.artifact_name or "", action.ota.artifact_version or ""
    artifact = artifacts.get((action.tenant, name, version))
    what = f"artifact {name} {version}"
    if artifact is None:
        yield f"{what} is not in the table artifacts of tenant {action.tenant}"
        return
    if artifact.withdrawn is not None:
        yield shortened(f"{what} was withdrawn by {artifact.withdrawn}")
    if not _SHA256.fullmatch(artifact.sha256):
        yield f"{what} has no valid sha256 in the table artifacts"
    if artifact.signature is None:
        if not limits.allow_unsigned:
            yield f"{what} is not signed"
        return
    if not _is_signature(artifact.signature):
        yield f"{what} has a signature that is not {_SIGNATURE_BYTES} bytes in Base64 or hexadecimal"
    if limits.trusted_keys and artifact.key_id not in limits.trusted_keys:
        yield f"{what} is signed with key {artifact.key_id}, which is not among actions.trusted_keys"


def _is_signature(text: str) -> bool:
    if re.fullmatch(rf"[0-9a-fA-F]{{{2 * _SIGNATURE_BYTES}}}", text):
        return True
    try:
        return len(base64.b64decode(text, validate=True)) == _SIGNATURE_BYTES
    except (binascii.Error, ValueError):
        return False
