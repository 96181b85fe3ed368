"""Options of `format("headwater")`, in Kafka's words. Parsing only: nothing is connected to, no credential is read.

An option is taken, or refused by name; none is ignored. Two departures from Kafka, both so that nothing is lost
unseen: a stream begins at `earliest` unless told otherwise, and a start that moves with time (`latest`,
`startingTimestamp`) needs a `consumerGroup` to keep it, because Spark asks for the start again when it replays the
first batch.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from sources.errors import OffsetError, OptionError
from sources.offsets import FORMAT_VERSION, Place, read_logs

OPTION_NAMES = (
    "servers",
    "subscribe",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "includeHeaders",
    "consumerGroup",
    "pollTimeoutMs",
    "token",
)
NOT_YET = ("subscribePattern", "minOffsetsPerTrigger", "maxTriggerDelay")
"""Options whose names are fixed and whose work is not done."""

ONLY_STREAM = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
ONLY_BATCH = ("endingOffsets", "endingTimestamp")

POLL_TIMEOUT_MS_DEFAULT = 120_000
"""How long a task waits for a broker that went away while it was read from. Kafka's default."""

# Past the year 2200 in milliseconds: somebody passed microseconds.
_TIMESTAMP_MS_MAX = 7_258_118_400_000


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: `earliest`, `latest`, the first record at or after `time_us`, or named `places`."""

    kind: Literal["earliest", "latest", "time", "places"]
    time_us: int | None = None
    places: Mapping[str, Mapping[int, Place]] = field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether asking again later may give another place."""
        return self.kind in ("latest", "time")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one DataFrame. `filters` and `assign` exclude each other; `assign` is log id to partitions."""

    servers: tuple[str, ...]
    filters: tuple[str, ...] | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    starting: Bound = Bound("earliest")
    ending: Bound = Bound("latest")
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    include_headers: bool = False
    consumer_group: str | None = None
    poll_timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT
    token: str | None = None
    given: frozenset[str] = frozenset()

    @property
    def what(self) -> str:
        """What is read, for messages."""
        return ", ".join(self.filters) if self.filters is not None else f"partitions {json.dumps(self.assign)}"

    def require_stream(self) -> None:
        """Refuses what makes no sense in a stream."""
        for name in ONLY_BATCH:
            if name in self.given:
                raise OptionError(f"option {name} is for batch reads: a stream has no end; remove it or use spark.read")
        if self.starting.moves and self.consumer_group is None:
            name = "startingTimestamp" if self.starting.kind == "time" else "startingOffsets=latest"
            raise OptionError(
                f"{name} in a stream needs option consumerGroup, which keeps the start for a replay of the "
                f"first batch: "
                "name a group, or use startingOffsets=earliest"
            )

    def require_batch(self) -> None:
        """Refuses what makes no sense in a batch read."""
        for name in ONLY_STREAM:
            if name in self.given:
                raise OptionError(f"option {name} is for streams: remove it or use spark.readStream")
        if self.starting.kind == "latest":
            raise OptionError("startingOffsets=latest in a batch read would read nothing: use earliest or offsets")


def parse_options(raw: Mapping[str, str]) -> SourceOptions:
    """Turns Spark's text options into values; `OptionError` names the first that is wrong."""
    known = {name.lower(): name for name in OPTION_NAMES}
    values: dict[str, str] = {}
    for given, value in raw.items():
        name = known.get(given.lower())
        if name is None:
            raise OptionError(_unknown(given))
        values[name] = value
    if "subscribe" in values and "assign" in values:
        raise OptionError("options subscribe and assign exclude each other: give one of them")
    if "subscribe" not in values and "assign" not in values:
        raise OptionError("option subscribe is missing: give topics or filters, such as devices/+/telemetry")
    return SourceOptions(
        servers=_servers(values.get("servers")),
        filters=_filters(values["subscribe"]) if "subscribe" in values else None,
        assign=_assign(values["assign"]) if "assign" in values else None,
        starting=_bound(values, "starting", "earliest"),
        ending=_bound(values, "ending", "latest"),
        fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
        max_offsets_per_trigger=_positive(values, "maxOffsetsPerTrigger"),
        max_bytes_per_trigger=_positive(values, "maxBytesPerTrigger"),
        min_partitions=_positive(values, "minPartitions"),
        include_headers=_flag(values, "includeHeaders", default=False),
        consumer_group=_group(values.get("consumerGroup")),
        poll_timeout_ms=_positive(values, "pollTimeoutMs") or POLL_TIMEOUT_MS_DEFAULT,
        token=_reference(values.get("token")),
        given=frozenset(values),
    )


def _unknown(given: str) -> str:
    later = {name.lower(): name for name in NOT_YET}.get(given.lower())
    if later is not None:
        return f"option {later} is not supported yet: remove it"
    if given.lower() == "path":
        return "the source headwater has no path: name brokers with option servers and topics with option subscribe"
    lowered = {name.lower(): name for name in OPTION_NAMES}
    near = difflib.get_close_matches(given.lower(), list(lowered), n=1, cutoff=0.0)
    return f"unknown option {given} of the source headwater: did you mean {lowered[near[0]]}?"


