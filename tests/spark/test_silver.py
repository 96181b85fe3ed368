"""Silver: each payload goes to its table or, with the reason, to quarantine; new fields are added; a replay adds
nothing."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa
import pytest
import yaml
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.bronze_rows import BronzeTable
from support.poison import SEED, junk, mutated
from support.sparkplug_bytes import reading

from pipelines.settings import Settings
from pipelines.silver import batch, job, new_columns, split
from pipelines.silver.job import start_silver
from pipelines.silver.schema import MessageSchema
from pipelines.spark.errors import own_error
from sinks import once
from sinks.table import Table

SCHEMA: dict[str, Any] = {
    "name": "weather",
    "topics": ["devices/+/telemetry"],
    "device_level": 1,
    "time": {"path": "ts", "unit": "us"},
    "fields": [
        {"name": "seq", "type": "bigint", "required": True},
        {"name": "celsius", "path": "air.temperature", "type": "double", "unit": "°C"},
        {"name": "tags", "type": "array<string>"},
    ],
    "hints": {"battery": "double"},
}
RULES: dict[str, Any] = {
    "message": "weather",
    "rules": [
        {"name": "seq_counts_up", "column": "seq", "check": "between", "min": 0, "on_fail": "quarantine"},
        {"name": "not_too_hot", "column": "celsius", "check": "between", "max": 60},
    ],
}


class World:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.bronze = BronzeTable(folder / "bronze")
        self.schema, self.rules = dict(SCHEMA), dict(RULES)
        self.sync: bool | None = None

    def run(self) -> None:
        for name, value in (("schemas", self.schema), ("quality", self.rules)):
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name / "weather.yaml").write_text(yaml.safe_dump(value))
        silver = {
            "schemas": str(self.folder / "schemas"),
            "rules": str(self.folder / "quality"),
            "root": str(self.folder / "tables"),
            "checkpoint": str(self.folder / "checkpoint"),
        }
        settings = Settings.model_validate(
            {
                "tenant": "t1",
                "silver": silver,
                "telemetry": {"table_path": str(self.bronze.path)},
                "bronze": {"sync": self.sync},
            }
        )
        query = start_silver(self.spark, settings, available_now=True)
        query.awaitTermination()

    def table(self, name: str = "silver_weather") -> DataFrame:
        frame = self.spark.read.format("delta").load(str(self.folder / "tables" / name))
        return frame.orderBy("offset" if "offset" in frame.columns else "rule")

    def rows(self, name: str = "silver_weather") -> list[dict[str, Any]]:
        return [row.asDict() for row in self.table(name).collect()]

    def forget_last_commit(self) -> None:
        """The state after a kill between the writes and Spark's commit: the batch will be replayed."""
        commits = self.folder / "checkpoint" / "commits"
        newest = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def test_good_rows_have_types_and_times_and_bad_ones_their_reasons(world: World) -> None:
    world.bronze.append(
        [
            {"ts": 1_767_323_045_000_000, "seq": 1, "air": {"temperature": 21.5}, "tags": ["a", "b"]},
            {"seq": 2, "air": {"temperature": 3}},
            {"seq": "3"},
            {"air": {"temperature": 1.0}},
            b"{not json",
            b"\xff\xfe",
            [1],
            {"seq": 8, "air": {"temperature": "warm"}},
            {"seq": -9},
            {"seq": 10, "air": {"temperature": 99}},
            {"ts": "noon", "seq": 11},
            {"seq": 12, "tags": [1]},
            {"seq": 12.5},
        ]
    )
    world.bronze.append([{"seq": "of nobody"}], topic="plants/p1/telemetry")
    world.run()
    expected = world.spark.createDataFrame(
        [
            ("d1", 3, 0, "t1", 1, 21.5, ["a", "b"]),
            ("d1", 3, 1, "t1", 2, 3.0, None),
            ("d1", 3, 9, "t1", 10, 99.0, None),
        ],
        "device_id string, partition int, offset bigint, tenant string, seq bigint, celsius double, tags array<string>",
    )
    assert_df_equality(world.table().select(*expected.columns), expected, ignore_nullable=True, ignore_metadata=True)
    good = world.rows()
    assert good[0]["event_time"].isoformat() == "2026-01-02T03:04:05"
    assert good[1]["event_time"] == good[1]["ingest_time"]
    reasons = {row["offset"]: row["reason"] for row in world.rows("quarantine")}
    assert reasons == {
        2: "seq must be bigint, not string",
        3: "seq is missing",
        4: "the payload is not JSON, or has a key twice",
        5: "the payload is not UTF-8",
        6: "the payload is not a JSON object",
        7: "air.temperature must be double, not string",
        8: "rule seq_counts_up: seq is -9, not a number from 0",
        10: "ts must be a time in us since 1970, not string",
        11: "tags must be array<string>, not array",
        12: "seq must be bigint, not decimal",
    }
    assert {row["pipeline"] for row in world.rows("quarantine")} == {"silver/weather"}
    results = {row["rule"]: (row["checked"], row["failed"], row["success"]) for row in world.rows("dq_results")}
    assert results == {"seq_counts_up": (4, 1, False), "not_too_hot": (4, 1, False)}
    described = {
        row["col_name"]: row["comment"]
        for row in world.spark.sql(f"DESCRIBE delta.`{world.folder / 'tables' / 'silver_weather'}`").collect()
    }
    assert described["celsius"] == "unit: °C"


