"""Options of `format("headwater")`, named as in Kafka. Only parses them: opens no connection and reads no credential.

Every option is either used or refused by name; none is ignored. Two defaults differ from Kafka, both to prevent
unnoticed loss: a stream starts at `earliest` by default, and a start that moves with time (`latest`,
`startingTimestamp`) needs a `consumerGroup` to store it, because Spark asks for the start again when it replays the
first batch.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from broker_edge.errors import OptionError
from broker_edge.server_address import nodes_of
from sources.access import CREDENTIAL_NAMES, TLS_NAMES, Access, access_by_server, common_access
from sources.offsets import Place
from sources.option_values import (
    assign_value,
    count_value,
    duration_ms_value,
    filters_value,
    flag_value,
    group_value,
    log_ids_value,
    pattern_value,
    places_value,
    servers_value,
    time_us_value,
    word_value,
)

OPTION_NAMES = (
    "servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "failOnDataLoss",
    "retireLogs",
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "maxClockSetBack",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "consumerGroup",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "requestTimeoutMs",
    "pollTimeoutMs",
    *CREDENTIAL_NAMES,
    *TLS_NAMES,
    "access",
)
INTERNAL_NAMES = ("yield", "syncCheckpoint")
"""For the jobs of this project, which read the records themselves and keep local checkpoints on disk; never suggested
in an error message."""

CATALOG_NAMES = ("provider", "owner", "location", "external", "is_managed_location", "comment", "collation", "path")
"""Options that a catalog adds for a table made with CREATE TABLE … USING headwater."""

ONLY_STREAM = ("minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay", "retireLogs")
ONLY_BATCH = ("endingOffsets", "endingTimestamp", "maxClockSetBack")
TOPIC_NAMES = ("subscribe", "subscribePattern", "assign")

POLL_TIMEOUT_MS_DEFAULT = 120_000
"""How long a task waits for a broker that became unreachable during a read. Kafka's default."""

