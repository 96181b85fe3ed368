"""Reads a rollout file: an action as people save and review it, in YAML.

The keys are the fields of `Order`, without the units at their ends, and `id`. All problems of a file are one
SettingsError with a line for each that names file, line, key and what to write. Opens no table.
"""

from __future__ import annotations

import difflib
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import yaml

from actions.fleet_desk import Order
from broker_edge.errors import SettingsError
from broker_edge.regular_file import read_regular_text

FILE_BYTES_MAX = 8 << 20
"""Room for the ids of 100,000 devices."""

EXAMPLE = """\
# An action as a file: `headwater rollout plan FILE`, then `headwater rollout apply FILE`.
id: pump-110                  # apply inserts an id once
name: update
artifact_name: pump           # makes it an OTA
artifact_version: "1.1.0"
labels: {model: p2}           # a device must match every selector
waves:
  - {percentage: 1, success_percentage: 90, error_percentage: 10, min_reported: 5, approve: true}
  - {percentage: 10, soak: 1h}
  - {percentage: 100}
abort_percentage: 20
abort_min_reported: 10
timeout_queued: 7d            # s, m, h, d
retries: 1
"""

DEPTH_MAX = 100
SHOWN_MAX = 20
"""Problems of a file that are told at once."""
_DIGITS_MAX = 1_000
"""Characters of a whole number: the time for one such as 1:1:1:… (base 60) grows with the square of its length."""

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})\s*([smhd])")
_SECONDS_MAX = 2**31 - 1
_INT_MAX = 2**31 - 1
_WAVE_KINDS: Mapping[str, Any] = {
    "percentage": float,
    "success_percentage": float,
    "error_percentage": float,
    "min_reported": int,
    "soak_s": int,
    "approve": bool,
}
_OPTIONS = {
    "where": "label_expression",
    "rate": "rate_per_minute",
    "abort": "abort_percentage",
    "abort_min": "abort_min_reported",
    "device": "device_ids",
    "devices": "device_ids",
    "label": "labels",
    "group": "groups",
    "wave": "waves",
    "window": "maintenance_window",
    "artifact": "artifact_name",
    "version": "artifact_version",
    "requires": "requires_versions",
    "action_id": "id",
    "dynamic": "membership",
}
"""How the options of `headwater actions create` are called here."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a file says: the action and its id."""

    action_id: str
    order: Order


class _KeyProblem(ValueError):
    """What is wrong with a key; `keys` leads to it."""

    def __init__(self, keys: Sequence[str | int], what: str) -> None:
        super().__init__(what)
        self.keys, self.what = tuple(keys), what


class _KeyProblems(ValueError):
    """All problems of a file, at least one."""

    def __init__(self, problems: Sequence[_KeyProblem]) -> None:
        super().__init__()
        self.problems = tuple(problems)


class _Loader(yaml.SafeLoader):
    """Without anchors, whose content could be repeated without limit, and without times, which lose their zone."""

    yaml_implicit_resolvers: ClassVar[Any] = {  # type: ignore[misc]
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEPTH_MAX:  # PyYAML's time grows with the square of it.
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"it is nested too deeply (over {DEPTH_MAX} levels)", mark)
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias is not supported here: write the value again", mark)
        found = super().compose_node(parent, index)
        self.depth -= 1
        if found is not None and found.tag == "tag:yaml.org,2002:int" and len(found.value) > _DIGITS_MAX:
            what = f"a number of more than {_DIGITS_MAX} characters"
            raise yaml.composer.ComposerError(None, None, what, found.start_mark)
        return found

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value if isinstance(key.value, str) else "")
        return super().construct_mapping(node, deep=deep)


def read_rollout(path: Path) -> Rollout:
    """The rollout that a file describes. Raises SettingsError for anything that it does not understand completely."""
    root, value = _parsed(path, _text(path))
    try:
        if not isinstance(value, dict):
            raise _KeyProblem((), "write keys such as id: pump-110; `headwater rollout example` prints a file")
        return _rollout(value)
    except _KeyProblem as problem:
        raise SettingsError(_told(path, root, problem)[1]) from None
    except _KeyProblems as several:
        told = sorted(_told(path, root, problem) for problem in several.problems)
        left = f"\n{path}: {len(told) - SHOWN_MAX} more" if len(told) > SHOWN_MAX else ""
        raise SettingsError("\n".join(text for _, text in told[:SHOWN_MAX]) + left) from None


def _told(path: Path, root: yaml.Node | None, problem: _KeyProblem) -> tuple[int, str]:
    """The line of a problem, and what to say about it."""
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in problem.keys).lstrip(".")
    line = _line(root, problem.keys)
    return line, f"{path}:{line}: {f'{name}: ' if name else ''}{problem.what}"


def _text(path: Path) -> str:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > FILE_BYTES_MAX:
            raise SettingsError(
                f"{path} has {size_bytes:,} bytes, above the limit of {FILE_BYTES_MAX:,}: select by label or group"
            )
        return read_regular_text(path, "utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 (byte {error.start:,}): save it as UTF-8") from error


def _parsed(path: Path, text: str) -> tuple[yaml.Node | None, Any]:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            return node, None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f":{mark.line + 1}"
        raise SettingsError(f"{path}{place}: this is not YAML that can be used: {error.problem}") from None
    except yaml.YAMLError:
        raise SettingsError(f"{path} has a character that YAML does not allow: remove it") from None
    except (KeyError, IndexError, AttributeError):
        # What PyYAML raises for `!!bool x`, `!!int ""` and `!!timestamp x`.
        raise SettingsError(f"{path} has a tag such as !!bool before a value of another type: remove it") from None
    except (RecursionError, ValueError, TypeError) as error:
        # Depth without limit, and values such as 2027-99-99 with an explicit tag.
        raise SettingsError(f"{path} is nested too deeply or has a value that YAML cannot read: {error}") from None


