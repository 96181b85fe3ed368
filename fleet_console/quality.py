"""What the quality rules found, what is in quarantine and why, and which offsets were lost."""

from __future__ import annotations

from typing import Any

from fleet_console.tables import Tables
from sinks.rows import now_us
from sinks.tables import DQ_RESULTS, INGEST_GAPS, QUARANTINE, FieldTable

_RULES_MAX = 500
_GROUPS_MAX = 100
_GAPS_MAX = 100
_HOURS = 24
_MINUTE_US = 60_000_000
_NAMES = (DQ_RESULTS.name, QUARANTINE.name, INGEST_GAPS.name)


def _sum(column: str) -> str:
    """Of doubles: a sum of whole numbers may be too large for one."""
    return f"sum(CAST({column} AS DOUBLE)) AS {column}"


class Quality:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def answer(self) -> bytes:
        """A rule that nobody checks any more leaves after a day, although no table changes."""
        minute = now_us() // _MINUTE_US
        return self._tables.answer(f"quality {minute}", _NAMES, lambda: self._made(minute * _MINUTE_US))

    def _made(self, now: int) -> dict[str, Any]:
        since = f"to_timestamp_micros({now - _HOURS * 60 * _MINUTE_US:d})"
        rule = 'source, message, rule, "column", "check", on_fail'
        return {
            "rules": self._asked(
                DQ_RESULTS,
                f"SELECT {rule}, bool_and(success) AS success, {_sum('checked')}, {_sum('failed')}, "
                f"max(at) AS at_us FROM dq_results WHERE at >= {since} AND {self._tables.of_tenant} "
                f"GROUP BY {rule} ORDER BY success, message, rule, source LIMIT {_RULES_MAX}",
            ),
            "quarantine": self._asked(
                QUARANTINE,
                "SELECT pipeline, reason, count(*) AS number, max(quarantined_at) AS newest_us FROM quarantine "
                f"WHERE {self._tables.of_tenant} GROUP BY pipeline, reason "
                f"ORDER BY number DESC, pipeline, reason LIMIT {_GROUPS_MAX}",
            ),
            "gaps": self._asked(
                INGEST_GAPS,
                'SELECT log_id, "partition", partition_name, start, "end", reason, consumer_group, '
                f"reported_at AS reported_us FROM ingest_gaps WHERE {self._tables.of_tenant} "
                f"ORDER BY reported_at DESC NULLS LAST LIMIT {_GAPS_MAX}",
            ),
        }

    def _asked(self, table: FieldTable, sql: str) -> list[dict[str, Any]] | None:
        if self._tables.versions.of(table.name)[table.name] is None:
            return None
        return self._tables.silver.query(table.name, sql)
