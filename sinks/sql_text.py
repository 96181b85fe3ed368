"""Quotes outside texts and log positions in SQL for deltalake."""

from __future__ import annotations

from collections.abc import Iterable


def literal(text: str) -> str:
    """A text as a literal of DataFusion's SQL, where a backslash is an ordinary character."""
    return "'" + text.replace("'", "''") + "'"


def literals(texts: Iterable[str]) -> str:
    """A list for SQL IN."""
    return f"({', '.join(literal(text) for text in texts)})"


def near(places: Iterable[tuple[str, int, int]], *, pipeline: str) -> str:
    """A condition on `quarantine` that selects the rows that `pipeline` wrote for these positions (log id, partition,
    offset), and few others: the table may be large, and must not be read completely."""
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for log_id, partition, offset in places:
        low, high = ranges.get((log_id, partition), (offset, offset))
        ranges[log_id, partition] = (min(low, offset), max(high, offset))
    parts = [
        f'(log_id = {literal(log_id)} AND "partition" = {partition:d} AND "offset" BETWEEN {low:d} AND {high:d})'
        for (log_id, partition), (low, high) in ranges.items()
    ]
    return f"pipeline = {literal(pipeline)} AND ({' OR '.join(parts) or 'false'})"
