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

Model = TypeVar("Model", bound=BaseModel)
# In the problems that repeat text of the file; others name a token only.
_REPEATED = re.compile(r"(alias|anchor|tag|handle) (['\"]).*\2")


class Section(BaseModel):
    """Base of every section of such a file: unknown keys and wrong types are errors, and values are frozen."""

    # A value may be a secret that somebody wrote into the file: errors must not repeat it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def read_yaml(path: Path, model: type[Model], *, what: str = "settings") -> Model:
    """Reads `path` as a `model`. `SettingsError` names file, line, key and, for an unknown key, the nearest known
    one."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the {what} {path}: {error.strerror}") from error
    try:
        value = yaml.safe_load(text)
        root = yaml.compose(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}{_why(error)}") from None
    try:
        return model.model_validate({} if value is None else value)
    except ValidationError as error:
        raise SettingsError(_sentence(path, root, error, model, what)) from error


def yaml_files(folder: Path, *, what: str) -> list[Path]:
    """The `*.yaml` files of a folder, sorted by name. A missing folder is an error, an empty one is not."""
    if not folder.is_dir():
        raise SettingsError(f"there is no folder {folder} with {what}: name an existing one")
    return sorted(folder.glob("*.yaml"))


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