def _servers(value: str | None) -> tuple[str, ...]:
    servers = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    if not servers:
        raise OptionError(
            "option servers is missing: give the Flight address of a broker, such as grpc://127.0.0.1:8815"
        )
    for server in servers:
        scheme, _, place = server.partition("://")
        host, _, port = place.rpartition(":")
        if scheme == "grpc+tls":
            raise OptionError(f"server {server}: TLS is not supported yet, use grpc://host:port")
        if scheme != "grpc" or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise OptionError(f"server {server} is not an address of the form grpc://host:port")
    if len(set(servers)) != len(servers):
        raise OptionError(f"option servers names a broker twice: {value}")
    return servers


def _filters(value: str) -> tuple[str, ...]:
    filters = tuple(part.strip() for part in value.split(",") if part.strip())
    if not filters:
        raise OptionError("option subscribe is empty: give topics or filters, such as devices/+/telemetry")
    for one in filters:
        levels = one.split("/")
        misplaced = any("#" in level and (level != "#" or at != len(levels) - 1) for at, level in enumerate(levels))
        if misplaced or any("+" in level and level != "+" for level in levels) or "\0" in one:
            raise OptionError(f"{one} is not an MQTT filter: + and # stand for whole levels, and # only at the end")
    return tuple(sorted(set(filters)))


def _assign(value: str) -> dict[str, tuple[int, ...]]:
    wrong = OptionError(f'option assign is JSON of the form {{"<log id>": [3, 4]}}, not {value}')
    try:
        logs = json.loads(value)
    except ValueError:
        raise wrong from None
    if not isinstance(logs, dict) or not logs:
        raise wrong
    for partitions in logs.values():
        if not (isinstance(partitions, list) and partitions and all(type(number) is int for number in partitions)):
            raise wrong
    return {log_id: tuple(sorted(set(partitions))) for log_id, partitions in sorted(logs.items())}


def _bound(values: Mapping[str, str], which: str, default: Literal["earliest", "latest"]) -> Bound:
    offsets, timestamp = values.get(f"{which}Offsets"), values.get(f"{which}Timestamp")
    if offsets is not None and timestamp is not None:
        raise OptionError(f"options {which}Offsets and {which}Timestamp exclude each other: give one of them")
    if timestamp is not None:
        return Bound("time", time_us=_time_us(f"{which}Timestamp", timestamp))
    word = default if offsets is None else offsets.strip()
    if word.lower() == "latest":
        return Bound("latest")
    if word.lower() == "earliest":
        if which == "ending":
            raise OptionError("endingOffsets=earliest would read nothing: use latest or offsets")
        return Bound("earliest")
    return Bound("places", places=_places(f"{which}Offsets", word))


def _places(name: str, text: str) -> dict[str, dict[int, Place]]:
    """`{"<log id>":{"<partition>":17}}`, with `[17, epoch]` for 17, or a whole offset as it stands in a checkpoint."""
    form = f'option {name} is earliest, latest or JSON of the form {{"<log id>": {{"<partition>": 17}}}}'
    try:
        value = json.loads(text)
    except ValueError:
        raise OptionError(f"{form}, not {text}") from None
    if isinstance(value, dict) and set(value) == {"v", "logs"} and value["v"] == FORMAT_VERSION:
        value = value["logs"]
    try:
        if isinstance(value, dict):
            value = {
                log_id: {p: [place, None] if type(place) is int else place for p, place in places.items()}
                if isinstance(places, dict)
                else places
                for log_id, places in value.items()
            }
        return read_logs(value)
    except OffsetError as error:
        raise OptionError(f"{form}: {error}") from error


def _time_us(name: str, text: str) -> int:
    """Unix milliseconds, as with Kafka, or ISO 8601 with a zone."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        if int(text) > _TIMESTAMP_MS_MAX:
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
    seconds = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (seconds.days * 86_400 + seconds.seconds) * 1_000_000 + seconds.microseconds)


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text}")
    return text.lower() == "true"


def _positive(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise OptionError(f"option {name} is a positive whole number, not {text}")
    return int(text)


def _group(text: str | None) -> str | None:
    if text is not None and not (0 < len(text) <= 200 and text.isprintable() and not set(text) & set("/+#")):
        raise OptionError(f"option consumerGroup is up to 200 characters without / + #, not {text!r}")
    return text


def _reference(text: str | None) -> str | None:
    if text is None:
        return None
    if text.startswith("secret:"):
        raise OptionError("option token: secret references are not supported yet, use env:NAME or file:PATH")
    if not text.startswith(("env:", "file:")) or text in ("env:", "file:"):
        # The value itself is not repeated: it may be a token.
        raise OptionError(
            "option token is a reference, env:NAME or file:PATH; a token itself does not belong into options"
        )
    return text
