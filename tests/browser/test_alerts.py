"""What is wrong now: each alert with its remedy, a link to more where the server has that page, on every screen; and a
broker that does not let the console of a fleet look."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.browser import Page, Visit, axe_violations, expect, overflow
from support.console_page import Console
from support.console_users import start_signed
from support.fleet_console import FleetConsole, fleet_settings
from support.programs import StartBroker

from broker_edge.torture.process import BrokerProcess
from sinks import tables

LINKS = {"group": ("All groups", "Groups"), "damage": ("All damage", "Damage"), "refused": ("Ask why", "Access")}
"""Name of an alert to its link, and the page to which that leads."""
LONG = "w" * 500
SIZES = {360: 800, 3840: 2160}


def alert(name: str, summary: str, *, severity: str = "warning", remedy: str = "Run `headwater doctor`.") -> Any:
    return {"name": name, "severity": severity, "summary": summary, "remedy": remedy}


def tell(page: Page, alerts: Sequence[Mapping[str, str]], *, again: bool = True) -> None:
    """From now on the stream of the server has one event, with these alerts; a page that is loaded again begins with
    them."""
    stats = {"at_ms": 1, "sample": {}, "offsets": [], "alerts": alerts}
    body = f"event: stats\ndata: {json.dumps(stats)}\n\n"
    page.route("**/api/v1/live", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    if again:
        page.reload()


@pytest.mark.parametrize("name", LINKS)
def test_an_alert_leads_to_the_page_that_has_more(broker: BrokerProcess, visit: Visit, name: str) -> None:
    page, _ = visit(broker)
    tell(page, [alert(name, "a summary of it")])
    one = page.locator(".alerts li")
    expect(one).to_contain_text("Warning: a summary of it")
    expect(one.locator("code")).to_have_text("headwater doctor")
    title, view = LINKS[name]
    one.get_by_role("link", name=title).click()
    Console(page).is_at(view)


def test_critical_alerts_come_first_and_one_without_a_page_has_no_link(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker)
    tell(page, [alert("disk", "it fills"), alert("constructor", "stopped", severity="critical")])
    alerts = page.locator(".alerts li")
    expect(alerts).to_have_count(2)
    expect(alerts.nth(0)).to_contain_text("Critical: stopped")
    expect(alerts.nth(1)).to_contain_text("Warning: it fills")
    expect(alerts.locator("a")).to_have_count(0)


def test_alerts_are_marked_in_the_navigation_of_every_page(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#topics")
    tell(page, [alert("disk", "it fills"), alert("stopped", "it stopped", severity="critical")])
    # What was there before the reader is no news: it is said, but covers nothing.
    expect(page.locator(".notice .hidden")).to_have_text("Alert: it fills; it stopped")
    expect(page.locator(".notice .passing")).to_have_count(0)
    first = page.get_by_role("navigation").get_by_role("link", name="Overview")
    for view in ("Topics", "Groups", "Overview"):
        Console(page).go(view)
        expect(first).to_contain_text("✖ 2 alerts")


def test_an_alert_that_comes_while_another_page_is_open_is_shown(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#topics")
    tell(page, [])
    first = page.get_by_role("navigation").get_by_role("link", name="Overview")
    expect(page.locator(".phase.live")).to_be_visible()
    expect(first).not_to_contain_text("alert")
    tell(page, [alert("disk", "it fills")], again=False)
    expect(page.locator(".notice .passing")).to_have_text("Alert: it fills")
    expect(first).to_contain_text("⚠ 1 alert")


@pytest.mark.parametrize("width", SIZES)
def test_alerts_fit_every_screen(broker: BrokerProcess, visit: Visit, width: int) -> None:
    page, _ = visit(broker, viewport={"width": width, "height": SIZES[width]}, reduced_motion="reduce")
    tell(page, [alert("group", f"group {LONG} has lost 7 records"), alert("damage", "7 bytes", remedy=f"`{LONG}`")])
    expect(page.locator(".alerts li")).to_have_count(2)
    assert overflow(page) == 0
    assert axe_violations(page) == []


@pytest.fixture(scope="module")
def refusing(start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetConsole]:
    """A console whose user has no right to look at its second broker."""
    folder: Path = tmp_path_factory.mktemp("fleet")
    tables.create_by_path(folder / "tables")
    open_, closed = start_broker("open"), start_signed(start_broker, folder / "users", name="closed").broker
    admins = {"open-1": open_, "closed-1": closed}
    brokers = [{"name": name, "admin": "http://{}:{}".format(*one.admin)} for name, one in admins.items()]
    with FleetConsole(folder, fleet_settings(folder / "tables", brokers)) as running:
        yield running


def test_an_alert_of_a_fleet_leads_to_the_page_at_its_broker(refusing: FleetConsole, visit: Visit) -> None:
    page, _ = visit(refusing)
    own = Console(page).row("open-1").locator("a").get_attribute("href")
    tell(page, [alert("group", "it loses data") | {"broker": one} for one in ("open-1", "nobody")])
    mine, other = (page.locator(".alerts li").filter(has_text=one) for one in ("open-1", "nobody"))
    more = mine.get_by_role("link", name="All groups (its own console, in a new tab)")
    expect(more).to_have_attribute("href", f"{own}#groups")
    expect(more).to_have_attribute("target", "_blank")
    expect(other).to_contain_text("it loses data")
    expect(other.locator("a")).to_have_count(0)


@pytest.mark.parametrize("width", SIZES)
def test_a_broker_that_refuses_the_console_is_told_with_its_remedy(
    refusing: FleetConsole, visit: Visit, width: int
) -> None:
    page, _ = visit(refusing, viewport={"width": width, "height": SIZES[width]}, reduced_motion="reduce")
    row = Console(page).row("closed-1")
    expect(row).to_contain_text("refuses this console")
    expect(Console(page).row("open-1")).to_contain_text("live")
    expect(page.locator(".card").filter(has_text="Brokers that answer")).to_contain_text("1 of 2")
    alerts = page.locator(".alerts li")
    expect(alerts).to_have_count(1)
    expect(alerts).to_contain_text("Critical at closed-1")
    expect(alerts.locator("code").first).to_have_text("viewer")
    # The console has no page of its own for it.
    expect(alerts.locator("a")).to_have_count(0)
    assert overflow(page) == 0
    assert axe_violations(page) == []
