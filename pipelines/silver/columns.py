"""A message schema as Spark column expressions: the value of each field, its problems, and the fields without a name in
the schema.

Payloads are parsed once into a variant, so values keep their original types, and a wrong value can be told from a
missing one. Expressions only: this module runs no job and knows no table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipelines.silver.schema import EventTime, Evolution, MessageSchema, PayloadFormat, SchemaField, TimeUnit

PAYLOAD = "_payload"
"""The column with the payload as a variant; null if it could not be parsed."""

IS_LONG = "_is_long"
"""The column that says whether the payload is longer, as JSON, than `_SHORT_BYTES`."""

_SHORT_BYTES = 2 * 1024

NOT_JSON = "the payload is not JSON, or has a key twice"

Path = tuple[str, ...]

ALIASES: Path = ("aliases",)
"""Where Sparkplug B payloads have the metrics that arrived with an alias only."""
_ALIASES_SHOWN = 10
_KIND_MAX = 64
"""Characters of a type name, enough for every scalar. The type of an object names all its keys, which may be as long as
the payload."""

# Results of `_kind` that a column of the type accepts. Numbers that do not fit are detected later.
_NUMBER = r"BIGINT|DOUBLE|FLOAT|DECIMAL\(.*\)"
_TAKES: Mapping[str, str] = {
    "string": "STRING",
    "binary": "STRING",
    "boolean": "BOOLEAN",
    "int": "BIGINT",
    "bigint": "BIGINT",
    "float": _NUMBER,
    "double": _NUMBER,
    "decimal": _NUMBER,
    "json": ".*",
}

_MICROS = {TimeUnit.S: 1_000_000, TimeUnit.MS: 1_000, TimeUnit.US: 1}
_TIME_MAX_US = 253_402_300_799_999_999
"""The end of the year 9999, the latest timestamp of Spark and Arrow."""
_TIME_MIN, _TIME_MAX = "1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"

_ENVELOPE_PATHS: Mapping[PayloadFormat, tuple[Path, ...]] = {
    PayloadFormat.SPARKPLUG_B: (("timestamp",), ("seq",), ("uuid",), ("body",), ("metrics",), ALIASES),
}
"""Keys that the format itself adds besides the fields: not new fields, and not columns unless the schema names them."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """An object of the payload whose keys are examined: `path` leads to it, `known` are the keys that the schema
    uses."""

    path: Path
    known: tuple[str, ...]


def parsed(json: Column) -> Column:
    """The payload as a variant."""
    return F.try_parse_json(json)


def is_long(json: Column) -> Column:
    return F.octet_length(json) > _SHORT_BYTES


def payload_problem(problem: Column) -> Column:
    """The problem with the payload as a whole, or null."""
    is_object = _is_object(F.col(PAYLOAD))
    return F.when(problem.isNotNull(), problem).when(~is_object, F.lit("the payload is not a JSON object"))


def field_value(schema: MessageSchema, field: SchemaField) -> Column:
    """The field's value in its type; null if it is missing or has another type."""
    path = schema.path_of(field)
    return F.when(_kind_at(path).rlike(_takes(field.type)), _typed(path, field))


def field_problem(schema: MessageSchema, field: SchemaField) -> Column:
    """The problem with the field, or null. An inferred field has no problems: values of other types are rescued."""
    if field.inferred:
        return F.lit(None).cast("string")
    path = schema.path_of(field)
    found = _at(path, "variant")
    kind = _kind_at(path)
    shown = ".".join(path)
    missing = _missing(schema, path) if field.required else F.lit(None).cast("string")
    return (
        F.when(_is_missing(found), missing)
        .when(~kind.rlike(_takes(field.type)), F.concat(F.lit(f"{shown} must be {field.type}, not "), _told(kind)))
        .when(_typed(path, field).isNull(), F.lit(f"{shown} is not a valid {field.type}, or does not fit"))
    )


def _missing(schema: MessageSchema, path: Path) -> Column:
    """The problem of a missing required value. With Sparkplug B it lists the metrics without a name, one of which may
    be it."""
    said = F.lit(f"{'.'.join(path)} is missing")
    if schema.format is not PayloadFormat.SPARKPLUG_B or path[0] != "metrics":
        return said
    numbers = F.map_keys(unnamed(_prefix(schema, ALIASES)))
    listed = F.concat_ws(", ", F.slice(numbers, 1, _ALIASES_SHOWN))
    more = F.when(F.size(numbers) > _ALIASES_SHOWN, F.lit(", …")).otherwise(F.lit(""))
    by_alias = F.concat(said, F.lit(", and metrics arrived with only an alias: "), listed, more)
    return F.when(F.size(numbers) > 0, by_alias).otherwise(said)


def event_time(time: EventTime | None, otherwise: Column) -> Column:
    """The time of the measurement according to the payload, otherwise the time at which the broker received it."""
    if time is None:
        return otherwise
    return F.coalesce(_moment(tuple(time.path), time.unit), otherwise)


