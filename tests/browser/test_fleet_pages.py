"""The pages of the console of a fleet, over real tables and real brokers: they open without a fault, fit, everybody can
use them, they show what is in the tables, and names of strangers are only text.

With HEADWATER_SCREENSHOTS=FOLDER each is also kept as a picture (`make screenshots`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from support.browser import Page, Visit, Watch, axe_violations, expect, overflow, scrolled_tables, tall_rows
from support.console_http import ask
from support.console_page import Console
from support.fleet_console import FleetConsole, fleet_settings
from support.fleet_page import NO_SPACE, ROLLOUT, VIEWS, WAITING, device, insert, quarantine, rollout, some_life
from support.paho_client import PahoClient
from support.ports import free_port

from broker_edge.torture.process import BrokerProcess
from sinks.tables import DEVICES

SIZES = {360: 800, 1280: 900, 3840: 2160}
SHOWS = {
    "Brokers": "plant-a",
    "Rollouts": ROLLOUT,
    "Devices": "press-0",
    "Quality": "in_range",
    "record": "silver_presses",
}
"""A row of each page."""
TRACE = "/#trace?at=2:7&log=log-a"
DETAILS = {"rollout": f"/#rollouts?id={ROLLOUT}", "device": "/#devices?device=press-0", "record": TRACE}
IMAGE = "<img src=x onerror=alert(7)>"
TURNED = "a\u202etxt.exe"
LONG = "long-" + "w" * 65_531
NAMES = (IMAGE, TURNED)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("fleet")
    some_life(folder / "tables")
    return folder / "tables"


@pytest.fixture(scope="module")
def fleet(broker: BrokerProcess, root: Path) -> Iterator[FleetConsole]:
    """A console for a broker that runs, and for one that nobody runs."""
    brokers = [
        {"name": "plant-a", "admin": "http://{}:{}".format(*broker.admin)},
        {"name": "plant-b", "admin": f"http://127.0.0.1:{free_port()}"},
    ]
    places = {"root": str(root), "bronze": str(root / "bronze_telemetry")}
    with FleetConsole(root.parent, fleet_settings(root, brokers, tables=places)) as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("view", [*VIEWS, *DETAILS])
def test_a_page_opens_fits_and_is_accessible(
    fleet: FleetConsole, visit: Visit, view: str, width: int, scheme: str
) -> None:
    size = {"width": width, "height": SIZES[width]}
    address = DETAILS.get(view, f"/#{view.lower()}")
    page, _ = visit(fleet, address, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    if view in VIEWS:
        Console(page).is_at(view)
    if view == "Trace":
        expect(page.get_by_role("searchbox")).to_be_visible()
    else:
        expect(Console(page).row(SHOWS.get(view, "press-0"))).to_be_visible()
    if view == "device":
        expect(page.get_by_role("table", name="Actions of the device")).to_be_visible()
    keep(page, f"fleet-{view.lower()}-{width}-{scheme}")
    assert overflow(page) == 0
    assert width == 360 or scrolled_tables(page) == []
    assert width > 360 or tall_rows(page) == []
    assert axe_violations(page) == []


def keep(page: Page, name: str) -> None:
    folder = os.environ.get("HEADWATER_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_the_first_page_says_which_brokers_answer(fleet: FleetConsole, broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(fleet)
    console = Console(page)
    console.is_at("Brokers")
    expect(console.row("plant-a")).to_contain_text("live")
    expect(console.row("plant-b")).to_contain_text("does not answer")
    expect(page.locator(".card").filter(has_text="Brokers that answer")).to_contain_text("1 of 2")
    expect(page.locator(".alerts")).to_contain_text("at plant-b")
    own = console.row("plant-a").locator("a")
    assert own.get_attribute("href") == "http://{}:{}/".format(*broker.admin)
    assert own.get_attribute("target") == "_blank"
    assert "noreferrer" in str(own.get_attribute("rel"))


def test_a_rollout_shows_its_waves_failures_and_order(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, f"/#rollouts?id={ROLLOUT}")
    waves = page.get_by_role("table", name="Targets of each wave")
    expect(waves.get_by_role("row")).to_have_count(3)
    expect(waves.get_by_role("row").nth(1)).to_contain_text("8 of 10")
    expect(page.locator(".whole-bar")).to_contain_text("8 of 20 finished, 2 without success, 40 %")
    failures = page.get_by_role("table", name="ended without success")
    expect(failures).to_contain_text(NO_SPACE)
    expect(page.get_by_role("table", name="Time since the command")).to_contain_text("30 s")
    failures.get_by_role("link", name="Show these failed devices").click()
    devices = page.get_by_role("table", name="Devices of the action")
    expect(devices.locator("tr[data-row]")).to_have_count(2)
    assert "state=FAILED" in page.url
    page.get_by_text("The order, as it stands").click()
    expect(page.get_by_label("The order as JSON")).to_contain_text('"artifact_name": "firmware"')


def test_the_devices_of_a_rollout_begin_with_failures_and_can_be_sorted(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, f"/#rollouts?id={ROLLOUT}")
    devices = page.get_by_role("table", name="Devices of the action")
    names = devices.locator("tr[data-row] th")
    # Failed, at work, waiting, succeeded.
    expect(names).to_have_text([f"press-{number}" for number in (6, 7, 8, 9, *range(10, 20), *range(6))])
    devices.get_by_role("button", name="device").click()
    expect(names).to_have_text([f"press-{number}" for number in range(20)])
    devices.get_by_role("button", name="device").click()
    expect(names.first).to_have_text("press-19")


def test_the_place_of_a_command_leads_to_its_trace(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, f"/#rollouts?id={ROLLOUT}")
    devices = page.get_by_role("table", name="Devices of the action")
    devices.get_by_role("row", name="press-3").get_by_role("link", name="5:3").click()
    Console(page).is_at("Trace")
    expect(page.get_by_role("table", name="The targets that it was sent to")).to_contain_text("press-3")


def test_devices_are_in_the_order_of_their_numbers(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, "/#devices")
    expect(Console(page).row("press-0")).to_be_visible()
    ids = page.get_by_role("table", name="Devices in the order").locator("tr[data-row] th").all_inner_texts()
    presses = [one for one in ids if one.startswith("press-")]
    assert presses == [f"press-{number}" for number in range(20)]


@pytest.mark.parametrize("name", [".", "..", "line-4/press"])
def test_an_id_that_is_no_part_of_a_path_opens(fleet: FleetConsole, root: Path, visit: Visit, name: str) -> None:
    rollout(root, name, [(name, "FAILED")])
    device(root, name, version="3.0")
    page, _ = visit(fleet, f"/#rollouts?{urlencode({'id': name})}")
    expect(page.get_by_role("heading", name="Rollout", level=2)).to_contain_text(name)
    page.get_by_role("table", name="Devices of the action").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("table", name="Actions of the device")).to_contain_text(NO_SPACE)


def test_devices_that_have_not_told_their_version_are_found(fleet: FleetConsole, root: Path, visit: Visit) -> None:
    insert(root, DEVICES, {"device_id": "never-seen", "created_at": 1})
    page, _ = visit(fleet, "/#devices")
    console = Console(page)
    versions = page.get_by_role("table", name="Devices by product and version")
    versions.get_by_role("link", name="not told").click()
    expect(console.row("never-seen")).to_be_visible()
    expect(console.row("press-0")).to_have_count(0)
    assert "untold=true" in page.url
    choice = page.get_by_role("search").get_by_role("combobox")
    expect(choice.locator("option:checked")).to_have_text("not told")
    choice.select_option(label="2.0.9")
    expect(console.row("press-7")).to_be_visible()
    expect(console.row("never-seen")).to_have_count(0)


def test_an_alert_is_the_same_while_only_numbers_in_it_change(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet)
    group = "group reader-{} has lost {} records of telemetry-0 and loses more in {}"
    summaries = [group.format(1, 7, "18 minutes"), group.format(1, 950, "2 hours"), group.format(2, 7, "18 minutes")]
    first, later, other = page.evaluate(
        """async summaries => {
            const { keyOf } = await import(new URL("ui/notice.js", document.baseURI).href);
            return summaries.map(summary => keyOf({ name: "group", summary }));
        }""",
        summaries,
    )
    assert first == later != other


def test_a_page_asks_again_when_a_table_has_changed(fleet: FleetConsole, root: Path, visit: Visit) -> None:
    page, _ = visit(fleet, "/#quality")
    console = Console(page)
    expect(console.row("in_range")).to_be_visible()
    expect(page.get_by_text("● live")).to_be_visible()
    quarantine(root, "came while somebody looked")
    # Sooner than the page asks without a change.
    expect(console.row("came while somebody looked")).to_be_visible(timeout=6_000)


def test_a_record_is_traced_to_its_rows_and_their_commits(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, TRACE)
    steps = page.get_by_role("list", name="Steps of 2:7")
    expect(steps).to_contain_text("None of the brokers of this console has this log")
    expect(steps).to_contain_text("In bronze")
    expect(steps).to_contain_text(re.compile(r"version \d+, WRITE"))
    expect(Console(page).row("silver_presses")).to_contain_text("press-0")
    expect(steps).to_contain_text("the payload is not JSON")
    page.goto("/#trace?at=5:3&log=log-a")
    expect(page.get_by_role("table", name="The targets that it was sent to")).to_contain_text("press-3")


def test_a_record_that_only_its_broker_has_yet_is_shown(
    fleet: FleetConsole, broker: BrokerProcess, visit: Visit
) -> None:
    with PahoClient(broker.mqtt[1], version="5", client_id="traced") as client:
        client.publish("devices/traced/telemetry", b"secret", qos=1)
    page, watch = visit(fleet, "/#trace")
    page.get_by_role("searchbox").fill(placed(broker))
    page.keyboard.press("Enter")
    steps = page.get_by_role("list", name=re.compile("Steps of telemetry-"))
    expect(steps).to_contain_text("On disk and acknowledged")
    expect(steps).to_contain_text("Not in bronze")
    expect(steps).to_contain_text("Its payload is shown by its broker")
    expect(page.get_by_label("Broker")).to_have_text("plant-a")
    watch.expect("404")
    page.get_by_role("searchbox").fill("nowhere-1:1")
    page.keyboard.press("Enter")
    expect(page.locator("#trace-problem")).to_be_visible()


def test_a_trace_stays_where_it_is_when_its_broker_goes(
    fleet: FleetConsole, broker: BrokerProcess, visit: Visit
) -> None:
    with PahoClient(broker.mqtt[1], version="5", client_id="traced") as client:
        client.publish("devices/traced/telemetry", b"7", qos=1)
    page, _ = visit(fleet, f"/#trace?at={placed(broker)}")
    steps = page.get_by_role("list", name=re.compile("Steps of telemetry-"))
    expect(steps).to_contain_text("On disk and acknowledged")
    broker.kill()
    try:
        expect(steps).to_contain_text("Its broker does not say where it is")
        form, command = page.locator("main form"), page.locator("main .command")
        places = [one.bounding_box() for one in (form, steps, command)]
        assert [box["y"] for box in places if box] == sorted(box["y"] for box in places if box)
    finally:
        broker.start()


def placed(broker: BrokerProcess) -> str:
    """NAME:OFFSET of the newest telemetry of the broker."""
    found = ask(broker, "GET", "/api/v1/topics?contains=devices/traced/telemetry").document["topics"][0]
    return f"{found['name']}:{found['next'] - 1}"


@pytest.fixture
def without_tables(broker: BrokerProcess, tmp_path: Path) -> Iterator[FleetConsole]:
    with FleetConsole(
        tmp_path, fleet_settings(tmp_path / "tables", [{"admin": "http://{}:{}".format(*broker.admin)}])
    ) as running:
        yield running


def test_tables_that_do_not_exist_are_said(without_tables: FleetConsole, visit: Visit) -> None:
    page, watch = visit(without_tables, "/#quality")
    expect(page.get_by_text("does not exist yet").first).to_be_visible()
    watch.expect("503")
    page.goto("/#rollouts")
    expect(page.locator("main .problem, main .empty").first).to_be_visible()


@pytest.fixture(scope="module")
def hostile(fleet: FleetConsole, root: Path) -> None:
    """Actions, devices, messages, versions, labels and reasons with such names."""
    for number, name in enumerate((*NAMES, LONG)):
        targets = [(one, "FAILED") for one in NAMES]
        rollout(root, name, targets, message=LONG if number else name, failure=LONG if number else name, by=name)
        device(root, name, version=name, label=LONG if number else name)
        quarantine(root, name)
    quarantine(root, LONG)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("view", ["rollouts", "devices", "quality"])
def test_a_hostile_name_is_text(fleet: FleetConsole, visit: Visit, view: str, width: int) -> None:
    page, watch = visit(fleet, f"/#{view}", viewport={"width": width, "height": 800})
    for name in (IMAGE, "txt.exe", LONG[:20]):
        expect(Console(page).row(name)).to_be_visible()
    is_inert(page, watch)


@pytest.mark.usefixtures("hostile")
def test_an_id_of_64_kib_is_text_even_if_no_address_can_have_it(fleet: FleetConsole, visit: Visit) -> None:
    page, watch = visit(fleet, "/#rollouts")
    watch.expect("status of 4|ERR_CONNECTION")
    Console(page).row(LONG[:20]).locator("[data-open]").click()
    expect(page.locator("main .problem, main .verdict").first).to_be_visible()
    is_inert(page, watch)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", [IMAGE, "txt.exe"])
def test_a_hostile_rollout_and_its_devices_are_text(fleet: FleetConsole, visit: Visit, name: str, width: int) -> None:
    page, watch = visit(fleet, "/#rollouts", viewport={"width": width, "height": 800})
    Console(page).row(name).locator("[data-open]").click()
    expect(page.get_by_role("heading", name="Rollout", level=2)).to_contain_text(name)
    devices = page.get_by_role("table", name="Devices of the action")
    expect(devices).to_contain_text(IMAGE)
    is_inert(page, watch)
    devices.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", name="Device", level=2).first).to_contain_text(name)
    expect(page.get_by_role("table", name="Actions of the device")).to_contain_text(IMAGE)
    is_inert(page, watch)


def is_inert(page: Page, watch: Watch) -> None:
    assert page.locator("img[src=x], main script").count() == 0
    assert watch.dialogs == []
    assert not [url for url in watch.requests if url.endswith("/x")]
    assert overflow(page) == 0


def test_an_address_of_no_page_or_rollout_is_said(fleet: FleetConsole, visit: Visit) -> None:
    page, watch = visit(fleet, "/#overview")
    expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    page.get_by_role("link", name="Go to Brokers").click()
    Console(page).is_at("Brokers")
    watch.expect("404")
    page.goto("/#rollouts?id=nobody")
    expect(page.locator("main .problem")).to_contain_text("no action nobody")
    page.goto("/#rollouts?id=" + WAITING)
    expect(page.get_by_role("heading", name=WAITING)).to_be_visible()
