"""Parsers of option values: numbers, times, filters, positions and references. An error names the option and never
repeats a value that may be a secret. `options` defines which options exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar

from broker_edge.errors import OffsetError, OptionError
from sources.offsets import Place, SourceOffset, is_offset, read_logs

# After the year 2200 in milliseconds: the value is probably in microseconds.
_TIMESTAMP_MS_MAX = 7_258_118_400_000

_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,15})\s*([a-z]*)", re.ASCII)
# Checked before int(), which raises for strings of several thousand digits. No option needs more digits.
_DIGITS_MAX = 18


def servers_value(value: str | None) -> tuple[str, ...]:
    servers = tuple(_lower_scheme(part.strip()) for part in (value or "").split(",") if part.strip())
    if not servers:
        raise OptionError(
            "option servers is missing: give the Flight address of a broker, such as grpc://127.0.0.1:8815"
        )
    if "@" in "".join(servers):
        raise OptionError("option servers has a user or a password in it: write grpc://host:port, see docs/security.md")
    nodes = [node for server in servers for node in _nodes(server)]
    if len(set(nodes)) != len(nodes):
        raise OptionError(f"option servers names a broker twice: {value}")
    return servers


def _nodes(server: str) -> list[str]:
    """The nodes of a cluster, `grpc://host:port/host:port`, or a broker alone."""
    scheme, _, places = server.partition("://")
    for place in places.split("/"):
        host, _, port = place.rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65_536
        if scheme not in ("grpc", "grpc+tls") or not host or not is_port:
            raise OptionError(
                f"server {server} is not an address of the form grpc://host:port or grpc+tls://host:port, or for the "
                "nodes of a cluster grpc://host:port/host:port/host:port"
            )
    return [f"{scheme}://{place}" for place in places.split("/")]


def _lower_scheme(server: str) -> str:
    scheme, separator, place = server.rpartition("://")
    return f"{scheme.lower()}{separator}{place}"


def filters_value(value: str) -> tuple[str, ...]:
    filters = tuple(part.strip() for part in value.split(",") if part.strip())
    if not filters:
        raise OptionError("option subscribe is empty: give topics or filters, such as devices/+/telemetry")
    for one in filters:
        levels = one.split("/")
        misplaced = any("#" in level and (level != "#" or at != len(levels) - 1) for at, level in enumerate(levels))
        if misplaced or any("+" in level and level != "+" for level in levels) or "\0" in one:
            raise OptionError(f"{one} is not an MQTT filter: + and # stand for whole levels, and # only at the end")
    return tuple(sorted(set(filters)))


def pattern_value(value: str) -> str:
    """A regular expression for whole topics. The broker makes the final check of its syntax."""
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(f"option subscribePattern is not a regular expression: {error}") from error
    if not value:
        raise OptionError("option subscribePattern is empty: give a regular expression such as devices/.*/telemetry")
    return value


def assign_value(value: str) -> dict[str, tuple[int, ...]]:
    wrong = OptionError(f'option assign is JSON of the form {{"<log id>": [3, 4]}}, not {value}')
    try:
        logs = json.loads(value)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(logs, dict) or not logs:
        raise wrong
    for partitions in logs.values():
        if not (isinstance(partitions, list) and partitions and all(type(number) is int for number in partitions)):
            raise wrong
    return {log_id: tuple(sorted(set(partitions))) for log_id, partitions in sorted(logs.items())}


def log_ids_value(value: str | None) -> tuple[str, ...]:
    return tuple(sorted({part.strip() for part in (value or "").split(",") if part.strip()}))


def places_value(name: str, text: str) -> dict[str, dict[int, Place]]:
    """`{"<log id>":{"<partition>":17}}`, or `[17, epoch]` in place of 17, or a complete offset copied from a
    checkpoint."""
    form = f'option {name} is earliest, latest or JSON of the form {{"<log id>": {{"<partition>": 17}}}}'
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(f"{form}, not {text:.200}") from None
    try:
        if is_offset(value):
            return {log_id: dict(places) for log_id, places in SourceOffset.from_json(value).logs.items()}
        if isinstance(value, dict):
            value = {log_id: _pairs(name, places) for log_id, places in value.items()}
        return read_logs(value)
    except (OffsetError, RecursionError) as error:
        raise OptionError(f"{form}: {error}") from error


def _pairs(name: str, places: object) -> object:
    """Numbers as pairs without an epoch. Kafka's -2 (earliest) and -1 (latest): the one that equals the default for
    unnamed partitions is treated as unnamed, the other one is refused."""
    if not isinstance(places, dict):
        return places
    unnamed = -2 if name.startswith("starting") else -1
    if -3 - unnamed in places.values():
        word = "latest" if unnamed == -2 else "earliest"
        raise OptionError(f"option {name}: {word} ({-3 - unnamed}) is not possible for single partitions; use offsets")
    return {
        number: [place, None] if type(place) is int else place for number, place in places.items() if place != unnamed
    }


def time_us_value(name: str, text: str) -> int:
    """Unix milliseconds, as in Kafka, or ISO 8601 with a time zone."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        if len(text) > _DIGITS_MAX or int(text) > _TIMESTAMP_MS_MAX:
            raise OptionError(f"option {name} is in milliseconds since 1970, and {text} is after the year 2200")
        return int(text) * 1_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"option {name} is in milliseconds since 1970 or a time such as 2026-11-21T13:00:00Z, not {text}"
        ) from None
    if moment.tzinfo is None:
        raise OptionError(f"option {name} needs a time zone: {text}Z for UTC")
    try:
        return max(0, microseconds(moment))
    except OverflowError:
        raise OptionError(f"option {name} is before the year 1 or after the year 9999 in UTC: {text}") from None


def microseconds(moment: datetime) -> int:
    """Unix time of a moment with a time zone, computed in integers to avoid rounding."""
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


Default = TypeVar("Default", int, None)


def duration_ms_value(values: Mapping[str, str], name: str, default: Default) -> int | Default:
    """`15m`, `30s`, `500ms`; a bare number is milliseconds, as in Spark."""
    text = values.get(name)
    if text is None:
        return default
    found = _DURATION.fullmatch(text.strip().lower())
    unit = None if found is None else _UNIT_MS.get(found[2] or "ms")
    if found is None or unit is None:
        raise OptionError(f"option {name} is a time such as 30s, 15m or 500ms, not {text}")
    return int(int(found[1]) * unit)


def flag_value(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text}")
    return text.lower() == "true"


def word_value(values: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of `words`, in any case; the first is the default."""
    text = values.get(name, words[0])
    if text.lower() not in words:
        raise OptionError(f"option {name} is {' or '.join(words)}, not {text}")
    return text.lower()


def count_value(values: Mapping[str, str], name: str, *, at_least: int = 1) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) >= at_least):
        kind = "a positive whole number" if at_least else "a whole number"
        raise OptionError(f"option {name} is {kind}, not {text}")
    return int(text)


def group_value(text: str | None) -> str | None:
    if text is not None and not (0 < len(text) <= 200 and text.isprintable() and not set(text) & set("/+#")):
        raise OptionError(f"option consumerGroup is up to 200 characters without / + #, not {text!r}")
    return text


def reference_value(name: str, text: str | None) -> str | None:
    """A reference to a secret. The error does not repeat any other value: it may be the secret itself."""
    if text is None:
        return None
    kind, _, place = text.partition(":")
    if kind not in ("env", "file", "secret") or not place:
        raise OptionError(
            f"option {name} is a reference, file:PATH, env:NAME or on Databricks secret:SCOPE/KEY; "
            "put the secret there and not into the options"
        )
    return text
