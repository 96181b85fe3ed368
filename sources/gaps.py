"""Reported gaps: offsets that a reader skipped, or that retention removed before a group had finished them.

They are records of the topic `$gaps` in each log (docs/protocols.md, section 5). `gap_rows` turns a DataFrame of that
topic, streaming or not, into rows with columns; `reported_gaps` asks the brokers without Spark. Neither writes to a
table.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from sources.access import access_options
from sources.options import parse_options
from sources.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from broker_edge.access import BrokerAccess
    from sources.log_server import LogServer

_LOGGER = logging.getLogger(__name__)

TOPIC = "$gaps"

_VALUE = (
    "log_id string, partition int, name string, start bigint, end bigint, reason string, group string, time_us bigint"
)
_READINGS_MAX = 1_000
"""Requests for one partition in one call, even if the broker reports an end beyond them. The next call continues."""
Places = dict[tuple[str, int], int]
"""By log and partition: the offset up to which `$gaps` has been read."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ_SECONDS_MAX = 60.0
_READ_OFFSETS = 100_000
"""Offsets per request, to be read within that time: a partition may hold millions of records besides the reports."""
_REPORT_BYTES_MAX = 64 * 1024
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_TIME_MAX_US = 253_402_300_799 * 1_000_000
"""The end of the year 9999, the latest time that Python and Spark can represent."""


@dataclass(frozen=True, slots=True)
class ReportedGap:
    """Offsets `[start, end)` of a partition. `end` and `name` are None if they are unknown (a retired log); `group` is
    None if no consumer group was affected. `report_log_id` and `report_offset` identify the report."""

    log_id: str
    partition: int
    name: str | None
    start: int
    end: int | None
    reason: str
    group: str | None
    reported_at: datetime
    report_log_id: str
    report_offset: int


def gap_rows(records: DataFrame) -> DataFrame:
    """The fields of `ReportedGap` as columns, from rows of `format("headwater")` with `subscribe=$gaps`."""
    from pyspark.sql import functions as F

    value = F.from_json(F.col("value").cast("string"), _VALUE)
    return records.where(F.col("topic") == TOPIC).select(
        F.coalesce(value["log_id"], F.col("log_id")).alias("log_id"),
        value["partition"].alias("partition"),
        value["name"].alias("name"),
        value["start"].alias("start"),
        value["end"].alias("end"),
        value["reason"].alias("reason"),
        value["group"].alias("group"),
        F.timestamp_micros(value["time_us"]).alias("reported_at"),
        F.col("log_id").alias("report_log_id"),
        F.col("offset").alias("report_offset"),
    )


@dataclass(frozen=True, slots=True)
class BrokenReport:
    """A record of `$gaps` that is not a valid report. `at_us`: when its broker appended it, Unix µs."""

    log_id: str
    partition: int
    offset: int
    epoch: int
    key: bytes
    value: bytes
    at_us: int
    problem: str


def reported_gaps(
    servers: Sequence[BrokerAccess | str], *, options: Mapping[str, str] | None = None
) -> list[ReportedGap]:
    """All gaps recorded by the brokers, ordered by log and by the offset of the report.

    An address alone is reached as the environment says. `options` are further options of the source, such as timeouts.
    Raises `UnavailableError` when a broker does not answer. Records that are not valid reports are skipped with a
    warning.
    """
    found, broken = read_reports(servers, options=options)
    for one in broken:
        _LOGGER.warning("offset %d of partition %d of log %s: %s", one.offset, one.partition, one.log_id, one.problem)
    return found


def owners_of(servers: Sequence[BrokerAccess | str], known: Mapping[str, str]) -> Mapping[str, str]:
    """Log id to the broker that it belongs to, of those that answer and of `known`. Raises OptionError if two brokers
    say one log, and it belongs to neither."""
    brokers = Servers(parse_options({**access_options(servers), "subscribe": TOPIC}))
    try:
        brokers.reachable(known)
        return brokers.owners
    finally:
        brokers.close()


