"""How the engine learns up to when the reports in a broker's log have been read: the real broker, real groups."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.engine import SECOND, START_US
from support.programs import StartBroker
from support.rollout_world import fixed_ports
from support.secured import make_users

from actions import reading
from actions.engine import Served
from actions.reading import Extent, GroupReader, Reader, Readings
from broker_edge import Client, Credentials, Row
from broker_edge.torture.process import BrokerProcess
from broker_edge.values import Commit

GROUP = "status"
WAIT_S = 30.0


def report(client: Client, device_id: str = "d1") -> None:
    client.produce([Row(topic=f"devices/{device_id}/status", value=json.dumps({"state": "ONLINE"}).encode())])


def telemetry(client: Client, count: int) -> None:
    client.produce([Row(topic=f"devices/d{number % 7}/telemetry", value=b"{}") for number in range(count)])


def ends(client: Client) -> dict[int, int]:
    bounds = client.offsets(filters=["devices/+/status", "$receipts"]).partitions
    return {number: one.high_watermark for number, one in bounds.items()}


def finish(client: Client, places: Mapping[int, int], *, epoch: int = 1) -> None:
    """What the status job does once it has written the reports below these places."""
    client.commit(GROUP, reader_epoch=epoch, offsets={number: Commit(place) for number, place in places.items()})


def test_reports_that_the_group_has_not_finished_are_unread(client: Client) -> None:
    telemetry(client, 3)
    finish(client, ends(client))
    assert GroupReader(client, GROUP).look().is_read
    before = ends(client)
    report(client)
    reader = GroupReader(client, GROUP)
    behind = reader.look()
    assert not behind.is_read
    assert behind.has_passed(before)
    assert not behind.has_passed(behind.ends)
    # The answer is kept, and a later look finds that the group has come further.
    assert not reader.look().is_read
    finish(client, behind.ends)
    assert reader.look().is_read
    assert reader.look().has_passed(behind.ends)


def test_records_that_are_no_reports_hold_nothing_however_many_follow(client: Client) -> None:
    """The group's place stays where the last report was: the status job gets no batch for records of other topics."""
    report(client)
    finish(client, ends(client))
    reader = GroupReader(client, GROUP)
    for _ in range(3):
        telemetry(client, 5_000)
        extent = reader.look()
        assert extent.is_read, extent
    report(client)
    telemetry(client, 5_000)
    extent = reader.look()
    assert not extent.is_read
    finish(client, extent.ends)
    assert reader.look().is_read


def test_receipts_and_answers_of_uplink_are_reports_too(client: Client) -> None:
    report(client)
    finish(client, ends(client))
    client.produce([Row(topic="/tenants/demo/devices/d1/action/status", value=b"[]")])
    assert GroupReader(client, GROUP).look().is_read
    assert not GroupReader(client, GROUP, uplink_filter="/tenants/+/devices/+/action/status").look().is_read


def test_a_partition_that_the_group_does_not_know_is_read_from_its_start(client: Client) -> None:
    """The broker was given more partitions, or the group committed only where it had finished something."""
    for number in range(40):
        report(client, f"d{number}")
    places = ends(client)
    used = [number for number, end in places.items() if end]
    assert len(used) > 1, "the reports are in one partition"
    finish(client, {used[0]: places[used[0]]})
    extent = GroupReader(client, GROUP).look()
    assert not extent.is_read
    assert extent.unread[used[0]] == places[used[0]]
    assert all(extent.unread[number] == 0 for number in used[1:])


def test_a_group_that_only_noted_its_start_has_finished_what_was_before_it(client: Client) -> None:
    report(client)
    client.commit(GROUP, reader_epoch=1, initial=ends(client))
    reader = GroupReader(client, GROUP)
    assert reader.look().is_read
    report(client)
    assert not reader.look().is_read


def test_without_such_a_group_nothing_waits_and_the_reason_is_given(client: Client) -> None:
    report(client)
    extent = GroupReader(client, GROUP).look()
    assert extent.is_read
    assert extent.unfollowed is not None
    assert "consumer group status" in extent.unfollowed


