"""Every act of the console of a fleet is done by keyboard alone and becomes a row of `action_requests` with the right
name, which the real engine answers. Who may not act has no buttons."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.browser import Page, Visit, axe_violations, expect
from support.console_page import Console
from support.console_users import Signed, start_signed
from support.engine_world import EngineWorld
from support.fleet_console import FleetConsole, fleet_settings
from support.fleet_page import ROLLOUT, VIEWS, WAITING, rollout, some_life
from support.programs import StartBroker

from broker_edge.torture.process import BrokerProcess
from sinks.rows import now_us
from sinks.tables import ACTION_REQUESTS, uri_of

PAUSED, OWN, REAL = "paused-1.0.0", "own-1.0.0", "real"
IMAGE = "<img src=x onerror=alert(7)>"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rollouts of every phase, and below them one that a real engine serves."""
    root: Path = tmp_path_factory.mktemp("fleet") / "tables"
    some_life(root)
    rollout(root, PAUSED, [("press-1", "PENDING"), (IMAGE, "QUEUED")], phase="PAUSED")
    rollout(root, OWN, [("press-1", "PENDING")], waves=2, phase="WAITING_APPROVAL", by=getpass.getuser())
    return root


@pytest.fixture(scope="module")
def fleet(broker: BrokerProcess, root: Path) -> Iterator[FleetConsole]:
    with FleetConsole(root.parent, fleet_settings(root, [member(broker)])) as running:
        yield running


def member(broker: BrokerProcess, **more: str) -> dict[str, Any]:
    return {"name": "plant-a", "admin": "http://{}:{}".format(*broker.admin), **more}


def requests(root: Path, action_id: str) -> list[dict[str, Any]]:
    table = DeltaTable(uri_of(root, ACTION_REQUESTS.name)).to_pyarrow_table()
    return sorted((row for row in table.to_pylist() if row["action_id"] == action_id), key=lambda row: row["at"])


def press(page: Page, button: str, reason: str = "") -> None:
    """From where the focus is to a button, through its question and to the act, with keys only."""
    console = Console(page)
    target = page.get_by_role("button", name=button)
    expect(target).to_be_visible()
    console.tab_to(target)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("textbox")).to_be_focused()
    page.keyboard.type(reason)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)


def device_row(page: Page) -> Any:
    """That of the targets: a request for the device has a row too."""
    return page.get_by_role("table", name="Devices of the action").locator("tr[data-row]").filter(has_text=IMAGE)


def test_two_keys_lead_to_every_page_and_the_help_has_only_those(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet)
    console = Console(page)
    console.is_at("Brokers")
    for view in [*VIEWS, "Brokers"]:
        page.keyboard.press("g")
        page.keyboard.press(VIEWS[view])
        console.is_at(view)
    page.keyboard.press("?")
    keys = page.get_by_role("dialog")
    for view in VIEWS:
        expect(keys).to_contain_text(view)
    for other in ("Overview", "Damage", "Tail"):
        expect(keys).not_to_contain_text(other)


def test_a_rollout_is_found_opened_and_left(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, "/#rollouts")
    console = Console(page)
    expect(console.row(PAUSED)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("2.1.0")
    expect(console.row(PAUSED)).to_have_count(0)
    expect(console.row(ROLLOUT)).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=ROLLOUT)).to_be_focused()
    page.keyboard.press("Escape")
    expect(console.row(PAUSED)).to_be_visible()


