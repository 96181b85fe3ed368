"""Records on their way to several brokers: each broker has its own pace, failures and log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import write_deltalake
from support.engine_world import EngineWorld, PretendedLog

from actions.engine import Publish
from actions.outbound import Outbound
from actions.rows import action_of
from broker_edge import BrokerError, ConnectError, Place, RefusedError, Row
from sinks import tables
from sinks.rows import arrow_of

WAIT_S = 30.0


def command(device_id: str, log_id: str | None) -> Publish:
    key = f"a1/{device_id}/1"
    return Publish("a1", device_id, 1, "command", f"devices/{device_id}/actions", b"{}", key, log_id)


class Held(PretendedLog):
    """A broker that takes records and answers when it is allowed to."""

    def __init__(self, log_id: str) -> None:
        super().__init__(log_id)
        self.began, self.goes_on = threading.Event(), threading.Event()

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        self.began.set()
        assert self.goes_on.wait(WAIT_S)
        return super().publish(rows)


def met(*publishers: PretendedLog, wake: Callable[[], None] = lambda: None) -> Outbound:
    outbound = Outbound(publishers, wake=wake)
    outbound.meet(WAIT_S)
    return outbound


def test_a_broker_that_does_not_answer_delays_no_other() -> None:
    woken = threading.Event()
    slow, quick = Held("slow"), PretendedLog("quick")
    outbound = met(slow, quick, wake=woken.set)
    publishes = [command("d1", "slow"), command("d2", "quick")]
    outbound.send(publishes, seconds=0.2)
    assert slow.began.wait(WAIT_S)
    assert [one.device_id for one in outbound.collected().places] == ["d2"]
    outbound.send([publishes[0], command("d3", "quick")], seconds=0.2)
    assert [one.device_id for one in outbound.collected().places] == ["d3"]
    woken.clear()
    slow.goes_on.set()
    assert woken.wait(WAIT_S), "its answer wakes the job"
    outbound.settle(WAIT_S)
    places = outbound.collected().places
    assert [(one.device_id, place.log_id) for one, place in places.items()] == [("d1", "slow")]
    assert slow.keys == ["a1/d1/1"], "sent once, although it was owed in the meantime"
    outbound.close()


def test_records_that_come_while_a_broker_says_its_log_are_news_when_it_has() -> None:
    class Asked(PretendedLog):
        def __init__(self, log_id: str) -> None:
            super().__init__(log_id)
            self.goes_on = threading.Event()
            self.goes_on.set()

        def log_id(self) -> str:
            assert self.goes_on.wait(WAIT_S)
            return super().log_id()

    slow, quick = Asked("slow"), PretendedLog("quick")
    outbound = met(slow, quick)
    outbound.brokers()
    slow.goes_on.clear()
    outbound._lines[0].ask()
    outbound.send([command("d1", "slow")], seconds=0.0)
    assert not outbound.has_news
    slow.goes_on.set()
    outbound.settle(WAIT_S)
    assert outbound.has_news
    outbound.send([command("d1", "slow")], seconds=WAIT_S)
    assert [one.device_id for one in outbound.collected().places] == ["d1"]
    assert not outbound.has_news
    outbound.close()


def test_records_without_a_log_go_to_the_first_broker_whichever_log_it_serves() -> None:
    first, second = PretendedLog("one"), PretendedLog("two")
    outbound = met(first, second)
    outbound.send([command("d1", None)], seconds=None)
    assert [place.log_id for place in outbound.collected().places.values()] == ["one"]
    assert second.keys == []
    outbound.close()


def test_each_broker_has_its_own_pause_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    away, there = PretendedLog("away"), PretendedLog("there")
    outbound = met(away, there)
    away.is_away = True
    outbound.send([command("d1", "away"), command("d2", "there")], seconds=None)
    assert [one.device_id for one in outbound.collected().places] == ["d2"]
    assert [broker.away for broker in outbound.brokers()] == [True, False]
    assert "records for devices of away are waiting, next attempt in 1.0 s: nobody answers for away" in caplog.text
    away.is_away = False
    outbound.send([command("d1", "away"), command("d3", "there")], seconds=None)
    assert [one.device_id for one in outbound.collected().places] == ["d3"], "the other is still in its pause"
    outbound._lines[0].send_from = 0.0
    outbound.send([command("d1", "away")], seconds=None)
    assert [one.device_id for one in outbound.collected().places] == ["d1"]
    outbound.close()


def test_the_pause_grows_until_a_batch_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    """A broker may answer every question and refuse every batch: its disk is full, or it may only be read."""

    class Full(PretendedLog):
        is_full = True

        def publish(self, rows: Sequence[Row]) -> list[Place]:
            if self.is_full:
                raise BrokerError("the disk is full")
            return super().publish(rows)

    full = Full("full")
    outbound = met(full, PretendedLog("other"))
    (line, _), pauses = outbound._lines, []
    for _ in range(7):
        line.send_from = 0.0
        before = time.monotonic()
        outbound.send([command("d1", "full")], seconds=None)
        outbound.collected()
        pauses.append(round(line.send_from - before))
        assert outbound.brokers()[0].away
        line.ask()
        outbound.settle(WAIT_S)
        assert not outbound.brokers()[0].away, "it answers, so that commands may become due"
        assert line.send_from > before, "an answer does not end the pause"
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    full.is_full, line.send_from = False, 0.0
    outbound.send([command("d1", "full")], seconds=None)
    assert len(outbound.collected().places) == 1
    full.is_full = True
    caplog.clear()
    outbound.send([command("d2", "full")], seconds=None)
    assert "next attempt in 1.0 s" in caplog.text, "the batch before has ended the row"
    outbound.close()


def test_the_log_says_that_records_wait_only_if_there_are_some(caplog: pytest.LogCaptureFixture) -> None:
    away = PretendedLog("away")
    away.is_away = True
    outbound = met(away)
    assert "the broker did not say its log, next attempt in 1.0 s: nobody answers for away" in caplog.text
    assert "waiting" not in caplog.text
    outbound.close()


def test_a_broker_that_refuses_the_credentials_is_not_called_silent(caplog: pytest.LogCaptureFixture) -> None:
    class Guarded(PretendedLog):
        error: Exception | None = None

        def log_id(self) -> str:
            if self.error is not None:
                raise self.error
            return super().log_id()

    guarded = Guarded("log")
    outbound = met(guarded, PretendedLog("other"))
    guarded.error = RefusedError("roof refused these credentials: no user ann")
    outbound.send([command("d1", "log")], seconds=None)
    outbound.collected()
    assert [(broker.away, broker.refuses) for broker in outbound.brokers()] == [(True, True), (False, False)]
    assert "log refuses the credentials of this job, next attempt in 1.0 s: roof refused these" in caplog.text
    (line, _) = outbound._lines
    for error, is_refusal in ((RefusedError("bad topic", field="topic"), False), (ConnectError("gone"), False)):
        guarded.error = error
        line.ask()
        outbound.settle(WAIT_S)
        assert outbound.brokers()[0].refuses is is_refusal
    guarded.error = None
    line.ask()
    outbound.settle(WAIT_S)
    assert not outbound.brokers()[0].refuses
    outbound.close()


def test_of_two_addresses_of_one_log_one_that_answers_gets_the_record_once() -> None:
    first, second = PretendedLog("log", "old"), PretendedLog("log", "new")
    outbound = met(first, second)
    outbound.send([command("d1", "log")], seconds=None)
    assert (len(outbound.collected().places), first.keys, second.keys) == (1, ["a1/d1/1"], [])
    first.is_away = True
    outbound.send([command("d2", "log")], seconds=None)
    assert not outbound.collected().places
    outbound.send([command("d2", "log")], seconds=None)
    assert (len(outbound.collected().places), second.keys) == (1, ["a1/d2/1"])
    outbound.close()


def test_a_box_that_was_replaced_gets_no_record_of_the_old_log() -> None:
    box = PretendedLog("old")
    outbound = met(box)
    box.id = "new"
    outbound.send([command("d1", "old")], seconds=None)
    assert (outbound.collected().places, box.keys) == ({}, [])
    assert [broker.log_id for broker in outbound.brokers()] == ["new"]
    outbound.close()


def test_places_count_only_if_the_box_was_not_replaced_meanwhile() -> None:
    class Replaced(PretendedLog):
        def publish(self, rows: Sequence[Row]) -> list[Place]:
            self.id = "new"
            return super().publish(rows)

    box = Replaced("old")
    outbound = met(box)
    outbound.send([command("d1", "old")], seconds=None)
    assert (outbound.collected().places, box.keys) == ({}, ["a1/d1/1"])
    outbound.close()


def test_what_was_placed_before_a_failure_counts() -> None:
    class Dies(PretendedLog):
        def publish(self, rows: Sequence[Row]) -> list[Place]:
            places = super().publish(rows)
            self.is_away = True
            return places

    outbound = met(Dies("log"))
    outbound.send([command("d1", "log")], seconds=None)
    assert outbound.collected().places == {}, "nobody says which log has it: it is sent again"
    assert [broker.away for broker in outbound.brokers()] == [True]
    outbound.close()


def test_an_error_of_the_program_reaches_the_job() -> None:
    class Broken(PretendedLog):
        def publish(self, rows: Sequence[Row]) -> list[Place]:
            raise ZeroDivisionError

    outbound = met(Broken("log"))
    outbound.send([command("d1", "log")], seconds=None)
    with pytest.raises(ZeroDivisionError):
        outbound.collected()
    outbound.close()


@pytest.mark.parametrize("how", ["run", "run_through"])
def test_a_stop_does_not_wait_for_the_batch_of_the_only_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The broker took the batch and does not answer. A call may last 30 s, and a question before and after it 10 s."""
    monkeypatch.setattr("actions.job._CLOSE_S", 0.1)
    world, broker = EngineWorld(tmp_path), Held("log")
    world.log = broker
    world.insert(tables.DEVICES, {"device_id": "d1"})
    world.action()
    job = world.job()
    running = threading.Thread(target=getattr(job, how), daemon=True)
    running.start()
    assert broker.began.wait(WAIT_S)
    job.stop()
    running.join(WAIT_S / 3)
    assert not running.is_alive()
    assert [(row["state"], row["outbox"]) for row in world.rows("action_targets")] == [("PENDING", "command")]
    broker.goes_on.set()
    job = world.job()
    job.turn()
    job.close()
    assert world.states() == {"QUEUED"}
    assert set(broker.keys) == {"a1/d1/1"}


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    world = EngineWorld(tmp_path)
    world.log, world.others = PretendedLog("log-roof", "roof"), [PretendedLog("log-yard", "yard")]
    return world


