"""Message schemas: what the payloads of certain topics contain, and which of it becomes columns of a silver table.

One YAML file per message type (`conf/schemas/*.yaml`); docs/tables.md describes the format. Values only:
`silver.columns` parses the records.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from broker_edge.errors import SettingsError
from pipelines.settings.yaml_file import Section, read_yaml, yaml_files
from pipelines.silver.topics import topic_pattern
from sinks.tables.records import SILVER

ENVELOPE = SILVER.names
"""Columns that every silver table has; no field may use their names."""

NEW_COLUMNS_MAX = 1_000
DEPTH_MAX = 100
NODES_MAX = 1_000_000
JSON_BYTES_MAX = 64 * 1024 * 1024

_SCALAR = re.compile(r"string|boolean|int|bigint|float|double|timestamp|binary|json|decimal\((\d{1,2}),(\d{1,2})\)")
_ARRAY = re.compile(r"array<(string|boolean|int|bigint|double)>")
_ALIAS = re.compile(r"0|[1-9][0-9]{0,19}")
_COLUMN = re.compile(r"[^\W\d_]\w*")


class PayloadFormat(StrEnum):
    JSON = "json"
    CBOR = "cbor"
    SPARKPLUG_B = "sparkplug_b"


class Evolution(StrEnum):
    """How fields without a name in the schema are handled, in Auto Loader's words.

    Auto Loader stops a stream so that its restart has the new column; `add_new_columns` adds the column and continues.
    """

    ADD_NEW_COLUMNS = "add_new_columns"
    RESCUE = "rescue"
    FAIL_ON_NEW = "fail_on_new"
    NONE = "none"


class TimeUnit(StrEnum):
    """How a time is written: a number since 1970 in UTC, or an ISO 8601 string."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"
    ISO = "iso"


class SchemaField(Section):
    """A value of the payload and its column. `path` lists the keys that lead to it; default: the name itself."""

    name: str
    type: str
    path: list[str] | None = Field(default=None, min_length=1, max_length=8)
    required: bool = False
    unit: str | None = None
    comment: str | None = None
    inferred: bool = False
    """Added because a payload contained it: a value of another type is rescued, and the record stays good."""
    device: str | None = None
    day: str | None = None
    """Of an inferred field: the device that brought it, and the UTC day on which the broker received that."""

    @field_validator("path", mode="before")
    @classmethod
    def _split(cls, path: object) -> object:
        return path.split(".") if isinstance(path, str) else path

    @field_validator("path")
    @classmethod
    def _can_be_quoted(cls, path: list[str] | None) -> list[str] | None:
        for key in path or []:
            if not quotable(key):
                raise ValueError(f"the key {key!r} is empty or has both kinds of quotes")
        return path

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if _COLUMN.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a column name: use a letter, then letters, digits and _")
        if name.lower() in ENVELOPE:
            raise ValueError(f"{name!r} is a column that every silver table has")
        return name

    @field_validator("type")
    @classmethod
    def _is_known(cls, text: str) -> str:
        return known_type(text)


class EventTime(Section):
    """Where a payload has the time of measurement. Records without it use the time at which the broker received
    them."""

    path: list[str] = Field(min_length=1, max_length=8)
    unit: TimeUnit = TimeUnit.US
    required: bool = False

    @field_validator("path", mode="before")
    @classmethod
    def _split(cls, path: object) -> object:
        return path.split(".") if isinstance(path, str) else path

    @field_validator("unit", mode="before")
    @classmethod
    def _unit(cls, unit: object) -> object:
        return _member(TimeUnit, unit)