def test_new_fields_become_columns_and_odd_values_of_theirs_are_rescued(world: World) -> None:
    world.bronze.append([{"seq": 1}])
    world.run()
    world.bronze.append([{"seq": 2, "battery": 3, "air": {"humidity": 40, "a.b": True}, "value": "x"}])
    world.run()
    world.bronze.append([{"seq": 3, "battery": 3.7, "air": {"humidity": "wet"}, "value": None}])
    world.run()
    one, two, three = world.rows()
    assert (one["battery"], two["battery"], three["battery"]) == (None, 3.0, 3.7)
    assert (two["air_humidity"], two["air_a_b"], two["value"]) == (40, True, "x")
    assert three["air_humidity"] is None
    assert json.loads(three["_rescued_data"]) == {"air.humidity": "wet"}
    assert one["_rescued_data"] is None
    assert two["_rescued_data"] is None


def test_a_hostile_device_does_not_take_the_columns_of_an_honest_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends 2,000 fields, often; the quota is counted in the plan, so a restart does not give it another one."""
    world.schema |= {"new_columns_max": 10, "new_columns_per_device_max": 3}

    def hostile(number: int) -> list[dict[str, Any]]:
        return [{"seq": number, **{f"junk_{number}_{n}": n for n in range(2_000)}}] * 3

    def names() -> set[str]:
        return {name for name in world.table().columns if name.startswith(("junk", "flow", "level"))}

    caplog.set_level("WARNING", logger="pipelines.silver.batch")
    world.bronze.append(hostile(1), topic="devices/hostile/telemetry")
    world.run()
    assert len(names()) == 3
    world.bronze.append(hostile(2), topic="devices/hostile/telemetry")
    world.run()  # A new process in all but name: nothing but the plan says what was used.
    assert len(names()) == 3
    told = [one.message for one in caplog.records if "new_columns_per_device_max" in one.message]
    assert len(told) == 2, "once by process"
    assert "device 'hostile' has brought 3 new columns of weather on " in told[0]
    counted = [row["failed"] for row in world.rows("dq_results") if row["rule"] == "new_columns_per_device_max"]
    assert sorted(counted) == [7, 10]
    world.bronze.append(hostile(3), topic="devices/hostile/telemetry")
    world.bronze.append([{"seq": 4, "flow": 1.5, "level": 2}], topic="devices/honest/telemetry")
    world.run()
    assert {"flow", "level"} < names()
    honest = next(row for row in world.rows() if row["seq"] == 4)
    assert (honest["flow"], honest["level"], honest["_rescued_data"]) == (1.5, 2, None)
    assert all(len(json.loads(row["_rescued_data"])) >= 1_997 for row in world.rows() if row["seq"] != 4)


def test_a_payload_over_a_limit_of_its_schema_is_quarantined_with_the_setting(world: World) -> None:
    world.schema |= {"json_bytes_max": 1_000, "nodes_max": 50}
    world.bronze.append([{"seq": 1}, {"seq": 2, "x": "y" * 1_000}])
    world.run()
    world.schema["format"] = "cbor"
    world.bronze.append([cbor2.dumps({"seq": 3}), cbor2.dumps({"seq": 4, "x": [0] * 60})])
    world.run()
    assert [row["seq"] for row in world.rows()] == [1, 3]
    assert [row["reason"] for row in world.rows("quarantine")] == [
        "the payload is too long: its JSON would have more than 1,000 bytes (json_bytes_max of its schema)",
        "the payload is CBOR beyond a limit: it has more than 50 values (nodes_max of its schema)",
    ]


def test_rescue_keeps_new_fields_beside_the_columns(world: World) -> None:
    world.schema["evolution"] = "rescue"
    world.bronze.append([{"seq": 1, "x": {"y": [1, "z"]}, "air": {"a.b": 2}}, {"seq": 2, "air": 5}])
    world.run()
    one, two = world.rows()
    assert json.loads(one["_rescued_data"]) == {"x": {"y": [1, "z"]}, "air.a\\.b": 2}
    assert json.loads(two["_rescued_data"]) == {"air": 5}
    assert "x" not in one


def test_none_forgets_new_fields_and_fail_on_new_ends_the_stream_before_it_writes(world: World) -> None:
    world.schema["evolution"] = "none"
    world.bronze.append([{"seq": 1, "x": 1}])
    world.run()
    assert [row["_rescued_data"] for row in world.rows()] == [None]
    world.schema["evolution"] = "fail_on_new"
    world.bronze.append([{"seq": 2, "x": 1}])
    with pytest.raises(PySparkException) as error:
        world.run()
    found = own_error(error.value)
    assert found is not None
    assert found[0] == "NewFieldsError"
    assert found[1].startswith("payloads of weather have fields that its schema does not name (x)")
    assert len(world.rows()) == 1
    # Following the advice in the message helps.
    world.schema["fields"] = [*SCHEMA["fields"], {"name": "x", "type": "int"}]
    world.run()
    assert [row["x"] for row in world.rows()] == [None, 1]


def test_a_replayed_batch_uses_the_schema_and_rules_it_was_planned_with_and_adds_no_rows(world: World) -> None:
    world.bronze.append([{"seq": 1, "battery": 3}, {"seq": -2}])
    world.run()
    world.forget_last_commit()
    # The files have changed in between; the batch has not.
    world.rules["rules"] = []
    world.schema["fields"] = [{"name": "seq", "type": "string"}, *SCHEMA["fields"][1:]]
    with pytest.raises(Exception, match=r"column seq of .* is bigint, but the schema weather says string"):
        world.run()
    world.schema["fields"] = SCHEMA["fields"]
    world.run()
    assert [row["seq"] for row in world.rows()] == [1]
    assert [row["offset"] for row in world.rows("quarantine")] == [1]
    assert len(world.rows("dq_results")) == 2
    world.bronze.append([{"seq": -3, "battery": 3}])
    world.run()
    assert [row["seq"] for row in world.rows()] == [1, -3]


@pytest.mark.parametrize("sync", [None, False])
def test_what_a_batch_reads_is_on_disk_before_it_is_planned_and_what_it_writes_before_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, sync: bool | None
) -> None:
    done: list[str] = []
    append = once.append_once

    def noted(rows: DataFrame, table: Table, **names: Any) -> None:
        done.append("append")
        append(rows, table, **names)

    monkeypatch.setattr(job, "sync_file_system", lambda folder: done.append("tables"))
    monkeypatch.setattr(job, "sync_checkpoint", lambda folder, batch_id: done.append(f"offsets {batch_id}"))
    monkeypatch.setattr(batch, "append_once", noted)
    world.sync = sync
    world.bronze.append([{"seq": 1}])
    world.run()
    assert done == (["append"] if sync is False else ["tables", "offsets 0", "append", "tables"])


def test_cbor_and_sparkplug_arrive_as_json_does(world: World) -> None:
    world.schema |= {"format": "cbor"}
    metrics = {
        "name": "plant",
        "topics": ["spBv1.0/+/NDATA/+"],
        "format": "sparkplug_b",
        "device_level": 3,
        "time": {"path": "timestamp", "unit": "ms"},
        "fields": [{"name": "temperature", "path": ["metrics", "Air/Temperature"], "type": "double", "required": True}],
    }
    (world.folder / "schemas").mkdir()
    (world.folder / "schemas" / "plant.yaml").write_text(yaml.safe_dump(metrics))
    world.bronze.append([cbor2.dumps({"seq": 1, "air": {"temperature": 2.5}, "raw": b"\x00"}), b"\xff"])
    payload = b"\x08\x80\xe8\xc7\x92\xcc\x31" + b"\x12\x1c\x0a\x0fAir/Temperature\x20\x0a\x69" + struct.pack("<d", 21.5)
    payload += reading(True, name="Run") + reading(5, alias=9)
    world.bronze.append([payload, b"\x12\x05ab"], topic="spBv1.0/g/NDATA/edge-1")
    world.run()
    (row,) = world.rows()
    assert (row["seq"], row["celsius"], row["raw"]) == (1, 2.5, "AA==")
    (row,) = world.rows("silver_plant")
    assert (row["device_id"], row["temperature"], row["metrics_Run"]) == ("edge-1", 21.5, True)
    # It gets no column, because the meaning of an alias differs by edge node.
    assert json.loads(row["_rescued_data"]) == {"aliases.9": 5}
    assert not [name for name in row if "9" in name]
    assert row["event_time"].isoformat() == "2024-01-01T00:00:00"
    reasons = {row["pipeline"]: row["reason"] for row in world.rows("quarantine")}
    assert reasons["silver/plant"] == "the payload is not Sparkplug B: it ends within field 2"
    assert reasons["silver/weather"].startswith("the payload is not CBOR: ")


DOUBLES = {"ſeq": 1, "ıngest_time": 2, "celſius": 3, "İmage": 4, "image": 5, "y" * 300: 6}


def test_a_field_that_spark_takes_for_another_column_is_rescued_and_a_batch_stuck_on_it_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any device may send such a key. The plan of its batch used to be saved, and then failed at every start."""
    world.bronze.append([{"seq": 1}])
    world.run()
    world.bronze.append([{"seq": 2, **DOUBLES}, {"seq": 3}])
    with monkeypatch.context() as before:
        for module in (batch, new_columns, once):
            before.setattr(module, "folded", str.lower)
        before.setattr(batch, "_without_doubles", lambda plan: plan)
        for _ in range(2):
            with pytest.raises(PySparkException, match="already exists"):
                world.run()
    world.run()
    good = world.rows()
    assert [row["seq"] for row in good] == [1, 2, 3]
    rescued = json.loads(good[1]["_rescued_data"])
    assert {name: rescued[name] for name in ("ſeq", "ıngest_time", "celſius")} == {
        "ſeq": 1,
        "ıngest_time": 2,
        "celſius": 3,
    }
    assert len({"İmage", "image"} & set(good[1])) == 1
    assert rescued["y" * 300] == 6


