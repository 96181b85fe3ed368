"""What `headwater top` shows: figures of brokers between two looks, as plain values. `top` draws them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_edge.admin import Admin
from broker_edge.errors import HeadwaterError
from broker_edge.scrape import Scrape

_LEVELS = ("normal", "warned", "acting", "full")
"""Of `headwater_disk_level`."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What one broker answered, or why it did not."""

    address: str
    scrape: Scrape | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    clients: Sequence[Mapping[str, Any]] = ()
    trouble: str | None = None


def look(admin: Admin, *, clients_max: int) -> Look:
    """Asks a broker. Its trouble is part of the answer: others are shown all the same."""
    try:
        scrape = Scrape.parse(admin.metrics(), at_s=time.monotonic())
        clients = list(admin.clients(limit=clients_max)) if clients_max else []
        return Look(admin.address, scrape, admin.ask("GET", "/api/v1/status"), clients)
    except HeadwaterError as error:
        return Look(admin.address, trouble=str(error))


def broker_row(now: Look, before: Look | None) -> Row:
    """One broker: rates per second since `before`, latencies in seconds, sizes in bytes. None where nothing is known,
    as with the first look."""
    if now.scrape is None:
        return {"admin": now.address, "trouble": now.trouble}
    scrape, then = now.scrape, None if before is None else before.scrape

    def rate(name: str) -> float | None:
        return None if then is None else scrape.per_second(then, f"headwater_{name}_total")

    def p99(name: str) -> float | None:
        return None if then is None else scrape.quantile(then, f"headwater_{name}_seconds", 0.99)

    level = scrape.value("headwater_disk_level")
    return {
        "admin": now.address,
        "version": now.status.get("version"),
        "connections": _whole(scrape.value("headwater_mqtt_connections")),
        "sessions": _whole(scrape.value("headwater_mqtt_sessions")),
        "in_per_s": rate("mqtt_publishes_received"),
        "out_per_s": rate("mqtt_deliveries"),
        "in_bytes_per_s": rate("mqtt_received_bytes"),
        "out_bytes_per_s": rate("mqtt_sent_bytes"),
        "read_per_s": rate("flight_records_read"),
        "refused_per_s": rate("mqtt_publishes_refused"),
        "ack_p99_s": p99("mqtt_ack_latency"),
        "sync_p99_s": p99("log_sync"),
        "loop_busy": None if then is None else scrape.per_second(then, "headwater_loop_turn_seconds_sum"),
        "disk_used_bytes": _whole(scrape.value("headwater_disk_used_bytes")),
        "disk_budget_bytes": _whole(scrape.value("headwater_disk_budget_bytes")),
        "disk_level": None if level is None else _LEVELS[int(level)] if level < len(_LEVELS) else str(level),
        "leads": None if (leads := scrape.value("headwater_cluster_leads")) is None else leads == 1,
        "in_sync": _whole(scrape.value("headwater_cluster_in_sync_members")),
        "resident_bytes": _whole(scrape.value("process_resident_memory_bytes")),
    }


def partition_rows(now: Look, before: Look | None) -> list[Row]:
    """The partitions of one broker: offsets, records appended per second, and how far the slowest group is behind."""
    earlier = {one["name"]: one for one in (() if before is None else before.status.get("partitions", ()))}
    seconds = (
        0.0 if now.scrape is None or before is None or before.scrape is None else now.scrape.at_s - before.scrape.at_s
    )
    rows = []
    for one in now.status.get("partitions", ()):
        end, then = one["high_watermark"], earlier.get(one["name"])
        held = [group["next"] for group in one.get("held_by", ())]
        rows.append(
            {
                "admin": now.address,
                "name": one["name"],
                "state": one["state"],
                "log_start": one["log_start"],
                "high_watermark": end,
                "per_s": None if then is None or seconds <= 0 else max(end - then["high_watermark"], 0) / seconds,
                "bytes": one["bytes"],
                "held": end - min(held) if held else 0,
            }
        )
    return rows


def client_rows(now: Look) -> list[Row]:
    """Clients of one broker, as `headwater clients` has them."""
    return [
        {
            "admin": now.address,
            "client_id": one["client_id"],
            "user": one["user"],
            "state": "connected" if one["connected"] else "away",
            "in_per_s": one["per_second"]["received_messages"],
            "out_per_s": one["per_second"]["sent_messages"],
            "inflight": one["inflight_out"],
            "lag": one["lag_records"],
        }
        for one in now.clients
    ]


def group_rows(now: Look) -> list[Row]:
    """Consumer groups that hold records of one broker: those furthest behind, at most 16 for each partition."""
    return [
        {
            "admin": now.address,
            "group": group["group"],
            "partition": one["name"],
            "next": group["next"],
            "behind": one["high_watermark"] - group["next"],
        }
        for one in now.status.get("partitions", ())
        for group in one.get("held_by", ())
    ]


def document(looks: Sequence[Look], before: Mapping[str, Look]) -> Row:
    """Everything, for scripts."""
    brokers = []
    for now in looks:
        then = before.get(now.address)
        row = broker_row(now, then)
        if now.scrape is not None:
            row["partitions"] = [_without_admin(one) for one in partition_rows(now, then)]
            row["groups"] = [_without_admin(one) for one in group_rows(now)]
        brokers.append(row)
    return {"brokers": brokers}


def _without_admin(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "admin"}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


# For people.


def chosen(rows: Sequence[Row], *, part: str, sort: str | None) -> list[Row]:
    """The rows with `part` in one of their texts, by the column `sort`: numbers from the highest, texts from A."""
    found = [row for row in rows if not part or any(part in str(value) for value in row.values() if value is not None)]
    if sort is None:
        return found
    numbers = [row for row in found if isinstance(row.get(sort), (int, float))]
    others = [row for row in found if not isinstance(row.get(sort), (int, float))]
    return [
        *sorted(numbers, key=lambda row: -float(row[sort])),
        *sorted(others, key=lambda row: (row.get(sort) is None, str(row.get(sort)))),
    ]


def figure(name: str, value: object) -> str:
    """A value of a column in a few cells."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if name.endswith(("bytes_per_s", "bytes")):
        return _scaled(value, 1024.0, ("", "K", "M", "G", "T"))
    if name.endswith("p99_s"):
        return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
    if name == "loop_busy":
        return f"{value:.0%}"
    if name.endswith("per_s"):
        return _scaled(value, 1000.0, ("", "K", "M", "G"))
    return f"{value:,}"


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if value < step:
            return f"{value:.1f}{unit}" if value < 10 and value != int(value) else f"{value:.0f}{unit}"
        value /= step
    return f"{value:.1f}{units[-1]}"
