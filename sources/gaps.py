"""Gaps that were reported: which offsets a reader went without, or retention removed before a group had finished them.

They are records of the topic `$gaps` in each log (docs/protocols.md, section 5). `gap_rows` makes rows of a DataFrame
of that topic, streaming or not; `reported_gaps` asks brokers without Spark. Writing them anywhere is a job's matter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sources.options import parse_options
from sources.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

TOPIC = "$gaps"

_VALUE = (
    "log_id string, partition int, name string, start bigint, end bigint, reason string, group string, time_us bigint"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class ReportedGap:
    """Offsets `[start, end)` of a partition. `end` and `name` are None where nobody could tell (a retired log); `group`
    is None where no consumer group was concerned. `report_log_id` and `report_offset` tell reports apart."""

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


def reported_gaps(servers: Sequence[str], *, options: Mapping[str, str] | None = None) -> list[ReportedGap]:
    """Every gap that the brokers have on record, in order of log and offset of the report.

    `options` are those of the source that say how brokers are reached (TLS, credentials, timeouts). Raises
    `UnavailableError` when a broker does not answer.
    """
    parsed = parse_options({**(options or {}), "servers": ",".join(servers), "subscribe": TOPIC})
    brokers = Servers(parsed)
    try:
        found = []
        for log_id, server in sorted(brokers.all().items()):
            for number, row in server.offsets(filters=[TOPIC])["partitions"].items():
                start, end = int(row["log_start"]), int(row["high_watermark"])
                if start == end:
                    continue
                answer = server.get(int(number), start, end, filters=[TOPIC], timeout_seconds=_READ_SECONDS_MAX)
                for batch, _ in answer:
                    columns = zip(batch.column("value").to_pylist(), batch.column("offset").to_pylist(), strict=True)
                    found += [_gap(value, log_id, offset) for value, offset in columns]
        return found
    finally:
        brokers.close()


def _gap(value: bytes, log_id: str, offset: int) -> ReportedGap:
    fields = json.loads(value)
    return ReportedGap(
        log_id=fields.get("log_id") or log_id,
        partition=fields["partition"],
        name=fields.get("name"),
        start=fields["start"],
        end=fields.get("end"),
        reason=fields["reason"],
        group=fields.get("group"),
        reported_at=_EPOCH + timedelta(microseconds=fields.get("time_us") or 0),
        report_log_id=log_id,
        report_offset=offset,
    )