class MessageSchema(Section):
    """One file of `conf/schemas`; its table is `silver_<name>`."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")
    topics: list[str] = Field(min_length=1)
    format: PayloadFormat = PayloadFormat.JSON
    evolution: Evolution = Evolution.ADD_NEW_COLUMNS
    device_level: int | None = Field(default=None, ge=0, le=30)
    """The topic level that names the device, counted from 0; null: the record's key."""
    time: EventTime | None = None
    fields: list[SchemaField] = Field(default=[])
    hints: dict[str, str] = Field(default={})
    """Types for expected new fields, by dotted path."""
    new_columns_max: int = Field(default=100, ge=0, le=NEW_COLUMNS_MAX)
    """Maximum number of added columns; further new fields are rescued."""
    new_columns_per_device_max: int = Field(default=20, ge=0, le=NEW_COLUMNS_MAX)
    """How many of them one device may bring on one day, so that a device cannot take the columns of all others."""
    depth_max: int = Field(default=DEPTH_MAX, ge=1, le=DEPTH_MAX)
    """How deep CBOR may be nested. JSON has the limit of Spark's parser, 1,000."""
    nodes_max: int = Field(default=NODES_MAX, ge=1, le=100_000_000)
    """How many values a CBOR or Sparkplug B payload may have. A value takes up to 100 bytes of a worker's memory."""
    json_bytes_max: int = Field(default=JSON_BYTES_MAX, ge=1, le=1 << 30)
    """How long a payload may be as JSON."""
    version: Literal[1] = 1

    @field_validator("format", mode="before")
    @classmethod
    def _format(cls, value: object) -> object:
        return _member(PayloadFormat, value)

    @field_validator("evolution", mode="before")
    @classmethod
    def _evolution(cls, value: object) -> object:
        return _member(Evolution, value)

    @field_validator("topics")
    @classmethod
    def _are_filters(cls, topics: list[str]) -> list[str]:
        for topic in topics:
            try:
                topic_pattern(topic)
            except SettingsError as error:
                raise ValueError(str(error)) from error
        return topics

    @field_validator("hints")
    @classmethod
    def _hints_are_types(cls, hints: dict[str, str]) -> dict[str, str]:
        return {path: known_type(text) for path, text in hints.items()}

    @model_validator(mode="after")
    def _columns_and_paths_are_unique(self) -> MessageSchema:
        names = [field.name.lower() for field in self.fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two fields are named {twice}")
        for field in self.fields:
            self._check_alias(field)
            for other in self.fields:
                mine, its = self.path_of(field), self.path_of(other)
                if mine != its and its[: len(mine)] == mine and field.type != "json":
                    raise ValueError(
                        f"{other.name} is inside {field.name}, so {field.name} must be json, not {field.type}"
                    )
        return self

    def _check_alias(self, field: SchemaField) -> None:
        path = self.path_of(field)
        if self.format is not PayloadFormat.SPARKPLUG_B or path[0] != "aliases":
            return
        if len(path) > 1 and _ALIAS.fullmatch(path[1]) is None:
            raise ValueError(f"{field.name} is at {'.'.join(path)}, but an alias is a number, such as aliases.7")

    @property
    def table(self) -> str:
        return f"silver_{self.name}"

    @property
    def pattern(self) -> str:
        """A regular expression for whole topics."""
        return "|".join(f"(?:{topic_pattern(topic)})" for topic in self.topics)

    def path_of(self, field: SchemaField) -> tuple[str, ...]:
        """The keys that lead to a field's value. Sparkplug B has metrics under their names."""
        if field.path is not None:
            return tuple(field.path)
        return ("metrics", field.name) if self.format is PayloadFormat.SPARKPLUG_B else (field.name,)

    def hint(self, path: Sequence[str]) -> str | None:
        return self.hints.get(".".join(path))

    def with_fields(self, added: Sequence[SchemaField]) -> MessageSchema:
        return self.model_copy(update={"fields": [*self.fields, *added]}) if added else self


def load_schemas(folder: Path) -> list[MessageSchema]:
    """All schemas of a folder. Raises `SettingsError` if one is invalid, two have the same name, or there are none."""
    found: dict[str, Path] = {}
    schemas: list[MessageSchema] = []
    for path in yaml_files(folder, what="message schemas"):
        schema = read_yaml(path, MessageSchema, what="schema")
        if schema.name in found:
            raise SettingsError(f"{path} and {found[schema.name]} both describe {schema.name}: give one another name")
        found[schema.name] = path
        schemas.append(schema)
    if not schemas:
        raise SettingsError(f"there is no *.yaml with a message schema in {folder}")
    return schemas


def known_type(text: str) -> str:
    """The type without spaces. Raises ValueError if silver tables have no such type."""
    plain = text.replace(" ", "").lower()
    scalar = _SCALAR.fullmatch(plain)
    if scalar is None and _ARRAY.fullmatch(plain) is None:
        raise ValueError(
            f"{text!r} is not a type of silver columns: string, boolean, int, bigint, float, double, decimal(p,s), "
            "timestamp, binary, json, or array<…> of string, boolean, int, bigint, double"
        )
    if scalar is not None and scalar.group(1) and not int(scalar.group(2)) <= int(scalar.group(1)) <= 38:
        raise ValueError(f"{text!r} has an invalid precision or scale: use decimal(p,s) with s ≤ p ≤ 38")
    return plain


def sql_type(type_: str) -> str:
    """The column's type in Spark; JSON is stored as text."""
    return "string" if type_ == "json" else type_


def quotable(key: str) -> bool:
    """Whether a key can be used in a path of Spark's variant functions."""
    return bool(key) and not ("'" in key and '"' in key) and "\\" not in key


def column_name(path: Sequence[str]) -> str:
    """A column name for a field without a name in the schema."""
    name = re.sub(r"\W+", "_", "_".join(path)).strip("_") or "field"
    return f"f_{name}" if name[0].isdigit() else name


def _member(kind: type[StrEnum], value: object) -> object:
    """Converts YAML text to an enum member, because a strict model accepts members only."""
    known = [member.value for member in kind]
    if isinstance(value, str) and not isinstance(value, kind):
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}")
        return kind(value)
    return value