def test_the_job_sends_to_two_logs_and_a_restart_knows_the_places(world: EngineWorld) -> None:
    roof, (yard,) = world.log, world.others
    world.insert(tables.DEVICES, {"device_id": "d1", "log": "roof"}, {"device_id": "d2", "log": "log-yard"})
    world.action()
    world.job().turn()
    assert (roof.keys, yard.keys) == (["a1/d1/1"], ["a1/d2/1"])
    assert {row["device_id"]: row["log_id"] for row in world.rows("action_targets")} == {
        "d1": "log-roof",
        "d2": "log-yard",
    }
    world.insert(tables.DEVICES, {"device_id": "d3", "log": "yard"})
    world.action("a2", device_ids=["d3"], percentage=None)
    world.job().turn()
    assert (roof.keys, yard.keys) == (["a1/d1/1"], ["a1/d2/1", "a2/d3/1"])


def test_the_job_goes_on_while_one_broker_is_away_and_sends_its_records_later(world: EngineWorld) -> None:
    roof, (yard,) = world.log, world.others
    world.insert(tables.DEVICES, {"device_id": "d1", "log": "log-roof"}, {"device_id": "d2", "log": "yard"})
    roof.is_away = True
    world.action()
    job = world.job()
    job.turn()
    assert (roof.keys, yard.keys) == ([], ["a1/d2/1"])
    (waits,) = [row for row in world.rows("action_targets") if row["device_id"] == "d1"]
    assert (waits["state"], waits["outbox"], waits["log_id"]) == ("PENDING", None, None)
    assert "no broker that answers serves the log log-roof that devices.log names" in waits["message"]
    roof.is_away = False
    job._outbound.meet(WAIT_S)
    job.turn()
    assert roof.keys == ["a1/d1/1"]
    job.close()