@pytest.mark.parametrize("rights", ["", "topic replay devices/+/status\ntopic replay $receipts"])
def test_without_the_right_to_ask_nothing_waits_and_the_reason_is_given(
    rights: str, tmp_path: Path, start_broker: StartBroker
) -> None:
    """An engine with a user of its own: one that may only publish, and one that may read reports but not the group."""
    auth = tmp_path / "auth"
    passwords = make_users(auth, "pipeline", "engine")
    status_rights = "user pipeline\ntopic replay #\ntopic replay $receipts\ntopic write devices/+/status\n"
    (auth / "acl").write_text(f"{status_rights}user engine\ntopic write devices/+/actions\n{rights}\n")
    broker = start_broker(settings={"auth.password_file": str(auth / "users"), "auth.acl_file": str(auth / "acl")})
    logins = {name: Credentials(name, f"file:{auth / f'{name}.password'}") for name in passwords}
    with (
        Client(address(broker), credentials=logins["pipeline"]) as status,
        Client(address(broker), credentials=logins["engine"]) as engine,
    ):
        report(status)
        finish(status, ends(status))
        report(status)
        assert not GroupReader(status, GROUP).look().is_read
        extent = GroupReader(engine, GROUP).look()
    assert extent.is_read
    assert extent.unfollowed is not None
    assert "may not ask" in extent.unfollowed


def address(broker: BrokerProcess) -> str:
    return "grpc://{}:{}".format(*broker.flight)


@dataclass
class Counted:
    """A reader that counts its looks. `error` is raised in place of an answer."""

    reader: Reader
    looks: int = 0
    error: Exception | None = None

    def look(self) -> Extent:
        try:
            if self.error is not None:
                raise self.error
            return self.reader.look()
        finally:
            self.looks += 1