HOSTILE = (
    b'{"seq":2,"x":"\\ud800"}',
    b'{"seq":3,"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"seq":' + b"1" * 5_000 + b"}",
    b'{"seq":5,"air":{"temperature":1e999}}',
    b'{"seq":5,"air":{"temperature":-1e999}}',
    b'{"seq":9223372036854775808}',
    b'{"seq":7,"ts":99999999999999999999999999999999999999}',
    b'{"seq":8,"ts":253402300800000000}',
    b'{"seq":9,"ts":1e300}',
    b'{"seq":10,"x":"\\u0000","a\\u0000b":"\\u202e"}',
    b"\xed\xa0\x80",
    b'{"seq":12,"_rescued_data":"x","_payload":3,"_wrong":"y","offset":2}',
    json.dumps({"seq": 13, **{f"a{chr(code)}b": 1 for code in range(256)}}).encode(),
    json.dumps({"seq": 14, "']['": 1, '"]': 1, "$.x": 1, "[0]": 1, "a`b": 1, "--": 1, "\u2028": 1}).encode(),
)


def test_hostile_payloads_and_names_end_no_batch(world: World) -> None:
    world.bronze.append([{"seq": 1}, *HOSTILE, {"seq": 99}])
    world.run()
    good = [row["seq"] for row in world.rows()]
    assert (good[0], good[-1]) == (1, 99)
    assert 5 not in good, "infinity is not a reading"
    assert len(good) + len(world.rows("quarantine")) == len(HOSTILE) + 2