MAX_TRIGGER_DELAY_MS_DEFAULT = 15 * 60_000


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to start or to end: `earliest`, `latest`, the first record at or after `time_us`, or explicit `places`."""

    kind: Literal["earliest", "latest", "time", "places"]
    time_us: int | None = None
    places: Mapping[str, Mapping[int, Place]] = field(default_factory=dict)

    @property
    def moves(self) -> bool:
        """Whether a later request may give another position."""
        return self.kind in ("latest", "time")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one DataFrame. Exactly one of `filters`, `pattern` and `assign` (log id to partitions) is set."""

    servers: tuple[str, ...]
    filters: tuple[str, ...] | None = None
    pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    starting: Bound = Bound("earliest")
    ending: Bound = Bound("latest")
    must_find_time: bool = True
    fail_on_data_loss: bool = True
    retire_logs: tuple[str, ...] = ()
    min_offsets_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS_DEFAULT
    max_clock_set_back_ms: int | None = None
    """None: unknown, so a later record may have any earlier time."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    consumer_group: str | None = None
    poll_timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT
    access: Access = field(default_factory=Access)
    access_by_server: Mapping[str, Access] = field(default_factory=dict)
    """The servers that are not reached by `access`."""
    yields_splits: bool = False
    sync_checkpoint: str | None = None
    """A local checkpoint that must be on disk before the group is told what is finished."""
    given: frozenset[str] = frozenset()

    def access_of(self, server: str) -> Access:
        """How this server is reached. The nodes of a cluster may be in another order than in the option."""
        if not self.access_by_server:
            return self.access
        nodes = set(nodes_of(server))
        given = next((one for one in self.servers if set(nodes_of(one)) == nodes), server)
        return self.access_by_server.get(given, self.access)

    @property
    def what(self) -> str:
        """What the query reads, as text for messages."""
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        return ", ".join(self.filters) if self.filters is not None else f"partitions {json.dumps(self.assign)}"

    def require_stream(self) -> None:
        """Refuses options that do not apply to a stream."""
        for name in ONLY_BATCH:
            if name in self.given:
                raise OptionError(f"option {name} is for batch reads: a stream has no end; remove it or use spark.read")
        if self.starting.moves and self.consumer_group is None:
            name = "startingTimestamp" if self.starting.kind == "time" else "startingOffsets=latest"
            raise OptionError(
                f"{name} in a stream needs option consumerGroup, which stores the start for a replay of the "
                "first batch: name a group, or use startingOffsets=earliest"
            )

    def require_batch(self) -> None:
        """Refuses options that do not apply to a batch read."""
        for name in ONLY_STREAM:
            if name in self.given:
                raise OptionError(f"option {name} is for streams: remove it or use spark.readStream")
        if self.starting.kind == "latest":
            raise OptionError("startingOffsets=latest in a batch read would read nothing: use earliest or offsets")


def parse_options(raw: Mapping[str, str]) -> SourceOptions:
    """Turns Spark's text options into values; `OptionError` names the first one that is wrong."""
    known = {name.lower(): name for name in (*OPTION_NAMES, *INTERNAL_NAMES)}
    values: dict[str, str] = {}
    for given, value in _without_catalog(raw).items():
        name = known.get(given.lower())
        if name is None:
            raise OptionError(_unknown(given))
        values[name] = value
    _check_topics(values)
    servers = servers_value(values.get("servers"))
    access = common_access(values, servers)
    options = SourceOptions(
        servers=servers,
        filters=filters_value(values["subscribe"]) if "subscribe" in values else None,
        pattern=pattern_value(values["subscribePattern"]) if "subscribePattern" in values else None,
        assign=assign_value(values["assign"]) if "assign" in values else None,
        starting=_bound(values, "starting", "earliest"),
        ending=_bound(values, "ending", "latest"),
        must_find_time=word_value(values, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "error",
        fail_on_data_loss=flag_value(values, "failOnDataLoss", default=True),
        retire_logs=log_ids_value(values.get("retireLogs")),
        min_offsets_per_trigger=count_value(values, "minOffsetsPerTrigger"),
        max_offsets_per_trigger=count_value(values, "maxOffsetsPerTrigger"),
        max_bytes_per_trigger=count_value(values, "maxBytesPerTrigger"),
        max_trigger_delay_ms=duration_ms_value(values, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS_DEFAULT),
        max_clock_set_back_ms=duration_ms_value(values, "maxClockSetBack", None),
        min_partitions=count_value(values, "minPartitions"),
        max_records_per_partition=count_value(values, "maxRecordsPerPartition"),
        include_headers=flag_value(values, "includeHeaders", default=False),
        consumer_group=group_value(values.get("consumerGroup")),
        poll_timeout_ms=count_value(values, "pollTimeoutMs") or POLL_TIMEOUT_MS_DEFAULT,
        access=access,
        access_by_server=access_by_server(values, servers, access),
        sync_checkpoint=values.get("syncCheckpoint"),
        yields_splits=word_value(values, "yield", ("rows", "splits")) == "splits",
        given=frozenset(values),
    )
    _check_limits(options)
    return options


def _without_catalog(raw: Mapping[str, str]) -> Mapping[str, str]:
    """The options without those that a catalog adds. A catalog may pass our options as `option.…`, in addition or only
    so."""
    names = {given.lower() for given in raw}
    if "provider" not in names and not any(name.startswith("option.") for name in names):
        return raw
    prefixed = {given[len("option.") :]: value for given, value in raw.items() if given.lower().startswith("option.")}
    plain = {given: value for given, value in raw.items() if not given.lower().startswith("option.")}
    return {given: value for given, value in (prefixed | plain).items() if given.lower() not in CATALOG_NAMES}


def _check_topics(values: Mapping[str, str]) -> None:
    given = [name for name in TOPIC_NAMES if name in values]
    if len(given) > 1:
        raise OptionError(f"options {given[0]} and {given[1]} exclude each other: give one of them")
    if not given:
        raise OptionError("option subscribe is missing: give topics or filters, such as devices/+/telemetry")


def _check_limits(options: SourceOptions) -> None:
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise OptionError(
            f"minOffsetsPerTrigger ({low}) is above maxOffsetsPerTrigger ({high}): lower the first or raise the second"
        )
    if "maxTriggerDelay" in options.given and low is None:
        raise OptionError("maxTriggerDelay limits the wait for minOffsetsPerTrigger: give both or neither")
    named = options.starting.places.keys() | (options.assign or {}).keys()
    for log_id in options.retire_logs:
        if log_id in named:
            raise OptionError(f"retireLogs drops log {log_id}, which another option names: remove it from one of them")


def _unknown(given: str) -> str:
    if given.lower() == "path":
        return "the source headwater has no path: name brokers with option servers and topics with option subscribe"
    lowered = {name.lower(): name for name in OPTION_NAMES}
    near = difflib.get_close_matches(given.lower(), list(lowered), n=1, cutoff=0.0)
    return f"unknown option {given} of the source headwater: did you mean {lowered[near[0]]}?"


def _bound(values: Mapping[str, str], which: str, default: Literal["earliest", "latest"]) -> Bound:
    offsets, timestamp = values.get(f"{which}Offsets"), values.get(f"{which}Timestamp")
    if offsets is not None and timestamp is not None:
        raise OptionError(f"options {which}Offsets and {which}Timestamp exclude each other: give one of them")
    if timestamp is not None:
        return Bound("time", time_us=time_us_value(f"{which}Timestamp", timestamp))
    word = default if offsets is None else offsets.strip()
    if word.lower() == "latest":
        return Bound("latest")
    if word.lower() == "earliest":
        if which == "ending":
            raise OptionError("endingOffsets=earliest would read nothing: use latest or offsets")
        return Bound("earliest")
    return Bound("places", places=places_value(f"{which}Offsets", word))