def time_problem(time: EventTime | None) -> Column:
    if time is None:
        return F.lit(None).cast("string")
    found = _at(tuple(time.path), "variant")
    shown = ".".join(time.path)
    missing = F.lit(f"{shown} is missing") if time.required else F.lit(None).cast("string")
    wanted = "an ISO 8601 time" if time.unit is TimeUnit.ISO else f"a time in {time.unit} since 1970"
    return F.when(_is_missing(found), missing).when(
        _moment(tuple(time.path), time.unit).isNull(),
        F.concat(F.lit(f"{shown} must be {wanted}, not "), _told(_kind_at(tuple(time.path)))),
    )


def prefixes(schema: MessageSchema) -> list[Prefix]:
    """The objects of a payload that are searched for unnamed keys, outermost first."""
    paths = _named_paths(schema)
    objects = {path[:depth] for path in paths for depth in range(len(path))} | {()}
    if schema.format is PayloadFormat.SPARKPLUG_B:
        objects |= {("metrics",), ALIASES}
    # If a field takes an object as a whole, no key of it is left to examine.
    objects -= {schema.path_of(field) for field in schema.fields}
    return [_prefix(schema, one) for one in sorted(objects, key=lambda path: (len(path), path))]


def new_column_prefixes(schema: MessageSchema) -> list[Prefix]:
    """The prefixes whose unnamed keys are subject to the schema's evolution."""
    found = prefixes(schema)
    if schema.format is PayloadFormat.SPARKPLUG_B and schema.evolution is Evolution.ADD_NEW_COLUMNS:
        # An alias has another meaning at each edge node, so it cannot become a column: it is rescued.
        return [one for one in found if one.path != ALIASES]
    return found


def _prefix(schema: MessageSchema, below: Path) -> Prefix:
    depth = len(below)
    keys = {path[depth] for path in _named_paths(schema) if len(path) > depth and path[:depth] == below}
    return Prefix(below, tuple(sorted(keys)))


def _named_paths(schema: MessageSchema) -> list[Path]:
    """The paths in use: the fields, the time, and the keys that the format itself adds."""
    time = [tuple(schema.time.path)] if schema.time is not None else []
    return [*(schema.path_of(field) for field in schema.fields), *time, *_ENVELOPE_PATHS.get(schema.format, ())]


def unnamed(prefix: Prefix) -> Column:
    """`map<string, variant>` of the keys below `prefix` that the schema does not name; null if it is not an object."""
    values = _at(prefix.path, "map<string,variant>")
    known = F.array(*[F.lit(key) for key in prefix.known]).cast("array<string>")
    return F.map_filter(values, lambda key, value: ~F.array_contains(known, key) & ~_is_missing(value))


def unnamed_kinds(prefix: Prefix) -> Column:
    """`array<struct<key, kind>>` of the keys of `unnamed`: names, and original types or the beginning of their
    names."""
    return F.transform(
        F.map_entries(unnamed(prefix)),
        lambda entry: F.struct(
            entry["key"].alias("key"), F.substring(_kind(entry["value"]), 1, _KIND_MAX).alias("kind")
        ),
    )


def rescued(schema: MessageSchema) -> Column:
    """`_rescued_data`: a JSON object of values without a column, and of those that do not fit an inferred column; or
    null.

    Its keys are paths joined by dots. A dot within a key is written as `\\.`, so different paths have different keys.
    """
    if schema.evolution is Evolution.NONE:
        return F.lit(None).cast("string")
    empty = F.map_from_arrays(F.array().cast("array<string>"), F.array().cast("array<variant>"))
    parts: list[Column] = []
    for prefix in prefixes(schema):
        parts.append(F.transform_keys(unnamed(prefix), _key_below(prefix.path)))
        if prefix.path:
            parts.append(_unless(prefix.path, "^OBJECT"))
    parts += [_unless(schema.path_of(field), _takes(field.type)) for field in schema.fields if field.inferred]
    whole = F.map_concat(*[F.coalesce(part, empty) for part in parts])
    return F.when(F.size(whole) > 0, F.to_json(whole))


def inferred_type(kinds: Sequence[str]) -> str:
    """The column type for values of these original types: numbers become numbers, non-scalars become JSON."""
    if all(kind == "BIGINT" for kind in kinds):
        return "bigint"
    if all(re.fullmatch(_NUMBER, kind) for kind in kinds):
        return "double"
    if all(kind == "BOOLEAN" for kind in kinds):
        return "boolean"
    return "string" if all(kind == "STRING" for kind in kinds) else "json"


def _at(path: Path, kind: str) -> Column:
    """The value at a path in a given type, or null."""
    return F.try_variant_get(F.col(PAYLOAD), "$" + "".join(f"[{_quoted(key)}]" for key in path), kind)


def _quoted(key: str) -> str:
    return f'"{key}"' if "'" in key else f"'{key}'"


