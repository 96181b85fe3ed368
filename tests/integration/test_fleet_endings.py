"""A fleet on three brokers through everything at once: faults, moves, kills, an outage of the status job, a clock that
is set, two engines, an empty inventory. Every target ends as the fleet's own log says, and no device runs an image that
it must not run.

`HEADWATER_ENDINGS=5000` runs it with that number of devices, as `make test-long` does.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.endings import UNFIT, WAVES, Endings, endings
from support.programs import StartBroker

COUNT = int(os.environ.get("HEADWATER_ENDINGS", "60"))
IS_LARGE = COUNT > 1_000
KILLS = 12 if IS_LARGE else 4
PROCESSES = max(3, -(-COUNT // 420))


@pytest.mark.timeout(4 * 3_600)
def test_every_target_ends_as_the_fleet_says_and_no_device_runs_what_it_must_not(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    with endings(tmp_path, start_broker, count=COUNT, processes=PROCESSES) as run:
        good = roll_out(run, kills=KILLS - KILLS // 3)
        assert good["stopped"] is None, good
        unexpected = run.unexpected("good")
        refuse(run)
        away = return_late(run, kills=KILLS // 3)
        wrong = [line for action in ("good", "last", *UNFIT) for line in run.wrong_endings(action)]
        wrong += unexpected
        wrong += run.unwanted_images()
        last = run.states("last")
        wrong += [f"{id_} was away and ended {last[id_]}" for id_ in away if last[id_] != "SUCCEEDED"]
        report(run, away)
        assert wrong == [], f"seed {run.world.seed}: {len(wrong)}"
        assert sum(run.world.kills.values()) == KILLS


def report(run: Endings, away: list[str]) -> None:
    """What a person wants to read of a large run (`pytest -s`)."""
    lines = [f"seed {run.world.seed}, killed {dict(run.world.kills)}, moved {len(run.moved)}, away {len(away)}"]
    for action in ("good", *UNFIT, "cancelled", "timed-out", "superseded", "last"):
        lines.append(f"{action}: {dict(Counter(run.states(action).values()))}")
    sys.stderr.write("\n".join(["", *lines, ""]))


def roll_out(run: Endings, *, kills: int) -> dict[str, Any]:
    """The good image in three waves, through everything."""
    done: set[str] = set()
    ok = [id_ for id_, kind in run.fleet.kinds.items() if kind == "ok"]

    def trouble(row: dict[str, Any] | None) -> None:
        run.fleet.check()
        if row is None or row["wave"] < 0:
            return
        if not done:
            done.add("two engines")
            run.world.start_another_engine()
            run.move(run.random.sample(ok, len(ok) // 10))
            run.empty_devices()
            run.jump()
        elif row["phase"] == "WAITING_APPROVAL" and "outage" not in done:
            # The third wave has just been approved.
            done.add("outage")
            assert run.outage("good") == [], f"seed {run.world.seed}"
        elif "outage" in done:
            run.pass_time(row)

    abort = {"abort_percentage": 40.0, "abort_min_reported": max(4, COUNT // 20)}
    run.order("good", label_expression="hw = p2", waves=WAVES, **abort)
    row = run.world.until_over("good", seconds=200 + COUNT / 3, kills=kills, pause_s=1.5, each=trouble)
    assert done == {"two engines", "outage"}
    while sum(run.world.kills.values()) < kills:
        run.world.kill_something()
    return row


def refuse(run: Endings) -> None:
    """Images that no device may take, and the good one for devices with other hardware."""
    share = 20.0 if IS_LARGE else 100.0
    for action in UNFIT:
        run.order(action, percentage=share)
    for action in UNFIT:
        run.over(action)
        states = Counter(run.states(action).values())
        assert set(states) <= {"REJECTED", "TIMED_OUT"}, (action, states)
        assert states["REJECTED"] > 0.8 * states.total(), (action, states)


def return_late(run: Endings, *, kills: int) -> list[str]:
    """Devices that are away while three images are cancelled, time out and are superseded, and return elsewhere."""
    able = [id_ for id_, kind in run.fleet.kinds.items() if kind == "ok" and run.fleet.hardware[id_] == "p2"]
    away = sorted(run.random.sample(able, max(6, len(able) // 10)))
    leave(run, away)
    queue(run, "cancelled", away)
    run.world.desk.ask("cancel", "cancelled")
    run.over("cancelled")
    queue(run, "timed-out", away)
    run.over("timed-out")
    queue(run, "superseded", away)
    run.order("last", label_expression="hw = p2", supersede=True)
    run.until("the cancels", lambda: all_told_to_stop(run, "superseded"))
    home = {id_: run.fleet.place[id_] for id_ in away}
    for number, id_ in enumerate(away):
        run.fleet.move(id_, (home[id_] + number % 2) % len(run.fleet.ports))
        run.moved.discard(id_)
    run.over("last", kills=kills)
    run.over("superseded")
    # Those that returned elsewhere come home, where the commands of all that time wait.
    for id_ in away:
        run.fleet.move(id_, home[id_])
    run.until("the fleet to come to rest", lambda: not run.is_quiet())
    run.until("the fleet to come to rest", run.is_quiet)
    return away


def all_told_to_stop(run: Endings, action: str) -> bool:
    """Whether the cancels are in the logs: until then a device that returns is right to carry the command out."""
    rows = run.world.desk.targets(action)
    return all(row["state"] in ("CANCELLING", "CANCELLED") and row["outbox"] is None for row in rows)


def leave(run: Endings, ids: list[str]) -> None:
    for id_ in ids:
        run.fleet.leave(id_)
    run.until("the fleet to come to rest", run.is_quiet)


def queue(run: Endings, action: str, ids: list[str]) -> None:
    """The commands wait for these devices in the logs of their brokers."""
    run.order(action, device_ids=ids)
    run.until(f"the commands of {action}", lambda: run.states(action) == dict.fromkeys(ids, "QUEUED"))


# -- negative controls -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_control_an_engine_that_does_not_wait_for_reports_ends_targets_in_an_outage(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    with endings(tmp_path, start_broker, count=15, without="readers", faults="") as run:
        run.order("good", label_expression="hw = p2", abort_percentage=40.0)
        run.until("the action", lambda: len(run.states("good")) == 12)
        wrong = run.outage("good")
        assert len([line for line in wrong if "reported SUCCEEDED" in line]) > 5, wrong
        assert "aborted" in wrong[-1], wrong


@pytest.mark.timeout(300)
@pytest.mark.parametrize("without", [None, "withdrawals"])
def test_control_without_withdrawals_a_device_installs_what_timed_out(
    without: str | None, tmp_path: Path, start_broker: StartBroker
) -> None:
    with endings(tmp_path, start_broker, count=6, without=without, faults="") as run:
        away = ["device-0001", "device-0002"]
        leave(run, away)
        queue(run, "timed-out", away)
        run.over("timed-out")
        run.until("the end of withdrawals", lambda: without is not None or not copies(run, "timed-out"))
        for id_ in away:
            run.fleet.move(id_, run.fleet.place[id_])
        run.until("the devices to work", lambda: not run.is_quiet())
        run.until("the fleet to come to rest", run.is_quiet)
        assert len(run.unwanted_images()) == (0 if without is None else len(away))


def copies(run: Endings, action: str) -> list[str]:
    return [row["device_id"] for row in run.world.desk.targets(action) if row["copies"]]