@pytest.mark.parametrize("row_is_deleted", [False, True])
def test_a_copy_outlives_its_action_and_the_engine(world: EngineWorld, row_is_deleted: bool) -> None:
    roof, (yard,) = world.log, world.others
    world.insert(tables.DEVICES, {"device_id": "d1"})
    world.action()
    job = world.job()
    world.status("d1", "ONLINE", action_id=None, attempt=None, log_id="log-roof")
    job.turn()
    world.now_us += 1_000_000
    world.status("d1", "ONLINE", action_id=None, attempt=None, log_id="log-yard")
    job.turn()
    assert (roof.keys, yard.keys) == (["a1/d1/1"], ["a1/d1/1"])
    roof.is_away = True
    world.status("d1", "SUCCEEDED", log_id="log-yard")
    job.turn()
    job.close()
    (row,) = world.rows("action_targets")
    assert (row["state"], row["copies"]) == ("SUCCEEDED", ["1/log-roof"])
    assert world.rows("action_state")[0]["phase"] == "ENDED"
    world.now_us += 3_600 * 1_000_000
    roof.is_away = False
    if row_is_deleted:
        world.table("actions").delete()
    world.job().turn()
    assert roof.keys == ["a1/d1/1", "a1/d1/1/cancel"]
    (row,) = world.rows("action_targets")
    assert (row["copies"], world.rows("action_state")[0]["phase"]) == (None, "ENDED")
    world.job().turn()
    assert roof.keys == ["a1/d1/1", "a1/d1/1/cancel"]


