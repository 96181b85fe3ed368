"""Quality rules: a file defines what good rows are; this module turns it into column expressions that judge every row
of a batch.

`quality.suite` turns the same rules into a Great Expectations suite, and a property test checks that the two agree.
Both assume that NaN is a missing value, and that only `not_null` fails on a missing value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import Field, field_validator, model_validator
from pyspark.sql import Column
from pyspark.sql import functions as F

from broker_edge.errors import SettingsError
from pipelines.settings.yaml_file import Section, read_yaml, yaml_files
from pipelines.silver.schema import MessageSchema, sql_type
from sinks.tables.records import SILVER

MATCHED_MAX = 4_096
"""Maximum length of a text for a pattern match. Java's matcher recurses for each repetition of a group, and a text with
very many repetitions would end the job."""

_NUMBERS = ("int", "bigint", "float", "double")
_NOT_FOR_RULES = ("log_id", "ingest_date", "_rescued_data")
_ENVELOPE_TYPES = {field.name: field.type for field in SILVER.fields if field.name not in _NOT_FOR_RULES}


class Check(StrEnum):
    NOT_NULL = "not_null"
    BETWEEN = "between"
    IN_SET = "in_set"
    NOT_IN_SET = "not_in_set"
    MATCHES = "matches"
    LENGTH_BETWEEN = "length_between"
    AT_MOST_COLUMN = "at_most_column"


class OnFail(StrEnum):
    QUARANTINE = "quarantine"
    WARN = "warn"


# For each check: the settings it needs, and those it may have, besides the column.
_NEEDS: Mapping[Check, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Check.NOT_NULL: ((), ()),
    Check.BETWEEN: ((), ("min", "max")),
    Check.IN_SET: (("values",), ()),
    Check.NOT_IN_SET: (("values",), ()),
    Check.MATCHES: (("pattern",), ()),
    Check.LENGTH_BETWEEN: ((), ("min", "max")),
    Check.AT_MOST_COLUMN: (("other",), ()),
}

Value = str | int | float | bool


class Rule(Section):
    """One condition on one column. A row that breaks it goes to `quarantine`, or is only counted (`warn`)."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,80}$")
    column: str
    check: Check
    on_fail: OnFail = OnFail.WARN
    min: int | float | None = None
    max: int | float | None = None
    """Both ends are included."""
    values: list[Value] | None = Field(default=None, min_length=1, max_length=1_000)
    pattern: str | None = None
    """A regular expression for the whole text, in syntax that both Java and Python understand."""
    other: str | None = None
    """For at_most_column: the column that this one must not exceed."""

    @field_validator("check", mode="before")
    @classmethod
    def _check(cls, value: object) -> object:
        return Check(value) if isinstance(value, str) and value in set(Check) else value

    @field_validator("on_fail", mode="before")
    @classmethod
    def _on_fail(cls, value: object) -> object:
        return OnFail(value) if isinstance(value, str) and value in set(OnFail) else value

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Rule:
        needed, optional = _NEEDS[self.check]
        given = [name for name in ("min", "max", "values", "pattern", "other") if getattr(self, name) is not None]
        missing = next((name for name in needed if name not in given), None)
        if missing is not None:
            raise ValueError(f"{self.check} needs {missing}")
        idle = next((name for name in given if name not in needed + optional), None)
        if idle is not None:
            raise ValueError(f"{self.check} does not use {idle}")
        if optional and not given:
            raise ValueError(f"{self.check} needs one of {', '.join(optional)}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Rules(Section):
    """One file of `conf/quality`: the rules of one message schema."""

    message: str
    rules: list[Rule]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Rules:
        names = [rule.name for rule in self.rules]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two rules are named {twice}")
        return self


def load_rules(folder: Path | None, schemas: Sequence[MessageSchema]) -> dict[str, Rules]:
    """The rules by message schema. Raises `SettingsError` if a file is invalid or uses something its schema does not
    have."""
    found: dict[str, Rules] = {}
    by_name = {schema.name: schema for schema in schemas}
    for path in yaml_files(folder, what="quality rules") if folder is not None else []:
        rules = read_yaml(path, Rules, what="rules")
        schema = by_name.get(rules.message)
        if schema is None:
            raise SettingsError(f"{path} has rules for {rules.message}, but no message schema has that name")
        if rules.message in found:
            raise SettingsError(f"{path} is the second file with rules for {rules.message}: move them to the first")
        types = column_types(schema)
        for rule in rules.rules:
            problem = misuse(rule, types)
            if problem is not None:
                raise SettingsError(f"{path}: rule {rule.name}: {problem}")
        found[rules.message] = rules
    return found


def column_types(schema: MessageSchema) -> dict[str, str]:
    """The columns that rules may use: those of the envelope and those that the schema declares."""
    return _ENVELOPE_TYPES | {field.name: sql_type(field.type) for field in schema.fields if not field.inferred}


def misuse(rule: Rule, types: Mapping[str, str]) -> str | None:
    """Why the rule cannot be applied to a table with these columns, or None."""
    for column in filter(None, (rule.column, rule.other)):
        if column not in types:
            return f"there is no column {column}: declare it as a field of the schema first"
    type_ = types[rule.column]
    match rule.check:
        case Check.BETWEEN if type_ not in _NUMBERS:
            return f"between is for numbers, but {rule.column} is {type_}"
        case Check.MATCHES | Check.LENGTH_BETWEEN if type_ != "string":
            return f"{rule.check} is for texts, but {rule.column} is {type_}"
        case Check.IN_SET | Check.NOT_IN_SET:
            return _strange_value(rule, type_)
        case Check.AT_MOST_COLUMN:
            other = types[rule.other or ""]
            if type_ != other and not {type_, other} <= set(_NUMBERS):
                return f"{rule.column} is {type_} and {rule.other} is {other}: they cannot be compared"
    return None


def _strange_value(rule: Rule, type_: str) -> str | None:
    kinds: Mapping[str, tuple[type, ...]] = {
        "string": (str,),
        "boolean": (bool,),
        "int": (int,),
        "bigint": (int,),
        "float": (int, float),
        "double": (int, float),
    }
    if type_ not in kinds:
        return f"{rule.check} is for texts, numbers and booleans, but {rule.column} is {type_}"
    for value in rule.values or []:
        if not isinstance(value, kinds[type_]) or (isinstance(value, bool) and type_ != "boolean"):
            return f"{value!r} is not a valid {type_}"
    return None


def broken(rule: Rule, types: Mapping[str, str]) -> Column:
    """Whether a row breaks the rule; never null."""
    value = _value(rule.column, types)
    match rule.check:
        case Check.NOT_NULL:
            return value.isNull()
        case Check.BETWEEN:
            kept = _within(value, rule)
        case Check.IN_SET:
            kept = value.isin(list(rule.values or []))
        case Check.NOT_IN_SET:
            kept = ~value.isin(list(rule.values or []))
        case Check.MATCHES:
            kept = value.rlike(matching(rule.pattern or "", end=r"\z"))
        case Check.LENGTH_BETWEEN:
            kept = _within(F.char_length(value), rule)
        case Check.AT_MOST_COLUMN:
            kept = value <= _value(rule.other or "", types)
    # A missing value breaks no other rule.
    return F.coalesce(~kept, F.lit(False))


def matching(pattern: str, *, end: str) -> str:
    """The regular expression for a whole text of at most `MATCHED_MAX` characters. `end` is the language's notation for
    the end of a text."""
    return rf"\A(?=(?s:.{{0,{MATCHED_MAX}}}){end})(?:{pattern}){end}"


def breach(rule: Rule, types: Mapping[str, str]) -> Column:
    """The reason for `quarantine` if a row breaks the rule, otherwise null."""
    # Bytes as text need not be UTF-8, and a reader of the reason may then refuse the whole table.
    text = F.make_valid_utf8(F.col(f"`{rule.column}`").cast("string"))
    shown = F.coalesce(F.substring(text, 1, 60), F.lit("null"))
    sentence = F.concat(F.lit(f"rule {rule.name}: {rule.column} is "), shown, F.lit(f", not {_promise(rule)}"))
    return F.when(broken(rule, types), sentence)


def _promise(rule: Rule) -> str:
    match rule.check:
        case Check.NOT_NULL:
            return "a value"
        case Check.BETWEEN | Check.LENGTH_BETWEEN:
            low = "" if rule.min is None else f" from {rule.min}"
            high = "" if rule.max is None else f" up to {rule.max}"
            return ("a length" if rule.check is Check.LENGTH_BETWEEN else "a number") + low + high
        case Check.IN_SET:
            return "one of the allowed values"
        case Check.NOT_IN_SET:
            return "a value other than the forbidden ones"
        case Check.MATCHES:
            return f"a match of {rule.pattern}"
        case Check.AT_MOST_COLUMN:
            return f"at most {rule.other}"


def _value(column: str, types: Mapping[str, str]) -> Column:
    value = F.col(f"`{column}`")
    return F.when(~F.isnan(value), value) if types[column] in ("float", "double") else value


def _within(value: Column, rule: Rule) -> Column:
    low = F.lit(True) if rule.min is None else value >= F.lit(rule.min)
    high = F.lit(True) if rule.max is None else value <= F.lit(rule.max)
    return low & high