def _rollout(given: dict[Any, Any]) -> Rollout:
    fields = typing.get_type_hints(Order)
    names = {_human(name): name for name in fields}
    found: dict[str, Any] = {}
    problems: list[_KeyProblem] = []
    for key, value in _map([], given).items():
        field = key if key == "id" else names.get(key) or (key if key in fields and not key.endswith("_us") else None)
        try:
            if field is None:
                raise _KeyProblem([str(key)], _unknown(str(key), ["id", *names]))
            if field in found:
                raise _KeyProblem([key], f"it is there as {_human(field)} too: remove one")
            found[field] = _value([key], field, fields.get(field, str), value)
        except _KeyProblem as problem:
            problems.append(problem)
    misspelt = {_meant(str(key), ["id", *names]) for key in given}
    for key, example in (("id", "pump-110"), ("name", "update")):
        if key not in given and key not in misspelt:
            problems.append(_KeyProblem([], f"{key} is missing: write a line such as {key}: {example}"))
    if problems:
        raise _KeyProblems(problems)
    if "artifact_name" in found or "artifact_version" in found:
        found.setdefault("type", "ota")
    return Rollout(found.pop("id"), Order(**found))


def _human(field: str) -> str:
    """The key of a field: without its unit, because the value has one."""
    return field.removesuffix("_us").removesuffix("_s")


def _meant(key: str, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return _OPTIONS.get(key) or (near[0] if near else None)


def _unknown(key: str, known: Sequence[str]) -> str:
    meant = _meant(key, known)
    hint = f"did you mean {meant}?" if meant in known else f"the keys are {', '.join(known)}"
    return f"unknown key: {hint}"


def _value(keys: Sequence[str | int], field: str, hint: Any, value: Any) -> Any:
    if value is None:
        raise _KeyProblem(keys, "it has no value: write one, or remove the line")
    if field.endswith("_us"):
        return _moment(keys, value)
    if field.endswith("_s"):
        return _seconds(keys, value)
    if field == "waves":
        return [_wave([*keys, at], one) for at, one in enumerate(_list(keys, value))]
    if field == "params":
        return _params(keys, value)
    kind = _without_none(hint)
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is Sequence:
        return [_value([*keys, at], field, inside[0], one) for at, one in enumerate(_list(keys, value))]
    if origin is Mapping:
        return {name: _value([*keys, name], field, inside[1], one) for name, one in _map(keys, value).items()}
    return _KINDS[kind](keys, value)


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _text_of(keys: Sequence[str | int], value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        # 1.10 would become 1.1, and `no` false.
        raise _KeyProblem(keys, "YAML reads this as a number or a truth value: put the text in quotes")
    raise _KeyProblem(keys, "write one text")


def _whole(keys: Sequence[str | int], value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _INT_MAX:
        raise _KeyProblem(keys, "write a whole number, such as 100")
    return value


def _number(keys: Sequence[str | int], value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _INT_MAX:
        raise _KeyProblem(keys, "write a number, such as 12.5")
    return float(value)


def _truth(keys: Sequence[str | int], value: Any) -> bool:
    if not isinstance(value, bool):
        raise _KeyProblem(keys, "write true or false")
    return value


_KINDS: Mapping[Any, Callable[[Sequence[str | int], Any], Any]] = {
    str: _text_of,
    int: _whole,
    float: _number,
    bool: _truth,
}


def _list(keys: Sequence[str | int], value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _KeyProblem(keys, "write a list, such as [a, b]")
    return value


def _map(keys: Sequence[str | int], value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _KeyProblem(keys, "write keys with values, such as {model: p2}")
    for key in value:
        if not isinstance(key, str):
            raise _KeyProblem(keys, f"YAML reads a key here as {key}: put the key in quotes")
    return value


def _moment(keys: Sequence[str | int], value: Any) -> int:
    """Unix µs. A time from now would make another action of the same file with each apply."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _KeyProblem(keys, "write a date and a time with its zone, such as 2027-01-15T22:00+01:00")
    try:
        return int(moment.timestamp() * 1_000_000)
    except (OverflowError, ValueError):
        raise _KeyProblem(keys, "this time is out of range") from None


def _seconds(keys: Sequence[str | int], value: Any) -> int:
    """Whole seconds, or a text with one unit."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = int(match[1]) * _UNITS[match[2]] if match else value
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= _SECONDS_MAX:
        raise _KeyProblem(keys, "write a duration such as 90s, 15m, 24h or 7d")
    return seconds


def _wave(keys: Sequence[str | int], value: Any) -> dict[str, Any]:
    names = {_human(name): name for name in _WAVE_KINDS}
    wave: dict[str, Any] = {}
    for key, one in _map(keys, value).items():
        name = names.get(key) or (key if key in _WAVE_KINDS else None)
        if name is None:
            raise _KeyProblem([*keys, str(key)], _unknown(str(key), list(names)))
        if name in wave:
            raise _KeyProblem([*keys, key], f"it is there as {_human(name)} too: remove one")
        wave[name] = _value([*keys, key], name, _WAVE_KINDS[name], one)
    return wave


def _params(keys: Sequence[str | int], value: Any) -> dict[str, Any]:
    found = _map(keys, value)
    try:
        if json.loads(json.dumps(found, allow_nan=False)) != found:
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        raise _KeyProblem(keys, "use what JSON has: texts as keys, and no NaN, dates or sets") from None
    return found


def _line(node: yaml.Node | None, keys: Sequence[str | int]) -> int:
    """The line of the deepest key on the path that is in the file."""
    line = 1
    for key in keys:
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
    return line