_NEW = ("log_id", "cancel_log_id", "copies")


def test_open_targets_of_an_older_version_go_on(tmp_path: Path) -> None:
    """Tables without the columns of logs: the one broker of that time is the first one now."""
    world = EngineWorld(tmp_path)
    for kind in (tables.ACTION_TARGETS, tables.DEVICES):
        path = tmp_path / kind.name
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
        older = replace(kind, fields=tuple(field for field in kind.fields if field.name not in (*_NEW, "log")))
        tables.create_by_path(tmp_path, tables=[older])
    ids = {"device_id": "d1"}, {"device_id": "d2"}
    _append(world, tables.DEVICES, *ids)
    world.action()
    digest = action_of(world.rows("actions")[0], commit_version=1).digest
    _append(world, tables.ACTION_STATE, {**_state(), "digest": digest})
    queued = {"action_id": "a1", "attempt": 1, "wave": 0, "created_at": 1, "since_at": world.now_us, "updated_at": 1}
    sent = {**queued, "state": "QUEUED", "partition": 1, "offset": 4}
    owed = {**queued, "state": "PENDING", "outbox": "command"}
    _append(world, tables.ACTION_TARGETS, {**sent, "device_id": "d1"}, {**owed, "device_id": "d2"})
    world.log, world.others = PretendedLog("log-roof", "roof"), [PretendedLog("log-yard", "yard")]
    job = world.job()
    job.turn()
    assert (world.log.keys, world.others[0].keys) == (["a1/d2/1"], [])
    for id_ in ("d1", "d2"):
        world.status(id_, "SUCCEEDED", log_id="log-roof")
    job.turn()
    job.close()
    assert world.states() == {"SUCCEEDED"}
    assert {row["device_id"]: row["log_id"] for row in world.rows("action_targets")} == {"d1": None, "d2": "log-roof"}


def _state() -> dict[str, object]:
    store = {"action_id": "a1", "phase": "RUNNING", "targets": 2, "open": 2, "wave": 0, "waves": 1, "approved": -1}
    return {**store, "started_at": 1, "updated_at": 1}


def _append(world: EngineWorld, kind: tables.FieldTable, *rows: dict[str, object]) -> None:
    full = arrow_of(rows, kind)
    there = [name for name in full.column_names if name in {f.name for f in world.table(kind.name).schema().fields}]
    write_deltalake(tables.uri_of(world.root, kind.name), full.select(there), mode="append")