def kinds(schema: MessageSchema) -> list[Column]:
    """The original types of the values that the other columns are about. Select them first: each costs more than what
    is made of it, and is used several times."""
    time = [tuple(schema.time.path)] if schema.time is not None else []
    below = [one.path for one in prefixes(schema) if one.path]
    paths = sorted({*(schema.path_of(field) for field in schema.fields), *time, *below})
    return [_kind(_at(path, "variant")).alias(_kind_name(path)) for path in paths]


def _kind_at(path: Path) -> Column:
    return F.col(_kind_name(path))


def _kind_name(path: Path) -> str:
    """Keys may have any characters, and the names of columns may not."""
    return f"_kind_{json.dumps(path).encode().hex()}"


def _kind(value: Column) -> Column:
    """The original type, in the words of `schema_of_variant`. In a long payload an object is OBJECT without its keys,
    and an array of objects or arrays is ARRAY<OBJECT>.

    `schema_of_variant` merges the keys of all objects in an array, again for each of them: one payload of a megabyte
    took minutes. In short payloads it is the cheapest way.
    """
    is_nested = F.exists(
        F.try_variant_get(value, "$", "array<variant>"), lambda one: F.substring(F.to_json(one), 1, 1).isin("{", "[")
    )
    return (
        F.when(F.col(IS_LONG) & _is_object(value), F.lit("OBJECT"))
        .when(F.col(IS_LONG) & is_nested, F.lit("ARRAY<OBJECT>"))
        .otherwise(F.schema_of_variant(value))
    )


def _is_object(value: Column) -> Column:
    return F.try_variant_get(value, "$", "map<string,variant>").isNotNull()


def _is_missing(value: Column) -> Column:
    """Missing, or JSON null."""
    return value.isNull() | F.is_variant_null(value)


def _told(kind: Column) -> Column:
    """A type for use in a sentence: `object` without its contents."""
    return F.lower(F.regexp_extract(kind, "^[A-Z]+", 0))


def _takes(type_: str) -> str:
    """A pattern for the original types that a column of the type accepts."""
    if type_.startswith("array<"):
        return f"^ARRAY<(VOID|{_TAKES[type_[6:-1]]})>$"
    if type_ == "timestamp":
        return f"^(STRING|{_NUMBER})$"
    return f"^({_TAKES[type_.partition('(')[0]]})$"


def _typed(path: Path, field: SchemaField) -> Column:
    match field.type:
        case "timestamp":
            return _moment(path, TimeUnit(field.unit) if field.unit in set(TimeUnit) else TimeUnit.ISO)
        case "binary":
            return F.try_to_binary(_at(path, "string"), F.lit("base64"))
        case "json":
            return F.to_json(_at(path, "variant"))
        case "float" | "double":
            return _finite(_at(path, field.type))
        case "array<double>":
            found = _at(path, field.type)
            return F.when(F.forall(found, lambda one: one.isNull() | _finite(one).isNotNull()), found)
        case _:
            return _at(path, field.type)


def _finite(number: Column) -> Column:
    """The number, or null if it exceeds the type: 1e999 would become infinity, and so would every average over it."""
    return F.when(F.abs(number) < F.lit(float("inf")), number)


def _moment(path: Path, unit: TimeUnit) -> Column:
    """A timestamp, or null if the value is not one or lies before 1970 or after 9999."""
    kind = _kind_at(path)
    if unit is TimeUnit.ISO:
        moment = F.when(kind == "STRING", F.try_to_timestamp(_at(path, "string")))
        return F.when(moment.between(F.lit(_TIME_MIN).cast("timestamp"), F.lit(_TIME_MAX).cast("timestamp")), moment)
    number = F.when(kind.rlike(f"^({_NUMBER})$"), _at(path, "decimal(29,9)"))
    micros = F.floor(number / 1_000) if unit is TimeUnit.NS else F.floor(number * _MICROS[unit])
    return F.when(micros.between(0, _TIME_MAX_US), F.timestamp_micros(micros.cast("bigint")))


def _key_below(path: Path) -> Callable[[Column, Column], Column]:
    """A function that turns the key of an entry below `path` into a dotted path."""

    def dotted(key: Column, _: Column) -> Column:
        escaped = F.replace(F.replace(key, F.lit("\\"), F.lit("\\\\")), F.lit("."), F.lit("\\."))
        return F.concat(F.lit(_dotted(path) + "."), escaped) if path else escaped

    return dotted


def _dotted(path: Path) -> str:
    return ".".join(key.replace("\\", "\\\\").replace(".", "\\.") for key in path)


def _unless(path: Path, but: str) -> Column:
    """The value at a path as a map with one entry; empty if it is missing or has one of these types."""
    found = _at(path, "variant")
    is_other = ~_is_missing(found) & ~_kind_at(path).rlike(but)
    return F.when(is_other, F.create_map(F.lit(_dotted(path)), found))
