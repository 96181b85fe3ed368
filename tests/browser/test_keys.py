"""Everything the console can do is done by keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.browser import Visit, expect
from support.console_page import LIVE, VIEWS, Console, some_life
from support.paho_client import WAIT_S, PahoClient

from broker_edge.torture.process import BrokerProcess


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[PahoClient]:
    with some_life(broker) as client:
        yield client


@pytest.mark.usefixtures("client")
def test_two_keys_lead_to_every_page(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker)
    console = Console(page)
    console.is_at("Overview")
    for view in [*VIEWS, "Overview"]:
        page.keyboard.press("g")
        page.keyboard.press(VIEWS[view])
        console.is_at(view)


@pytest.mark.usefixtures("client")
def test_a_topic_is_found_and_followed(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#topics")
    console = Console(page)
    expect(console.row("mixer-2/telemetry")).to_be_visible()
    page.keyboard.press("/")
    expect(console.search()).to_be_focused()
    page.keyboard.type("press-1")
    expect(console.row("mixer-2/telemetry")).to_have_count(0)
    expect(console.row(LIVE)).to_be_visible()
    page.keyboard.press("Escape")
    expect(console.search()).not_to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    console.is_at("Tail")
    assert "press-1" in page.url


def test_rows_are_chosen_up_and_down(broker: BrokerProcess, client: PahoClient, visit: Visit) -> None:
    page, _ = visit(broker, "/#topics")
    console = Console(page)
    expect(console.row(LIVE)).to_be_visible()
    chosen = page.locator("main tr[data-row]:focus")
    page.keyboard.press("j")
    first = chosen.get_attribute("data-row")
    page.keyboard.press("j")
    expect(chosen).not_to_have_attribute("data-row", first)
    page.keyboard.press("k")
    expect(chosen).to_have_attribute("data-row", first)


def test_a_tail_is_paused_and_goes_on(broker: BrokerProcess, client: PahoClient, visit: Visit) -> None:
    page, _ = visit(broker, "/#groups")
    console = Console(page)
    console.tail("devices/+/telemetry")
    client.publish(LIVE, b"shown before")
    rows = page.locator("tbody")
    expect(rows).to_contain_text("shown before")
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    client.publish(LIVE, b"while paused")
    with console.follows():
        page.keyboard.press("p")
    client.publish(LIVE, b"shown after")
    expect(rows).to_contain_text("shown after")
    expect(rows).not_to_contain_text("while paused")


@pytest.mark.usefixtures("client")
def test_the_command_is_copied(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#clients", permissions=["clipboard-read", "clipboard-write"])
    console = Console(page)
    expect(console.row(LIVE.split("/")[1])).to_be_visible()
    page.keyboard.press("y")
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('headwater ')")


@pytest.mark.usefixtures("client")
def test_the_keys_are_listed_and_the_list_closes(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#groups")
    console = Console(page)
    console.is_at("Groups")
    page.keyboard.press("?")
    keys = page.get_by_role("dialog")
    expect(keys).to_be_visible()
    for name in ("/", "Enter", "Esc"):
        expect(keys).to_contain_text(name)
    page.keyboard.press("Escape")
    expect(keys).to_have_count(0)


def test_a_client_is_kicked_through_the_dialog(broker: BrokerProcess, visit: Visit) -> None:
    with PahoClient(broker.mqtt[1], version="5", client_id="to-be-kicked") as victim:
        page, _ = visit(broker, "/#groups")
        console = Console(page)
        console.is_at("Groups")
        page.keyboard.press("g")
        page.keyboard.press("c")
        expect(console.row("to-be-kicked")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("to-be-kicked")
        # The list before goes with this address, so a row is from the answer to it.
        page.wait_for_url("**filter=to-be-kicked*")
        expect(console.row("to-be-kicked")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        kick = page.get_by_role("button", name="Disconnect")
        expect(kick).to_be_visible()
        console.tab_to(kick)
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("to-be-kicked")
        # The dialog holds the focus; Esc leaves it without an act.
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        assert victim.lost.empty()
        expect(kick).to_be_focused()
        page.keyboard.press("Enter")
        console.tab_to(dialog.get_by_role("button", name="Cancel"))
        page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)
        expect(kick).to_be_focused()
        page.keyboard.press("Enter")
        console.tab_to(dialog.get_by_role("button", name="Disconnect"))
        page.keyboard.press("Enter")
        victim.lost.get(timeout=WAIT_S)
