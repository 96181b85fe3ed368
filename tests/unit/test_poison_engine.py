"""Rows and reports that would end the engine permanently: it refuses or drops each, and continues with the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction
from support.engine import START_US, Engine, action_of, devices_of
from support.engine_world import EngineWorld
from support.poison import SEED, TEXTS

from actions.engine import Limits, Rollout, Selector, TargetState
from actions.fleet_desk import FleetDesk
from actions.rows import (
    events_table,
    quarantine_table,
    targets_table,
)
from actions.store import DeltalakeStore
from broker_edge import ConnectError, Place, RefusedError, Row
from sinks import tables
from sinks.rows import arrow_of, rows_of
from sinks.sql_text import near

S = TargetState


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1", "d2", "d3")
    return world


def deep(levels: int) -> str:
    return '{"x":' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ('{"x": 1e999}', "params is not JSON: 1e999 exceeds the numbers that devices can read"),
        ('{"x": [-1e400]}', "params is not JSON: -1e400 exceeds"),
        ('{"x": ' + "1" * 5_000 + "}", "params is not JSON: Exceeds the limit"),
        (deep(100), "params is nested deeper than 100"),
        (deep(900), "params is nested deeper than 100"),
        (deep(50_000), "params is not JSON"),
    ],
    ids=lambda value: value[:40],
)
def test_params_that_no_command_can_carry_are_refused(params: str, said: str) -> None:
    engine = Engine(devices=devices_of("d1"), actions=[action_of(params=params), action_of("good")])
    engine.tick()
    assert (engine.phase(), engine.published) == ("REFUSED", ["good/d1/1"])
    assert said in engine.state.actions["a1"].message


def test_params_at_every_depth_are_sent_or_refused_however_deep_the_caller_is() -> None:
    """At some depths a value can be parsed, but serializing it again fails."""

    def ticked(depth: int, frames: int) -> list[str]:
        if frames:
            return ticked(depth, frames - 1)
        engine = Engine(devices=devices_of("d1"), actions=[action_of(params=deep(depth))])
        engine.tick()
        return engine.published

    found = {depth: ticked(depth, 60) for depth in (1, 90, 99, 100, *range(700, 1_000, 3))}
    assert [depth for depth, published in found.items() if published] == [1, 90, 99]


@pytest.mark.parametrize(
    "waves",
    [
        '[{"percentage": 100, "soak_s": ' + "9" * 4_000 + "}]",
        '[{"percentage": 50, "min_reported": ' + "9" * 4_000 + '}, {"percentage": 100}]',
        '[{"percentage": 1e-320}, {"percentage": 100}]',
        '[{"percentage": 1e999}]',
        '[{"percentage": ' + "9" * 5_000 + "}]",
        '[{"percentage": 100, "' + "\\ud800" + '": 1}]',
        '[{"percentage": "\\ud800"}]',
        '[{"percentage": ' + "[" * 900 + "]" * 900 + "}]",
        "[" * 900 + "]" * 900,
    ],
    ids=lambda text: text[:40],
)
def test_waves_of_any_size_are_refused_or_carried_out(waves: str) -> None:
    rollout = Rollout(waves=waves, abort_percentage=5)
    actions = [action_of(rollout=rollout, selector=Selector(percentage=100)), action_of("good")]
    engine = Engine(devices=devices_of("d1", "d2"), actions=actions)
    for _ in range(3):
        engine.tick()
    engine.tick(engine.report("SUCCEEDED", 1), engine.report("SUCCEEDED", 2, action_id="good"))
    engine.tick(after_s=3_600)
    assert engine.target("d1", "good").state is S.SUCCEEDED
    assert engine.state.actions["a1"].message.encode()


def test_reports_that_match_nothing_wait_within_a_bound_of_bytes() -> None:
    devices = [f"d{n}" for n in range(100)]
    engine = Engine(devices=devices_of(*devices), limits=Limits(waiting_bytes_max=10 * 70_000))
    reports = [
        engine.report("FAILED", n + 1, action_id=f"none{n}", message="x" * 65_000, device_id=device)
        for n, device in enumerate(devices)
    ]
    engine.tick(*reports)
    assert 5 <= len(engine.state.waiting) <= 10
    assert len(engine.last.quarantine) + len(engine.state.waiting) == 100
    assert all(len(entry.reason) < 500 for entry in engine.last.quarantine)
    engine.tick()
    assert len(engine.state.waiting) <= 10


def test_a_device_that_reports_what_matches_nothing_leaves_room_for_others() -> None:
    """Reports that a device sends before its command has a position wait for it, whatever another device sends."""
    for message, limits in ((None, Limits(waiting_max=80)), ("x" * 65_000, Limits(waiting_bytes_max=80 * 66_000))):
        engine = Engine(devices=devices_of("d1", "d2"), limits=limits)
        flood = [engine.report("FAILED", n, action_id=f"none{n}", message=message) for n in range(1, 201)]
        engine.tick(*flood, engine.report("SUCCEEDED", 201, device_id="d2", attempt=2))
        assert [report.device_id for report in engine.state.waiting].count("d1") == 10
        assert [report.device_id for report in engine.state.waiting].count("d2") == 1
        assert len(engine.last.quarantine) == 190


def test_a_record_with_thousands_of_reports_is_quarantined_in_short() -> None:
    engine = Engine(devices=devices_of("d1"), limits=Limits(waiting_max=8))
    reports = [engine.report("FAILED", 7, action_id=f"none{n}", seq=n) for n in range(2_000)]
    engine.tick(*reports)
    assert len(engine.last.quarantine) > 1_900
    table = quarantine_table(engine.last.quarantine, quarantined_us=1)
    (reason,) = table.column("reason").to_pylist()
    assert len(reason) < 2_000
    assert reason.endswith(f"; and {len(engine.last.quarantine) - 5} more")


def test_a_state_of_any_length_is_said_in_short() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.tick(engine.report("x\x00" * 30_000, 1))
    (entry,) = engine.last.quarantine
    assert len(entry.reason) < 700
    quarantine_table(engine.last.quarantine, quarantined_us=1)


def test_whatever_devices_report_the_decision_fits_the_tables() -> None:
    """Texts that the status job accepts: any except those that UTF-8 cannot encode."""
    chance = random.Random(SEED)
    texts = [text for text in (*TEXTS, "SUCCEEDED", "FAILED", "IN_PROGRESS", "ONLINE", "d1") if text.isascii()]
    engine = Engine(devices=devices_of("d1"), actions=[action_of(), action_of("a2", rollout=Rollout(retries=3))])
    engine.tick()
    for turn in range(1, 600):
        said: dict[str, Any] = {
            "action_id": chance.choice(("a1", "a2", *texts)),
            "attempt": chance.choice((1, 2, 2**31 - 1)),
            "message": chance.choice((None, *texts)),
            "result": chance.choice((None, *texts)),
            "version": chance.choice((None, *texts)),
            "boot": chance.choice((None, *texts)),
            "seq": chance.choice((None, 0, 2**63 - 1)),
            "progress": chance.choice((None, 0, 100)),
        }
        place = chance.choice((turn, 2**63 - 1 - turn))
        try:
            engine.tick(
                engine.report(chance.choice(texts) or "X", place, device_id=chance.choice(("d1", "d9")), **said)
            )
            targets_table(engine.last.target_updates)
            events_table(engine.last.events, recorded_us=START_US)
            quarantine_table(engine.last.quarantine, quarantined_us=START_US)
        except Exception as error:
            pytest.fail(f"seed {SEED}, turn {turn}: {said!r:.500}: {error!r}")


# -- through the tables ------------------------------------------------------------------------------------------------


def test_rows_of_action_events_that_somebody_else_wrote_hold_up_nobody(world: EngineWorld) -> None:
    world.action("a1", device_ids=["d1"])
    job = world.job()
    job.turn()
    whole = {"source": "status", "device_id": "d1", "state": "FAILED", "action_id": "a1", "attempt": 1}
    place = {"log_id": "log", "partition": 5, "offset": 1, "epoch": 1, "at": START_US, "recorded_at": START_US}
    for name in ("log_id", "partition", "offset", "at", "recorded_at"):
        world.insert(tables.ACTION_EVENTS, {**whole, **place, name: None, "event_id": f"no {name}"})
    for fields in ({"device_id": None}, {"state": None}, {"source": None}, {"source": "me"}):
        world.insert(tables.ACTION_EVENTS, {**whole, **place, "event_id": str(fields), **fields})
    for event_id in (None, "", "x", "engine", "engine/a1"):
        world.insert(tables.ACTION_EVENTS, {"event_id": event_id, "source": "engine", "action_id": "a1"})
    world.status("d1", "SUCCEEDED")
    job.turn()
    job = world.job()
    world.now_us += 700 * 1_000_000
    job.turn()
    world.action("a2", device_ids=["d1"])
    job.turn()
    (target,) = [row for row in world.rows("action_targets") if row["action_id"] == "a1"]
    assert target["state"] == "SUCCEEDED"


def test_ids_with_any_character_are_found_by_sql(world: EngineWorld) -> None:
    ids = ["a\x00b", "\\", "\\'", "''", "--", "/*", "\r\n", "\u2028", "\x1b[0m", "$1", "?", ":x", "\ufffe", "\x80", "`"]
    for id_ in ids:
        world.insert(tables.ACTIONS, {"action_id": id_, "name": "n"})
    store = DeltalakeStore(world.root)
    for id_ in ids:
        assert [action.action_id for action in store.load([id_]).definitions] == [id_]


class StrictLog:
    """A broker that refuses certain records, whoever sends them."""

    def __init__(self, *bad: str, field: str | None = "topic") -> None:
        self.bad, self.field = bad, field
        self.keys: list[str | None] = []
        self.calls = 0

    name = None

    def log_id(self) -> str:
        return "log"

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        self.calls += 1
        if any(row.topic.split("/")[1] in self.bad for row in rows):
            raise RefusedError("row 0 has a topic that cannot be", field=self.field)
        self.keys += [row.idempotency_key for row in rows]
        return [Place(1, len(self.keys) + number, False) for number in range(len(rows))]


def test_a_record_that_the_broker_never_takes_keeps_no_other_device_waiting(world: EngineWorld) -> None:
    world.devices("bad")
    world.log = StrictLog("bad")  # type: ignore[assignment]
    world.action("a1")
    job = world.job()
    job.turn()
    job.turn()
    assert sorted(str(key) for key in world.log.keys) == ["a1/d1/1", "a1/d2/1", "a1/d3/1"]
    (refused,) = [row for row in world.rows("action_targets") if row["device_id"] == "bad"]
    assert (refused["state"], refused["outbox"]) == ("SKIPPED", None)
    assert refused["message"] == "the broker refused its command: row 0 has a topic that cannot be"
    for device in ("d1", "d2", "d3"):
        world.status(device, "SUCCEEDED")
    job.turn()
    assert world.rows("action_state")[0]["phase"] == "ENDED"


def test_refusals_of_a_tick_are_bounded_and_the_rest_follows(world: EngineWorld) -> None:
    many = [f"bad{n:03}" for n in range(150)]
    world.devices(*many)
    world.log = StrictLog(*many)  # type: ignore[assignment]
    world.action("a1")
    job = world.job()
    for _ in range(4):
        job._outbound._lines[0].send_from = 0.0
        job.turn()
    assert sorted(str(key) for key in world.log.keys) == ["a1/d1/1", "a1/d2/1", "a1/d3/1"]
    states = [row["state"] for row in world.rows("action_targets")]
    assert (states.count("SKIPPED"), states.count("QUEUED")) == (150, 3)


@pytest.mark.parametrize("error", [RefusedError("not allowed"), ConnectError("away"), MemoryError("full")])
def test_what_is_not_the_fault_of_a_record_gives_nobody_up(world: EngineWorld, error: Exception) -> None:
    class Failing(StrictLog):
        name = None

        def log_id(self) -> str:
            return "log"

        def publish(self, rows: Sequence[Row]) -> list[Place]:
            self.calls += 1
            raise error

    world.log = log = Failing()  # type: ignore[assignment]
    world.action("a1")
    job = world.job()
    if isinstance(error, MemoryError):
        with pytest.raises(MemoryError):
            job.turn()
    else:
        job.turn()
    assert log.calls == 1, "no search for the refused record"
    assert {(row["state"], row["outbox"]) for row in world.rows("action_targets")} == {("PENDING", "command")}


def test_memory_that_ends_is_not_taken_for_a_history_that_is_gone(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeltalakeStore(world.root)
    world.action("a1")

    def full(*_: Any) -> Any:
        raise MemoryError("full")

    monkeypatch.setattr("actions.table_reader.rows_of", full)
    with pytest.raises(MemoryError):
        store.news()


# -- bytes that are not text -------------------------------------------------------------------------------------------


def broken(kind: pa.DataType) -> pa.Array:
    """A value as Spark writes it for CAST(X'78FF' AS STRING), alone, in a list, or in a map."""
    text = pa.array([b"x\xff", b"y\xfe"]).view(pa.string())
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays([0, 1], text[:1], text[1:])
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays([0, 1], text[:1])
    return text[:1]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (tables.ACTIONS, "created_by"),
        (tables.ACTIONS, "labels"),
        (tables.ACTIONS, "depends_on"),
        (tables.ACTION_REQUESTS, "reason"),
        (tables.DEVICES, "time_zone"),
        (tables.DEVICES, "labels"),
        (tables.ARTIFACTS, "key_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_bytes_that_are_no_text_hold_up_nobody(world: EngineWorld, table: tables.FieldTable, column: str) -> None:
    world.action("good", device_ids=["d1"])
    row = {"action_id": "bad", "request_id": "r", "device_id": "d9", "name": "n", "version": "1", "percentage": 100.0}
    rows = arrow_of([row], table)
    at = rows.schema.get_field_index(column)
    rows = rows.set_column(at, rows.schema.field(at), broken(rows.schema.field(at).type))
    path = world.root / table.name / "by-spark.parquet"
    pq.write_table(rows, path)
    add = AddAction(path.name, path.stat().st_size, {}, 0, True, '{"numRecords":1}')
    there = world.table(table.name)
    there.create_write_transaction([add], "append", there.schema())
    job = world.job()
    job.turn()
    assert "good/d1/1" in world.log.keys
    world.status("d1", "SUCCEEDED", action_id="good")
    job.turn()
    world.job().turn()
    assert {row["state"] for row in world.rows("action_targets") if row["action_id"] == "good"} == {"SUCCEEDED"}
    assert FleetDesk(world.root).audit("good")


def test_a_record_whose_topic_is_no_text_is_shown_with_marks() -> None:
    table = pa.table({"topic": pa.array([b"a", b"d\xff", None]).view(pa.string()), "n": [1, 2, 3]})
    assert [row["topic"] for row in rows_of(table)] == ["a", "d\ufffd", None]


def test_only_what_is_near_is_looked_up_in_quarantine() -> None:
    places = [("l", 1, 5), ("l", 1, 9), ("l'", 2, 7)]
    assert near(places, pipeline="p") == (
        "pipeline = 'p' AND ((log_id = 'l' AND \"partition\" = 1 AND \"offset\" BETWEEN 5 AND 9) OR "
        "(log_id = 'l''' AND \"partition\" = 2 AND \"offset\" BETWEEN 7 AND 7))"
    )
    assert near([], pipeline="p").endswith("(false)")


def test_what_people_wrote_is_quoted_in_short() -> None:
    long = "x" * 300_000
    engine = Engine(devices=devices_of("d1"))
    engine.actions += [action_of("nobody", selector=Selector(labels={"a": long})), action_of("cancelled")]
    engine.broker_up = False
    engine.tick()
    engine.cancel(action_id="cancelled", by=long, reason=long)
    engine.tick()
    messages = [row.message for row in engine.state.actions.values()] + [engine.target("d1", "cancelled").message or ""]
    assert all(len(message) < 2_100 for message in messages)
    assert engine.phase("nobody") == "ENDED"
