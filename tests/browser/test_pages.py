"""Every page of the console, wide and narrow, light and dark: it opens without a fault, fits, and everybody can use it.

With HEADWATER_SCREENSHOTS=FOLDER each is also kept as a picture (`make screenshots`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Page, Visit, axe_violations, expect, overflow, scrolled_tables
from support.console_page import LIVE, VIEWS, Console, place, some_life
from support.paho_client import PahoClient

from broker_edge.torture.process import BrokerProcess

SIZES = {360: 800, 1280: 900}
SHOWS = {
    "Overview": "telemetry-0", "Topics": LIVE, "Tail": LIVE, "Clients": "press-1", "Groups": "pipeline",
    "Log": "telemetry-0", "Damage": "telemetry-0", "Trace": "pipeline",
}  # fmt: skip
"""A row of each page. Access has none on a broker that has refused nothing."""


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[PahoClient]:
    with some_life(broker) as client:
        yield client


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_page_opens_fits_and_is_accessible(
    broker: BrokerProcess, client: PahoClient, visit: Visit, view: str, width: int, scheme: str
) -> None:
    size = {"width": width, "height": SIZES[width]}
    page, _ = visit(broker, address(broker, view), viewport=size, color_scheme=scheme, reduced_motion="reduce")
    console = Console(page)
    if view == "Tail":
        console.tail()
        client.publish(LIVE, b'{"temperature": 21.5, "unit": "C"}')
    console.is_at(view)
    if view == "Access":
        expect(page.locator(".answer")).to_be_visible()
    else:
        expect(console.row(SHOWS[view])).to_be_visible()
    keep(page, f"{view.lower()}-{width}-{scheme}")
    assert overflow(page) == 0
    assert width == 360 or scrolled_tables(page) == []
    assert axe_violations(page) == []


def address(broker: BrokerProcess, view: str) -> str:
    """Where a page has something to show. A tail is opened by a test that then publishes."""
    if view == "Tail":
        return "/#groups"
    query = {"Access": f"?user=ann&topic={LIVE}", "Trace": f"?at={place(broker, LIVE)}" if view == "Trace" else ""}
    return f"/#{view.lower()}{query.get(view, '')}"


def keep(page: Page, name: str) -> None:
    folder = os.environ.get("HEADWATER_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_without_scripts_the_page_says_so_and_where_to_look(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, java_script_enabled=False)
    # Without scripts the parts of a `noscript` are elements, and Playwright takes its text for none.
    said = page.locator("noscript")
    assert "JavaScript" in said.inner_text()
    expect(said.locator("a[href$='api/v1/status']")).to_be_visible()
