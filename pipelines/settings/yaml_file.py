"""Reads YAML files of the pipelines into checked values. An error is one sentence with file, line and key.

It knows no particular file: `settings`, `silver.schema` and `silver.rules` hold the models.
"""

from __future__ import annotations

import difflib
import re
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from broker_edge.errors import SettingsError
from broker_edge.regular_file import read_regular_text

Model = TypeVar("Model", bound=BaseModel)

FILE_BYTES_MAX = 8 << 20
NODES_MAX = 100_000
"""Keys and values of a file, each as often as aliases repeat it: ten lines of aliases can stand for billions."""
DEPTH_MAX = 100
DIGITS_MAX = 1_000
"""Characters of a whole number: the time for one such as 1:1:1:… (base 60) grows with the square of its length."""
# In the problems that repeat text of the file; others name a token only.
_REPEATED = re.compile(r"(alias|anchor|tag|handle) (['\"]).*\2")

TAG_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""What PyYAML raises for `!!timestamp x`, `!!bool x`, `!!int ""` and the like, besides its own errors."""


class _Loader(yaml.SafeLoader):
    """Stops at the limit of depth: PyYAML's time grows with the square of it."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEPTH_MAX + 1:
            raise RecursionError
        found = super().compose_node(parent, index)
        self.depth -= 1
        return found


class Section(BaseModel):
    """Base of every section of such a file: unknown keys and wrong types are errors, and values are frozen."""

    # A value may be a secret that somebody wrote into the file: errors must not repeat it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def read_yaml(path: Path, model: type[Model], *, what: str = "settings") -> Model:
    """Reads `path` as a `model`. `SettingsError` names file, line, key and, for an unknown key, the nearest known
    one."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > FILE_BYTES_MAX:
            raise SettingsError(f"{path} has {size_bytes:,} bytes; the limit is {FILE_BYTES_MAX:,}: split it")
        text = read_regular_text(path)
    except OSError as error:
        raise SettingsError(f"cannot read the {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 (byte {error.start:,}): save it as UTF-8") from None
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is not None:
            _nodes(path, root, {})
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}{_why(error)}") from None
    except TAG_ERRORS:
        # A time that does not exist, or a tag before a value of another type. The text of the error repeats the value.
        raise SettingsError(f"{path} is not YAML: a value in it is not of its type (time, number, tag)") from None
    except RecursionError:
        raise SettingsError(f"{path} is nested deeper than {DEPTH_MAX}: write it flatter") from None
    try:
        return model.model_validate({} if value is None else value)
    except ValidationError as error:
        raise SettingsError(_sentence(path, root, error, model, what)) from error


def yaml_files(folder: Path, *, what: str) -> list[Path]:
    """The `*.yaml` files of a folder, sorted by name. A missing folder is an error, an empty one is not."""
    if not folder.is_dir():
        raise SettingsError(f"there is no folder {folder} with {what}: name an existing one")
    return sorted(folder.glob("*.yaml"))


def _nodes(path: Path, node: yaml.Node, known: dict[int, int]) -> int:
    """How many keys and values a node stands for, with its aliases written out. `known` has those counted before; -1
    marks the nodes around this one."""
    if node.tag == "tag:yaml.org,2002:int" and len(node.value) > DIGITS_MAX:
        raise SettingsError(f"{path}:{node.start_mark.line + 1} has a number of more than {DIGITS_MAX} characters")
    if known.get(id(node)) == -1:
        raise SettingsError(f"{path}:{node.start_mark.line + 1}: an alias stands within its own anchor")
    if id(node) not in known:
        known[id(node)] = -1
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for one in inner for part in (one if isinstance(one, tuple) else (one,))]
        count = 1 + sum(_nodes(path, part, known) for part in parts)
        if count > NODES_MAX:
            raise SettingsError(
                f"{path}:{node.start_mark.line + 1} has more than {NODES_MAX:,} keys and values, with its aliases "
                "written out: write fewer aliases"
            )
        known[id(node)] = count
    return known[id(node)]


def _why(error: yaml.YAMLError) -> str:
    """Place and problem. The text of the error itself quotes the line, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or "a character that YAML does not allow")
    place = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
    return f"{place} is not YAML: " + _REPEATED.sub(r"\1", problem)


def _sentence(path: Path, root: yaml.Node | None, error: ValidationError, model: type[BaseModel], what: str) -> str:
    """The first problem, as `file:line: key: what is wrong`. A misspelt key comes before the key that is then
    missing."""
    problems = error.errors()
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    keys = list(first["loc"])
    place = f"{path}:{_line(root, keys)}"
    name = ".".join(str(key) for key in keys)
    if first["type"] == "extra_forbidden":
        section = _model_at(model, keys[:-1])
        if section is not None:
            near = difflib.get_close_matches(str(keys[-1]), list(section.model_fields), n=1, cutoff=0.0)
            return f"{place}: unknown key {name}: did you mean {'.'.join([*map(str, keys[:-1]), near[0]])}?"
    return f"{place}: {name or what}: {first['msg']}"


def _model_at(model: type[BaseModel], keys: list[int | str]) -> type[BaseModel] | None:
    """The model that the keys lead to, through lists and options."""
    found: Any = model
    for key in keys:
        found = _model_of(found.model_fields[key].annotation) if isinstance(key, str) else found
        if found is None:
            return None
    return typing.cast("type[BaseModel]", found)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    return next(filter(None, (_model_of(part) for part in typing.get_args(annotation))), None)


def _line(node: yaml.Node | None, keys: list[int | str]) -> int:
    """The line of the deepest key on the path that exists in the file."""
    line = 1
    for key in keys:
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
            continue
        if not isinstance(node, yaml.MappingNode):
            break
        found = next(((name, value) for name, value in node.value if name.value == key), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line
