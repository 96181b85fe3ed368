"""The webhook of actions: what is announced, and that a receiver that fails, hangs or is away misses nothing and delays
nobody. With real tables and a real HTTP server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.receiver import WITHIN_S, Receiver

from actions.announcements import MARK, Announcer, Patience
from actions.engine import ActionPhase, ActionState, Decision
from actions.store import DeltalakeStore
from actions.table_store import Versions
from broker_edge.errors import SettingsError
from pipelines.actions import announcer_of
from pipelines.jobs.posting import post
from pipelines.settings import Settings
from sinks.rows import now_us
from sinks.tables import create_by_path

P = ActionPhase
QUICK = Patience(look_s=0.02, retry_first_s=0.02, retry_max_s=0.1, tell_after_s=0.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


class World:
    """The tables, an engine's store, and the announcers that a test starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        create_by_path(root)
        self._store = DeltalakeStore(root)
        self._store.claim()
        self.running: list[Announcer] = []

    def put(self, action_id: str, phase: ActionPhase, **fields: Any) -> None:
        usual = {"message": f"it is {phase}", "started_us": 1, "ended_us": None, "updated_us": now_us()}
        numbers = {"targets": 3, "open": 1, "counts": {"SUCCEEDED": 2, "PENDING": 1}, "waves": 2}
        row = ActionState(action_id, "default", phase, "digest", **{**usual, **numbers, **fields})
        self._store.commit(Decision(state_updates=(row,)), Versions())

    def announce(self, receiver: Receiver, **fields: Any) -> Announcer:
        send = partial(post, receiver.url, timeout_s=0.3)
        one = Announcer(self.root, send, **{"patience": QUICK, **fields})
        self.running.append(one)
        return one

    def mark(self) -> int | None:
        return DeltaTable(str(self.root / "action_events")).transaction_version(MARK)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    yield one
    for announcer in one.running:
        announcer.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.01)


def test_gate_abort_end_and_refusal_are_announced_and_progress_is_not(world: World, receiver: Receiver) -> None:
    world.announce(receiver)
    world.put("a1", P.RUNNING)
    world.put("a1", P.WAITING_APPROVAL, wave=0)
    world.put("a1", P.WAITING_APPROVAL, wave=0, open=0)
    world.put("a1", P.RUNNING, wave=1)
    world.put("a1", P.STOPPING, stopped="aborted: 2 of 4 devices ended in error", wave=1)
    world.put("a1", P.ENDED, stopped="aborted: 2 of 4 devices ended in error", wave=1, ended_us=5)
    world.put("a2", P.REFUSED, message="refused, nothing was sent: no selector")
    world.put("a3", P.STOPPING, stopped="cancelled by ann")
    until(lambda: len(receiver.got) >= 5)
    said = [("a1", "waiting_approval"), ("a1", "aborted"), ("a1", "ended"), ("a2", "refused"), ("a3", "cancelled")]
    assert receiver.events() == said
    gate, abort = receiver.got[0], receiver.got[1]
    assert (gate["wave"], gate["waves"], gate["targets"], gate["open"]) == (2, 2, 3, 1)
    assert (gate["counts"], gate["tenant"]) == ({"SUCCEEDED": 2, "PENDING": 1}, "default")
    assert abort["message"] == "aborted: 2 of 4 devices ended in error"
    assert "wave" not in abort
    assert len({one["id"] for one in receiver.got}) == 5


