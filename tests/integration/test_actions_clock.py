"""The engine's job while its clock is set ahead and back, on real tables: nothing seems to have lasted a day."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from support.engine_world import SECOND, START_US, EngineWorld

from actions import heard, reading
from actions.job import ActionJob
from actions.reading import Extent

DAY_S = 86_400
HOLD_S = heard._HOLD_US // SECOND
LIMIT_S = 50
WAIT_S = 30.0


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    world = EngineWorld(tmp_path / "tables")
    world.steady_us = 7 * SECOND
    world.devices("d0")
    world.action(timeout_queued_s=LIMIT_S)
    return world


def sent(world: EngineWorld) -> ActionJob:
    """A job that has sent the command, ten seconds ago."""
    job = world.job()
    job.turn()
    job.turn()
    assert world.states() == {"QUEUED"}
    world.passes(10)
    job.turn()
    return job


def set_clock(world: EngineWorld, job: ActionJob, seconds: int) -> None:
    world.now_us += seconds * SECOND
    job.turn()


def target(world: EngineWorld) -> dict[str, Any]:
    (row,) = world.rows("action_targets")
    return row


def test_after_a_clock_that_was_set_ahead_nothing_times_out_for_ten_minutes(
    world: EngineWorld, caplog: pytest.LogCaptureFixture
) -> None:
    job = sent(world)
    with caplog.at_level(logging.WARNING):
        set_clock(world, job, DAY_S)
    assert "the clock was set ahead by 86400 s: timeouts do not count this time" in caplog.text
    world.passes(HOLD_S - 1)
    job.turn()
    assert world.states() == {"QUEUED"}
    world.passes(1)
    job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_a_clock_that_is_set_ahead_and_back_leaves_every_timeout_as_it_was(world: EngineWorld) -> None:
    job = sent(world)
    before = target(world)["since_at"]
    set_clock(world, job, DAY_S)
    assert target(world)["since_at"] == before + DAY_S * SECOND
    world.passes(5)
    set_clock(world, job, -DAY_S)
    assert target(world)["since_at"] == before
    world.passes(LIMIT_S - 16)
    job.turn()
    assert world.states() == {"QUEUED"}
    world.passes(1)
    job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_a_clock_that_was_set_back_lets_timeouts_go_on(world: EngineWorld) -> None:
    job = sent(world)
    set_clock(world, job, -DAY_S)
    world.passes(LIMIT_S - 11)
    job.turn()
    assert world.states() == {"QUEUED"}
    world.passes(1)
    job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_a_second_step_ahead_begins_the_ten_minutes_again(world: EngineWorld) -> None:
    job = sent(world)
    set_clock(world, job, DAY_S)
    world.passes(HOLD_S - 1)
    set_clock(world, job, DAY_S)
    world.passes(HOLD_S - 1)
    job.turn()
    assert world.states() == {"QUEUED"}
    world.passes(1)
    job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_a_clock_that_is_corrected_by_less_than_half_a_minute_is_followed(world: EngineWorld) -> None:
    job = sent(world)
    set_clock(world, job, 29)
    world.passes(LIMIT_S - 10 - 29)
    job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_the_deadline_is_held_too_and_stays_where_the_user_put_it(world: EngineWorld) -> None:
    world.action("a2", deadline=START_US + 3_600 * SECOND)
    job = sent(world)
    set_clock(world, job, DAY_S)
    assert world.states("a2") == {"QUEUED"}
    set_clock(world, job, -DAY_S)
    # As long as the clock is right again, only the deadline itself counts.
    world.status("d0", "IN_PROGRESS", action_id="a2")
    job.turn()
    world.now_us, world.steady_us = START_US + 3_600 * SECOND, 3_607 * SECOND
    world.status("d0", "IN_PROGRESS", action_id="a2", progress=1)
    job.turn()
    assert world.states("a2") == {"TIMED_OUT"}


def test_a_report_during_the_hold_counts(world: EngineWorld) -> None:
    job = sent(world)
    set_clock(world, job, DAY_S)
    world.passes(60)
    world.status("d0", "SUCCEEDED")
    job.turn()
    assert world.states() == {"SUCCEEDED"}


def test_a_withdrawal_is_not_given_up_because_the_clock_is_ahead(world: EngineWorld) -> None:
    """It waits 30 days for its broker, and they do not pass because somebody set the clock."""
    job = sent(world)
    world.log.is_away = True
    world.passes(LIMIT_S)
    job.turn()
    assert world.states() == {"TIMED_OUT"}
    set_clock(world, job, 31 * DAY_S)
    set_clock(world, job, -31 * DAY_S)
    world.log.is_away = False
    deadline = time.monotonic() + WAIT_S
    while len(world.log.keys) < 2:
        assert time.monotonic() < deadline, world.log.keys
        world.passes(1)
        job.turn()
    assert b'"cancel"' in world.log.values[world.log.keys[1]]


def test_control_without_the_steady_clock_a_step_ahead_times_everything_out(world: EngineWorld) -> None:
    """Negative control: a job that compares with nothing believes its clock."""
    world.steady_us = None
    job = sent(world)
    set_clock(world, job, DAY_S)
    assert world.states() == {"TIMED_OUT"}


def test_rows_of_a_clock_that_was_ahead_count_from_the_restart(world: EngineWorld) -> None:
    """The job was killed while its clock was a day ahead, and starts with the right one."""
    job = sent(world)
    set_clock(world, job, DAY_S)
    world.now_us -= DAY_S * SECOND
    job = world.job()
    job.turn()
    world.passes(LIMIT_S - 1)
    job.turn()
    assert world.states() == {"QUEUED"}
    world.passes(1)
    job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_a_restart_forgets_the_hold_but_not_the_moved_times(world: EngineWorld) -> None:
    job = sent(world)
    set_clock(world, job, DAY_S)
    job = world.job()
    job.turn()
    assert world.states() == {"QUEUED"}
    world.passes(LIMIT_S - 10)
    job.turn()
    assert world.states() == {"TIMED_OUT"}


class Answer:
    """What a look at the log says."""

    def __init__(self) -> None:
        self.unread = 1
        self.looks = 0

    def look(self) -> Extent:
        try:
            return Extent("log", {5: 1}, {5: 1 - self.unread})
        finally:
            self.looks += 1


def turns(job: ActionJob, answer: Answer, number: int = 3) -> None:
    """Turns until the log has been looked at this often."""
    wanted, deadline = answer.looks + number, time.monotonic() + WAIT_S
    while answer.looks < wanted:
        assert time.monotonic() < deadline, "nobody looks at the log"
        job.turn()


def until_states(world: EngineWorld, job: ActionJob, states: set[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while world.states() != states:
        assert time.monotonic() < deadline, world.states()
        job.turn()


def test_a_timeout_waits_for_unread_reports_and_not_longer(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_LOOK_EVERY_S", 0.0)
    answer = Answer()
    world.readers = [answer]
    job = sent(world)
    assert answer.looks == 0, "nothing is due, so nobody asks"
    world.passes(DAY_S)
    turns(job, answer)
    assert world.states() == {"QUEUED"}
    answer.unread = 0
    until_states(world, job, {"TIMED_OUT"})


def test_what_was_read_before_the_clock_was_set_does_not_let_a_target_time_out(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_LOOK_EVERY_S", 0.0)
    answer = Answer()
    world.readers = [answer]
    job = sent(world)
    set_clock(world, job, DAY_S)
    world.passes(HOLD_S)
    turns(job, answer)
    # All reports have been read once, a day ahead. After that the status job stops.
    set_clock(world, job, -DAY_S)
    turns(job, answer)
    assert world.states() == {"QUEUED"}
    answer.unread = 0
    until_states(world, job, {"TIMED_OUT"})
