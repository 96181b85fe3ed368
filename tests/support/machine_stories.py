"""Short stories of what goes wrong in real fleets, as steps of the state machine: chance alone seldom tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actions.engine import Device
from support.machine_fleet import Fleet


def status_job_is_away(fleet: Fleet, id_: str) -> None:
    """Devices answer, and nobody reads it for longer than any timeout."""
    fleet.insert(kind="command")
    fleet.turn()
    for box in fleet.boxes:
        box.is_read = False
    fleet.move(id_, 0)
    fleet.devices_work(4)
    fleet.wait(250)
    fleet.turn()
    for box in fleet.boxes:
        box.is_read = True


def cancelled_at_the_deadline(fleet: Fleet, id_: str) -> None:
    """A device is away when its command is cancelled, and the deadline passes in the same moment."""
    fleet.move(id_, None)
    fleet.insert(kind="command", deadline_s=100)
    fleet.turn()
    fleet.ask("cancel", fleet.tables.actions[-1].action_id)
    fleet.wait(200)
    for box in fleet.boxes:
        fleet.collect(box)
    fleet.turn()


def away_for_two_attempts(fleet: Fleet, id_: str) -> None:
    """A device finds several attempts of one command when it comes back, and reads them one by one."""
    fleet.move(id_, 0)
    fleet.live(1)
    fleet.move(id_, None)
    fleet.insert(kind="command", limits=(None, None, 2))
    for pause_s in (1, 100, 10):
        fleet.wait(pause_s)
        fleet.live(0)
    fleet.move(id_, 0)
    fleet.devices_work(8, (id_,), most=1)


def two_people_approve(fleet: Fleet, id_: str) -> None:
    """The second one still sees the first gate, when the next one waits already."""
    fleet.insert(kind="command", waves=2)
    for _ in range(3):
        fleet.live(3)
    fleet.approve(fleet.tables.actions[-1].action_id)
    for _ in range(3):
        fleet.live(3)
    fleet.approve_again()
    fleet.turn()


def artifact_goes_while_owed(fleet: Fleet, id_: str) -> None:
    """No broker confirms the update, and somebody takes its image back."""
    for box in fleet.boxes:
        box.answers = "never"
    fleet.insert(kind="2")
    fleet.turn()
    fleet.has_artifact(0, is_there=False)
    fleet.turn()


def unlisted_device_is_retried(fleet: Fleet, id_: str) -> None:
    fleet.insert(kind="command", selector=3)
    fleet.turn()
    fleet.ask("retry", fleet.tables.actions[-1].action_id, "d9")
    fleet.turn()


def cancel_is_cut_short(fleet: Fleet, id_: str) -> None:
    """A kill after the answer to a cancel was written, and before anything else."""
    fleet.insert(kind="command")
    fleet.ask("cancel", fleet.tables.actions[-1].action_id)
    fleet.kill(1, 0)
    fleet.turn()


def start_is_cut_short(fleet: Fleet, id_: str) -> None:
    """A kill before the row of a new action was written. Until the restart, somebody takes its image back."""
    fleet.insert(kind="2", deadline_s=100, supersede=True)
    fleet.kill(3, 0)
    fleet.has_artifact(0, is_there=False)
    fleet.turn()


def forced_after_its_download(fleet: Fleet, id_: str) -> None:
    """The device has finished before it reads the force."""
    fleet.insert(kind="3", mode="download_only", limits=(None, 10, 0))
    fleet.live(1)
    fleet.ask("force", fleet.tables.actions[-1].action_id)
    fleet.devices_work(4, (id_,))
    fleet.turn()


def slow_update(fleet: Fleet, id_: str) -> None:
    """A device tries its new image for longer than its attempt lasts, and finds the next one."""
    fleet.move(id_, 0)
    fleet.insert(kind="2", limits=(None, None, 2))
    fleet.live(0)
    fleet.live(3)
    for pause_s in (250, 10):
        fleet.wait(pause_s)
        fleet.live(0)
    fleet.devices_work(1, (id_,))


def cancelled_after_it_left(fleet: Fleet, id_: str) -> None:
    """A device is back in the table when a user cancels it, and the cancel of its departure is still owed."""
    fleet.insert(kind="command", is_dynamic=True)
    fleet.turn()
    for box in fleet.boxes:
        box.is_up = False
    before = fleet.everyone.get(id_) or Device(id_, "default")
    for row in (None, before):
        fleet.set_device(id_, row)
        fleet.turn()
    fleet.ask("cancel", fleet.tables.actions[-1].action_id, id_)
    fleet.turn()
    for box in fleet.boxes:
        box.is_up = True
    for _ in range(3):
        fleet.turn()


def superseded_while_it_was_away(fleet: Fleet, id_: str) -> None:
    """A device has left the selection of an older update while a newer one took its place."""
    fleet.set_device(id_, Device(id_, "default", labels={"in": "yes"}))
    fleet.insert(kind="2", selector=4, is_dynamic=True)
    fleet.live(0)
    fleet.set_device(id_, Device(id_, "default"))
    fleet.live(0)
    fleet.insert(kind="3", supersede=True)
    for _ in range(3):
        fleet.live(4)
    fleet.set_device(id_, Device(id_, "default", labels={"in": "yes"}))
    fleet.live(4)


def joins_an_update_that_was_superseded(fleet: Fleet, id_: str) -> None:
    """A device has the newer update, and then matches an older dynamic one for the first time."""
    fleet.set_device(id_, Device(id_, "default"))
    fleet.insert(kind="2", selector=4, is_dynamic=True)
    fleet.live(0)
    fleet.insert(kind="3", supersede=True)
    for _ in range(3):
        fleet.live(4)
    fleet.set_device(id_, Device(id_, "default", labels={"in": "yes"}))
    fleet.live(4)


STORIES: Mapping[str, Callable[[Fleet, str], None]] = {
    one.__name__: one
    for one in (
        status_job_is_away,
        cancelled_at_the_deadline,
        away_for_two_attempts,
        two_people_approve,
        artifact_goes_while_owed,
        unlisted_device_is_retried,
        cancel_is_cut_short,
        start_is_cut_short,
        forced_after_its_download,
        slow_update,
        cancelled_after_it_left,
        superseded_while_it_was_away,
        joins_an_update_that_was_superseded,
    )
}