@pytest.mark.parametrize("mode", ["fail", "hang", "redirect"])
def test_receiver_that_does_not_accept_gets_it_again_and_delays_no_commit(
    world: World, receiver: Receiver, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.mode = mode
    world.announce(receiver)
    with caplog.at_level(logging.INFO):
        world.put("a1", P.ENDED)
        until(lambda: receiver.tries >= 3)
        world.put("a2", P.ENDED)  # Written while the receiver fails or hangs.
        assert receiver.got == []
        receiver.mode = "accept"
        receiver.released.set()
        until(lambda: len(receiver.got) >= 2)
        assert receiver.events()[-1] == ("a2", "ended")
        until(lambda: "accepted again" in caplog.text)
    assert caplog.text.count("announcements wait") == 1
    assert "hush" not in caplog.text


def test_restart_announces_what_was_not_accepted_and_what_happened_meanwhile(world: World, receiver: Receiver) -> None:
    first = world.announce(receiver)
    before = world.mark()
    world.put("a1", P.ENDED)
    until(lambda: world.mark() != before)
    accepted = world.mark()
    receiver.mode = "fail"
    world.put("a2", P.ENDED)
    until(lambda: receiver.tries >= 2)
    first.close()
    assert world.mark() == accepted, "what was not accepted must not be marked"
    world.put("a3", P.REFUSED)
    receiver.mode = "accept"
    world.announce(receiver)
    until(lambda: len(receiver.got) >= 3)
    assert receiver.events() == [("a1", "ended"), ("a2", "ended"), ("a3", "refused")]


def test_kill_before_the_mark_announces_again_with_the_same_id(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.announce(receiver).close()
    world.put("a1", P.ENDED)
    with monkeypatch.context() as patch:
        patch.setattr(Announcer, "_mark", lambda self: None)
        killed = world.announce(receiver)
        until(lambda: len(receiver.got) == 1)
        killed.close()
    world.announce(receiver)
    until(lambda: len(receiver.got) == 2)
    assert receiver.got[0]["id"] == receiver.got[1]["id"]


def test_first_start_announces_nothing_of_the_past(world: World, receiver: Receiver) -> None:
    world.put("old", P.ENDED)
    world.announce(receiver)
    world.put("new", P.ENDED)
    until(lambda: len(receiver.got) >= 1)
    assert receiver.events() == [("new", "ended")]


def test_old_announcement_that_fails_is_dropped_with_a_line_and_holds_up_no_other(
    world: World, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.mode = "fail"
    world.announce(receiver)
    world.put("a1", P.ENDED, updated_us=now_us() - 25 * 3600 * 1_000_000)
    until(lambda: "ended of action a1 was not accepted within a day" in caplog.text)
    receiver.mode = "accept"
    world.put("a2", P.ENDED)
    until(lambda: len(receiver.got) >= 1)
    assert receiver.events() == [("a2", "ended")]


def test_close_announces_what_is_left_and_does_not_wait_for_a_receiver_that_hangs(
    world: World, receiver: Receiver
) -> None:
    announcer = world.announce(receiver, patience=Patience(look_s=3600))
    world.put("a1", P.ENDED)
    announcer.close()
    assert receiver.events() == [("a1", "ended")]
    receiver.mode = "hang"
    announcer = world.announce(receiver)
    world.put("a2", P.ENDED)
    until(lambda: receiver.tries >= 2)
    began = time.monotonic()
    announcer.close()
    assert time.monotonic() - began < 6


def test_setting_is_an_address_or_a_reference_to_one_and_is_never_shown(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(webhook: str) -> Settings:
        return Settings.model_validate({"actions": {"root": str(world.root), "webhook": webhook}})

    with pytest.raises(ValueError, match="write an http:// or https:// address, or a reference to it"):
        settings("ftp://somewhere")
    assert "hush" not in repr(settings(receiver.url))
    monkeypatch.setenv("HOOK", "no address")
    with pytest.raises(SettingsError, match="refers to a text that is not an http:// or https:// address"):
        announcer_of(settings("env:HOOK"), {})
    monkeypatch.setenv("HOOK", receiver.url)
    announcer = announcer_of(settings("env:HOOK"), {})
    assert announcer is not None
    world.put("a1", P.ENDED)
    announcer.close()
    assert receiver.events() == [("a1", "ended")]
    assert announcer_of(Settings(), {}) is None