class Looks:
    """Readings of real logs by a clock that the test moves."""

    def __init__(self, *clients: Client) -> None:
        self.now_us = START_US
        self.woken = threading.Event()
        self.readers = [Counted(GroupReader(client, GROUP)) for client in clients]
        self.readings = Readings(self.readers, wake=self.woken.set, clock_us=lambda: self.now_us)
        self.brokers = [Served(None, client.version().log_id) for client in clients]

    @property
    def logs(self) -> list[str]:
        return [broker.log_id or "" for broker in self.brokers]

    def known(self) -> dict[str, int]:
        """By log: the seconds after the start up to which its reports have been read."""
        return {log_id: (at_us - START_US) // SECOND for log_id, at_us in self.readings.known().items() if at_us}

    def look(self, after_s: int = 0) -> dict[str, int]:
        """What is known after each reader has looked anew: once, so that no look is still on its way."""
        self._wait()
        self.now_us += after_s * SECOND
        self.readings.look(self.logs, self.brokers)
        self._wait()
        return self.known()

    def _wait(self) -> None:
        for thread in [thread for thread in threading.enumerate() if thread.name == "actions-reading"]:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other without a pause."""
    for name in ("_LOOK_EVERY_S", "_AFTER_ERROR_S"):
        monkeypatch.setattr(reading, name, 0.0)


def test_a_log_without_unread_reports_is_known_up_to_the_look(client: Client, quick: None) -> None:
    report(client)
    finish(client, ends(client))
    looks = Looks(client)
    (log_id,) = looks.logs
    assert looks.known() == {}
    assert looks.look(after_s=10) == {log_id: 10}
    assert looks.woken.is_set()
    report(client)
    assert looks.look(after_s=10) == {log_id: 10}
    finish(client, ends(client))
    assert looks.look(after_s=10) == {log_id: 30}


def test_while_reports_keep_coming_a_log_is_known_up_to_the_look_that_the_group_has_passed(
    client: Client, quick: None
) -> None:
    """A status job that is always a little behind, as during a large rollout."""
    finish(client, ends(client))
    looks = Looks(client)
    (log_id,) = looks.logs
    looks.look()
    known = []
    for _ in range(4):
        report(client)
        behind = ends(client)
        looks.look(after_s=10)
        report(client)
        finish(client, behind)
        known.append(looks.look(after_s=10).get(log_id, 0))
    # There is an unread report at each look, and what is known follows one round behind.
    assert known == [10, 20, 40, 60]


def test_only_logs_that_are_wanted_and_answer_are_looked_at(client: Client, quick: None) -> None:
    finish(client, ends(client))
    looks = Looks(client)
    looks.readings.look([], looks.brokers)
    looks.readings.look(looks.logs, [Served(None, looks.logs[0], away=True)])
    assert looks.readers[0].looks == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "actions-reading"]
    looks.look()
    assert looks.readers[0].looks > 0


def test_a_broker_that_is_away_keeps_what_is_known_and_the_reason_is_told(
    start_broker: StartBroker, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    roof, yard = (start_broker(name, settings=fixed_ports()) for name in ("roof", "yard"))
    with (
        Client(address(roof), timeout_s=5, retries=0) as at_roof,
        Client(address(yard), timeout_s=5, retries=0) as at_yard,
    ):
        for client in (at_roof, at_yard):
            report(client)
            finish(client, ends(client))
        looks = Looks(at_roof, at_yard)
        one, other = looks.logs
        assert looks.look(after_s=10) == {one: 10, other: 10}
        away = address(yard)
        yard.kill()
        with caplog.at_level(logging.WARNING):
            assert looks.look(after_s=10) == {one: 20, other: 10}
        assert "timeouts wait for it" in caplog.text
        assert away in caplog.text
        yard.start()
        until(lambda: looks.look().get(other) == 20)


def test_a_broker_that_serves_another_log_starts_anew(client: Client, quick: None) -> None:
    finish(client, ends(client))
    looks = Looks(client)
    (log_id,) = looks.logs
    assert looks.look(after_s=10) == {log_id: 10}
    real, looks.readers[0].reader = looks.readers[0].reader, Another()
    assert looks.look(after_s=10) == {}
    looks.readers[0].reader = real
    assert looks.look(after_s=10) == {log_id: 30}


class Another:
    """A box that was replaced: its log has a report that nobody has read."""

    def look(self) -> Extent:
        return Extent("another-log", {1: 1}, {1: 0})


def test_an_answer_from_before_the_clock_was_set_does_not_count(client: Client, quick: None) -> None:
    finish(client, ends(client))
    looks = Looks(client)
    (log_id,) = looks.logs
    begun, go = threading.Event(), threading.Event()
    real = looks.readers[0].reader

    class Held:
        def look(self) -> Extent:
            begun.set()
            assert go.wait(WAIT_S)
            return real.look()

    looks.now_us += 3_600 * SECOND
    looks.readers[0].reader = Held()
    looks.readings.look(looks.logs, looks.brokers)
    assert begun.wait(WAIT_S)
    looks.now_us -= 3_600 * SECOND
    looks.readings.forget()
    looks.readers[0].reader = real
    go.set()
    assert looks.look(after_s=5) == {log_id: 5}


def test_a_status_job_that_stays_behind_is_told_once_and_so_is_its_return(
    client: Client, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "_TELL_AFTER_S", 0.0)
    finish(client, ends(client))
    report(client)
    looks = Looks(client)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            looks.look(after_s=60)
        finish(client, ends(client))
        looks.look(after_s=60)
    said = [record.getMessage() for record in caplog.records if looks.logs[0] in record.getMessage()]
    assert len(said) == 2, said
    assert "has not read all of its reports. Is it running?" in said[0]
    assert "timeouts go on" in said[1]


def test_a_reader_that_fails_in_an_unknown_way_is_asked_again(
    client: Client, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    finish(client, ends(client))
    looks = Looks(client)
    (log_id,) = looks.logs
    looks.readers[0].error = ValueError("nobody expected this")
    assert looks.look(after_s=10) == {}
    assert "nobody expected this" in caplog.text
    looks.readers[0].error = None
    assert looks.look(after_s=10) == {log_id: 20}