def test_a_field_named_as_a_setting_neither_shows_it_nor_ends_the_batch(world: World) -> None:
    """The comment of a new column names the field, and Spark substitutes settings for `${…}`, even within quotes."""
    world.spark.conf.set("spark.headwater.secret", "it's a secret")
    keys = ("${spark.headwater.secret}", "${env:PATH}", "$${system:user.dir}", "${{spark.app.name}}")
    world.bronze.append([{"seq": 1}, {"seq": 2, **dict.fromkeys(keys, 1)}])
    world.run()
    assert [row["seq"] for row in world.rows()] == [1, 2]
    schema = world.spark.read.format("delta").load(str(world.folder / "tables" / "silver_weather")).schema
    comments = [field.metadata.get("comment") for field in schema.fields]
    assert {f"added when payloads contained {key}" for key in keys} <= set(comments)


def test_payloads_that_mean_much_go_to_a_worker_in_small_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is one Arrow batch: 10,000 payloads of 16 KiB that repeat one string many times took 3 GiB."""
    sizes: list[int] = []
    parsed = split.parsed

    def batch_bytes(values: pa.Array) -> pa.Array:
        return pa.array([values.nbytes] * len(values), pa.int64())

    def noted(bronze: DataFrame, schema: MessageSchema) -> DataFrame:
        found = bronze.select(F.arrow_udf(batch_bytes, "long")("value").alias("size")).distinct().collect()
        sizes.extend(row["size"] for row in found)
        return parsed(bronze, schema)

    monkeypatch.setattr(split, "parsed", noted)
    world.bronze.append([{"seq": number, "x": "y" * 32_000} for number in range(400)])
    world.run()
    assert len(world.rows()) == 400
    assert max(sizes) <= 5 * 1024 * 1024


EVERY_TYPE = [
    *[{"name": f"c_{kind}", "type": kind} for kind in ("string", "boolean", "int", "bigint", "float", "double")],
    *[{"name": f"c_{kind}", "type": kind} for kind in ("binary", "json")],
    {"name": "c_decimal", "type": "decimal(38,18)"},
    *[{"name": f"at_{unit}", "type": "timestamp", "unit": unit} for unit in ("s", "ms", "us", "ns", "iso")],
    *[{"name": f"a_{kind}", "type": f"array<{kind}>"} for kind in ("string", "boolean", "int", "bigint", "double")],
]
MOMENTS = ("now", "epoch", "0000-00-00", "9999-12-31T23:59:59Z", "+294247-01-10", "2026-01-01T00:00:00+99:99", "24:00")


def test_whatever_comes_is_a_row_or_is_quarantined(world: World) -> None:
    """Junk for columns of every type, and modified valid payloads, in one batch: the batch ends."""
    chance = random.Random(SEED)
    world.schema = {**SCHEMA, "time": {"path": "at_iso", "unit": "iso"}, "fields": EVERY_TYPE, "new_columns_max": 20}
    rule = {"column": "c_binary", "check": "at_most_column", "other": "c_binary", "on_fail": "quarantine"}
    # Each repetition of the group uses some of the matcher's stack.
    words = {"column": "c_string", "check": "matches", "pattern": "([a-z0-9]+-)*[a-z0-9]*", "on_fail": "quarantine"}
    world.rules = {"message": "weather", "rules": [{"name": "bytes", **rule}, {"name": "words", **words}]}
    names = [field["name"] for field in EVERY_TYPE]
    honest = json.dumps(dict.fromkeys(names, 1)).encode()
    payloads = []
    for turn in range(3_000):
        found = {chance.choice(names): chance.choice((junk(chance), chance.choice(MOMENTS))) for _ in range(4)}
        payloads.append((json.dumps(found).encode(), mutated(chance, honest))[turn % 2])
    texts = ["a-" * 100_000, "a-" * 2_048, "a-" * 2_048 + "b"]
    payloads += [json.dumps({"c_string": text, "at_iso": "2026-01-01T00:00:00Z"}).encode() for text in texts]
    world.bronze.append(payloads)
    world.run()
    good = [row["c_string"] for row in world.rows()]
    assert [text in good for text in texts] == [False, True, False]
    assert len(good) + len(world.rows("quarantine")) == len(payloads), f"seed {SEED}"