def read_reports(
    servers: Sequence[BrokerAccess | str],
    *,
    options: Mapping[str, str] | None = None,
    places: Places | None = None,
    owners: Mapping[str, str] | None = None,
    fleet: Sequence[BrokerAccess] | None = None,
) -> tuple[list[ReportedGap], list[BrokenReport]]:
    """Like `reported_gaps`, and also returns the records that are not valid reports. With `places`, reads only from
    those offsets on, and moves them to where the next call starts. A broker that says a log which belongs to another
    one of the `fleet` (default: of `servers`) by `owners` counts as one that does not answer."""
    places = {} if places is None else places
    parsed = parse_options({**access_options(servers), **(options or {}), "subscribe": TOPIC})
    brokers = Servers(parsed, fleet=None if fleet is None else [one.entry for one in fleet])
    found: list[ReportedGap] = []
    broken: list[BrokenReport] = []
    try:
        for log_id, server in sorted(brokers.all(owners).items()):
            for number, row in server.offsets(filters=[TOPIC])["partitions"].items():
                start = max(int(row["log_start"]), places.get((log_id, int(number)), 0))
                end = min(int(row["high_watermark"]), start + _READINGS_MAX * _READ_OFFSETS)
                for record in _read(server, int(number), start, end):
                    try:
                        found.append(_gap(record["value"], log_id, record["offset"]))
                    except _ReportError as error:
                        broken.append(BrokenReport(**record, log_id=log_id, problem=str(error)))
                places[log_id, int(number)] = max(start, end)
        return found, broken
    finally:
        brokers.close()


def _read(server: LogServer, partition: int, start: int, end: int) -> Iterator[dict[str, Any]]:
    for low in range(start, end, _READ_OFFSETS):
        high = min(low + _READ_OFFSETS, end)
        answer = server.get(partition, low, high, filters=[TOPIC], timeout_seconds=_READ_SECONDS_MAX)
        for batch, _ in answer:
            yield from _records(batch)


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "epoch", "key", "value")]
    for at_us, partition, offset, epoch, key, value in zip(times, *columns, strict=True):
        yield {"partition": partition, "offset": offset, "epoch": epoch, "key": key, "value": value, "at_us": at_us}


class _ReportError(ValueError):
    """Why a record is not a valid report."""


def _gap(value: bytes, log_id: str, offset: int) -> ReportedGap:
    """Raises only _ReportError, whatever the record contains: readers choose the text of a report."""
    if len(value) > _REPORT_BYTES_MAX:
        raise _ReportError(f"the report has {len(value)} bytes; the limit is {_REPORT_BYTES_MAX}")
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _ReportError(f"the report is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _ReportError("the report is not a JSON object")
    return ReportedGap(
        log_id=_text(fields, "log_id") or log_id,
        partition=_needed("partition", _number(fields, "partition", _INT32_MAX)),
        name=_text(fields, "name"),
        start=_needed("start", _number(fields, "start", _INT64_MAX)),
        end=_number(fields, "end", _INT64_MAX),
        reason=_reason(fields),
        group=_text(fields, "group"),
        reported_at=_EPOCH + timedelta(microseconds=_number(fields, "time_us", _TIME_MAX_US) or 0),
        report_log_id=log_id,
        report_offset=offset,
    )


def _reason(fields: Mapping[str, Any]) -> str:
    """The reason, with the user whose reader reported it if the broker has users: any user with read access may report
    a gap."""
    reason, user = _needed("reason", _text(fields, "reason")), _text(fields, "user")
    return reason if user is None else f"{reason} (reported by {user})"


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _ReportError(f"{name} of the report must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _ReportError(f"{name} of the report contains characters that are not Unicode") from error
    return value


def _number(fields: Mapping[str, Any], name: str, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise _ReportError(f"{name} of the report must be a whole number from 0 to {high}")
    return value


T = TypeVar("T")


def _needed(name: str, value: T | None) -> T:
    if value is None:
        raise _ReportError(f"the report has no {name}")
    return value