def test_a_device_is_opened_and_leads_to_its_rollout(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, "/#devices")
    console = Console(page)
    expect(console.row("press-0")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Device press-0")).to_be_focused()
    console.tab_to(page.get_by_role("table", name="Actions of the device").get_by_role("link"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=ROLLOUT)).to_be_focused()


@pytest.mark.parametrize(
    ("action_id", "button", "kind"),
    [
        (ROLLOUT, "Pause…", "pause"),
        (ROLLOUT, "Retry…", "retry"),
        (ROLLOUT, "Force…", "force"),
        (ROLLOUT, "Cancel rollout…", "cancel"),
        (PAUSED, "Resume…", "resume"),
        (WAITING, "Approve…", "approve"),
    ],
)
def test_an_act_becomes_a_request(
    fleet: FleetConsole, root: Path, visit: Visit, action_id: str, button: str, kind: str
) -> None:
    page, _ = visit(fleet, f"/#rollouts?id={action_id}")
    expect(page.get_by_role("heading", name=action_id)).to_be_focused()
    press(page, button, "it's hot")
    expect(page.get_by_role("status")).to_contain_text(f"{button[:-1]} requested; see “Not yet answered”.")
    expect(page.get_by_role("table", name="Requests without an answer")).to_contain_text(kind)
    expect(page.locator(".verdict")).to_contain_text(re.compile(rf"{kind} requested .+, not yet answered"))
    asked = page.get_by_role("button", name=button)
    expect(asked).to_be_focused()
    expect(asked).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    made = requests(root, action_id)[-1]
    wave = 2 if kind == "approve" else None
    assert (made["kind"], made["by"], made["device_id"], made["wave"]) == (kind, getpass.getuser(), None, wave)
    assert made["reason"] == "it's hot"


def test_one_device_is_cancelled_and_a_question_is_left_without_an_act(
    fleet: FleetConsole, root: Path, visit: Visit
) -> None:
    page, watch = visit(fleet, f"/#rollouts?id={PAUSED}")
    row = device_row(page)
    expect(row).to_be_visible()
    before = len(requests(root, PAUSED))
    row.get_by_role("button").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"device {IMAGE}")
    assert axe_violations(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(row.get_by_role("button")).to_be_focused()
    assert len(requests(root, PAUSED)) == before
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Cancel requested;")
    expect(row.get_by_role("button")).to_be_focused()
    made = requests(root, PAUSED)[before:]
    assert [(one["kind"], one["device_id"]) for one in made] == [("cancel", IMAGE)]
    assert watch.dialogs == []


def test_who_leaves_a_question_is_where_they_were(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, f"/#rollouts?id={PAUSED}")
    opener = device_row(page).get_by_role("button")
    dialog = page.get_by_role("dialog")
    opener.click()
    dialog.get_by_role("button", name="Back").click()
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    opener.click()
    expect(dialog).to_be_visible()
    # What opened the question takes no focus any more: the nearest heading has it.
    opener.evaluate("button => { button.disabled = true; }")
    dialog.get_by_role("button", name="Back").click()
    expect(page.get_by_role("heading", name="Devices", exact=True)).to_be_focused()


def test_nobody_approves_what_they_have_created(fleet: FleetConsole, root: Path, visit: Visit) -> None:
    page, watch = visit(fleet, f"/#rollouts?id={OWN}")
    watch.expect("409")
    expect(page.get_by_role("heading", name=OWN)).to_be_focused()
    press(page, "Approve…")
    expect(page.get_by_role("status")).to_contain_text("another person must approve it")
    assert requests(root, OWN) == []


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    """An action that the engine serves, at three devices."""
    world = EngineWorld(tmp_path / "tables")
    world.now_us = now_us()
    world.devices("press-1", "press-2", "press-3")
    world.action(REAL, created_by="ann", created_at=world.now_us)
    return world


@pytest.fixture
def served(broker: BrokerProcess, world: EngineWorld) -> Iterator[FleetConsole]:
    with FleetConsole(world.root.parent, fleet_settings(world.root, [member(broker)])) as running:
        yield running


def test_the_engine_answers_and_the_page_says_so(world: EngineWorld, served: FleetConsole, visit: Visit) -> None:
    job = world.job()
    job.turn()
    page, _ = visit(served, f"/#rollouts?id={REAL}")
    verdict, title = page.locator(".verdict"), page.get_by_role("heading", name=REAL, level=2)
    expect(verdict).to_contain_text("running")
    for button, kind, after in (("Pause…", "pause", "paused"), ("Resume…", "resume", "running")):
        title.focus()
        press(page, button)
        waiting = page.get_by_role("table", name="Requests without an answer")
        expect(waiting).to_contain_text(kind)
        job.turn()
        expect(verdict).to_contain_text(after)
        expect(page.get_by_role("status")).to_contain_text(f"The engine has answered: {kind}")
        expect(waiting).to_have_count(0)
        expect(page.get_by_role("table", name="Audit trail")).to_contain_text(f"{kind}:")
    job.close()


@pytest.fixture(scope="module")
def signed(
    start_broker: StartBroker, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FleetConsole, Signed]]:
    """A console that asks a broker with users who may do what."""
    folder: Path = tmp_path_factory.mktemp("users")
    signed = start_signed(start_broker, folder)
    asked = member(signed.broker, user="viewer", password=f"file:{folder / 'viewer.password'}")
    with FleetConsole(folder, fleet_settings(root, [asked])) as running:
        yield running, signed


@pytest.mark.parametrize("name", ["viewer", "operator"])
def test_only_operators_have_buttons(signed: tuple[FleetConsole, Signed], root: Path, visit: Visit, name: str) -> None:
    fleet, users = signed
    page, watch = visit(fleet, f"/#rollouts?id={PAUSED}")
    watch.expect("401")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Password", exact=True).fill(users.passwords[name])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=PAUSED)).to_be_visible()
    expect(Console(page).row(IMAGE)).to_be_visible()
    if name == "viewer":
        for button in ("Resume…", "Cancel"):
            expect(page.get_by_role("button", name=button)).to_have_count(0)
        return
    press(page, "Cancel rollout…")
    expect(page.get_by_role("status")).to_contain_text("Cancel rollout requested;")
    made = requests(root, PAUSED)[-1]
    assert (made["kind"], made["by"]) == ("cancel", "operator")
    assert made["confirmed_by"]
