"""The consoles beside the whole demo: its broker, its devices, its tables and its action, while all of it works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, Visit, expect, watched
from support.console_page import Console
from support.demo_process import START_S, RunningDemo
from support.fleet_console import FleetConsole, fleet_settings

ALL_MS = 120_000
"""For what the jobs of the demo have to commit first, on a busy machine."""
_ADMIN = re.compile(r"metrics (http://\S+)/metrics")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def admin(kept: Path) -> Iterator[str]:
    """The admin address of a demo that runs."""
    demo = RunningDemo("--headless", "--devices", "30", "--data", str(kept))
    try:
        demo.wait_for("inserted the action", START_S)
        (found,) = _ADMIN.findall("\n".join(demo.said))
        yield found
    finally:
        demo.kill()


@pytest.fixture(scope="module")
def fleet(admin: str, kept: Path) -> Iterator[FleetConsole]:
    places = {"root": str(kept / "tables"), "bronze": str(kept / "tables" / "bronze_telemetry")}
    broker = {"admin": admin, "name": "demo"}
    with FleetConsole(kept, fleet_settings(kept / "tables", [broker], tables=places)) as running:
        yield running


@pytest.mark.timeout(900)
def test_the_fleet_shows_the_broker_the_devices_and_the_action_of_the_demo(fleet: FleetConsole, visit: Visit) -> None:
    page, _ = visit(fleet, "/#rollouts")
    row = page.locator("tr[data-row]").filter(has_text="faster-1")
    expect(row).to_contain_text("20 of 20", timeout=ALL_MS)
    row.get_by_role("link").first.click()
    waves = page.get_by_role("table", name="Targets of each wave")
    expect(waves.get_by_role("row").nth(1)).to_contain_text("20 of 20")
    page.goto("/#brokers")
    expect(page.locator("tr[data-row]").filter(has_text="demo")).to_contain_text("live")
    page.goto("/#devices")
    expect(page.locator("tr[data-row]").filter(has_text="device-0001").first).to_be_visible()


@pytest.mark.timeout(900)
def test_a_record_of_the_demo_is_traced_from_its_offset_to_the_commit_of_its_row(
    fleet: FleetConsole, visit: Visit
) -> None:
    page, _ = visit(fleet, "/#trace?at=telemetry-0:0")
    steps = page.get_by_role("list", name="Steps of telemetry-0:0")
    expect(steps).to_contain_text("On disk and acknowledged")
    expect(steps).to_contain_text("has passed the record", timeout=ALL_MS)
    expect(steps).to_contain_text(re.compile(r"In bronze.*version \d+, "), timeout=ALL_MS)


@pytest.mark.timeout(900)
def test_offsets_of_the_demo_grow_on_the_page_of_its_broker(admin: str, browser: Browser) -> None:
    with watched(browser, admin) as (page, _):
        page.goto("/#tail")
        Console(page).tail("devices/#")
        first = page.locator("tbody tr").first
        before = first.inner_text()
        expect(first).not_to_have_text(before)
