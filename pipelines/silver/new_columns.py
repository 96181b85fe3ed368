"""Which fields of payloads become columns of a silver table although no schema names them.

A table has few columns, and every device can invent fields. Each device therefore has a quota by day, which counts in
the plan of the batch: a replay decides nothing again, and a restart forgets nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipelines.silver import columns
from pipelines.silver.schema import ENVELOPE, MessageSchema, SchemaField, column_name, known_type, quotable
from pipelines.silver.split import REASON
from sinks.once import folded

_FOUND_MAX = 5_000
"""Limit for the kinds of new fields examined: payloads with random keys must not fill the driver's memory."""
_DEVICES_MAX = 64
"""Devices of a field whose quotas are looked at."""
_NAME_MAX = 255
"""Maximum characters of a new field's name; fields with longer names stay in `_rescued_data`."""

DeviceDay = tuple[str, str]


@dataclass(frozen=True, slots=True)
class NewField:
    """A field that no schema names, the types of its values in the batch, and devices that sent it, with the day."""

    path: tuple[str, ...]
    kinds: tuple[str, ...]
    devices: tuple[DeviceDay, ...] = ()


@dataclass(frozen=True, slots=True)
class NewColumns:
    """The columns to add, and how many fields stay rescued because of the quota of the devices that sent them."""

    added: tuple[SchemaField, ...]
    over_quota: int = 0
    over_quota_of: tuple[DeviceDay, ...] = ()


def new_fields(rows: DataFrame, schema: MessageSchema) -> list[NewField]:
    """The fields of good rows that the schema does not name: those of most devices first, then the most frequent."""
    good = rows.where(F.col(REASON).isNull())
    parts = []
    all_prefixes = columns.new_column_prefixes(schema)
    by = (F.coalesce("device_id", F.lit("")).alias("device"), F.col("ingest_date").cast("string").alias("day"))
    for number, prefix in enumerate(all_prefixes):
        entries = good.select(*by, F.explode(columns.unnamed_kinds(prefix)).alias("entry"))
        entries = entries.where(F.length("entry.key") <= _NAME_MAX)
        parts.append(entries.select("device", "day", F.lit(number).alias("prefix"), "entry.key", "entry.kind"))
    together = functools.reduce(DataFrame.unionByName, parts).groupBy("prefix", "key", "kind", "device", "day").count()
    # A device with thousands of fields must not crowd out those of others before any quota is looked at.
    frequent = Window.partitionBy("device", "day").orderBy(F.desc("count"), "prefix", "key", "kind")
    few = together.withColumn("rank", F.row_number().over(frequent)).where(F.col("rank") <= schema.new_columns_max)
    fields = few.groupBy("prefix", "key", "kind").agg(
        F.sum("count").alias("count"),
        F.count("*").alias("senders"),
        F.slice(F.sort_array(F.collect_set(F.struct("device", "day"))), 1, _DEVICES_MAX).alias("devices"),
    )
    found = fields.orderBy(F.desc("senders"), F.desc("count"), "prefix", "key", "kind").limit(_FOUND_MAX).collect()
    kinds: dict[tuple[str, ...], list[str]] = {}
    devices: dict[tuple[str, ...], dict[DeviceDay, None]] = {}
    for row in found:
        path = (*all_prefixes[row["prefix"]].path, row["key"])
        kinds.setdefault(path, []).append(row["kind"])
        devices.setdefault(path, {}).update(dict.fromkeys((one["device"], one["day"]) for one in row["devices"]))
    return [NewField(path, tuple(one), tuple(devices[path])) for path, one in kinds.items()]


def columns_for(schema: MessageSchema, found: Sequence[NewField], in_table: Set[str] = frozenset()) -> NewColumns:
    """The columns to add for new fields. Fields that cannot become a column stay in `_rescued_data`.

    `in_table` are the folded names of columns that the table has already, from an earlier checkpoint: they cost no
    quota.
    """
    taken = {folded(name) for name in ENVELOPE} | {folded(field.name) for field in schema.fields}
    left = schema.new_columns_max - sum(field.inferred for field in schema.fields)
    used = Counter((field.device, field.day) for field in schema.fields if field.inferred)
    added: list[SchemaField] = []
    over: Counter[DeviceDay] = Counter()
    for new in found:
        name = column_name(new.path)
        if len(added) >= left or len(name) > _NAME_MAX or not all(quotable(key) for key in new.path):
            continue
        if folded(name) in taken:
            continue
        device: DeviceDay | None = None
        if new.devices and folded(name) not in in_table:
            device = next((one for one in new.devices if used[one] < schema.new_columns_per_device_max), None)
            if device is None:
                over[new.devices[0]] += 1
                continue
            used[device] += 1
        taken.add(folded(name))
        added.append(_field(schema, new, name, device))
    return NewColumns(tuple(added), over.total(), tuple(over))


def _field(schema: MessageSchema, new: NewField, name: str, by: DeviceDay | None) -> SchemaField:
    hint = schema.hint(new.path)
    type_ = known_type(hint) if hint is not None else columns.inferred_type(new.kinds)
    device, day = by or (None, None)
    return SchemaField(name=name, type=type_, path=list(new.path), inferred=True, device=device, day=day)
