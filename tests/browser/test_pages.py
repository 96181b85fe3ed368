"""Every page of the console, wide and narrow, light and dark: it opens without a fault, fits, and everybody can use it.

With HEADWATER_SCREENSHOTS=FOLDER each is also kept as a picture (`make screenshots`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import Page, Visit, axe_violations, expect, overflow, scrolled_tables, tall_rows
from support.console_page import LIVE, VIEWS, Console, place, some_life
from support.paho_client import PahoClient

from broker_edge.torture.process import BrokerProcess

SIZES = {360: 800, 1280: 900, 3840: 2160}
SHOWS = {
    "Overview": "telemetry-0", "Topics": LIVE, "Tail": LIVE, "Clients": "press-1", "Groups": "pipeline",
    "Log": "telemetry-0", "Damage": "telemetry-0", "Trace": "pipeline",
}  # fmt: skip
"""A row of each page. Access has none on a broker that has refused nothing."""
DETAILS = {"Client": ("Clients", "press-1"), "Group": ("Groups", "pipeline")}
"""The details of a row, and their page and the name of that row."""


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[PahoClient]:
    with some_life(broker) as client:
        yield client


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("view", [*VIEWS, *DETAILS])
def test_a_page_opens_fits_and_is_accessible(
    broker: BrokerProcess, client: PahoClient, visit: Visit, view: str, width: int, scheme: str
) -> None:
    size = {"width": width, "height": SIZES[width]}
    page, _ = visit(broker, address(broker, view), viewport=size, color_scheme=scheme, reduced_motion="reduce")
    console = Console(page)
    if view == "Tail":
        console.tail()
        client.publish(LIVE, b'{"temperature": 21.5, "unit": "C"}')
    console.is_at(DETAILS[view][0] if view in DETAILS else view)
    if view == "Access":
        expect(page.locator(".answer")).to_be_visible()
    elif view in DETAILS:
        expect(page.locator(".panel dl")).to_be_visible()
    else:
        expect(console.row(SHOWS[view])).to_be_visible()
    keep(page, f"{view.lower()}-{width}-{scheme}")
    assert overflow(page) == 0
    assert width == 360 or scrolled_tables(page) == []
    assert width > 360 or tall_rows(page) == []
    assert axe_violations(page) == []


def address(broker: BrokerProcess, view: str) -> str:
    """Where a page has something to show. A tail is opened by a test that then publishes."""
    if view == "Tail":
        return "/#groups"
    if view in DETAILS:
        table, name = DETAILS[view]
        return f"/#{table.lower()}?{view.lower()}={name}"
    query = {"Access": f"?user=ann&topic={LIVE}", "Trace": f"?at={place(broker, LIVE)}" if view == "Trace" else ""}
    return f"/#{view.lower()}{query.get(view, '')}"


def keep(page: Page, name: str) -> None:
    folder = os.environ.get("HEADWATER_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("view", VIEWS)
def test_what_a_finger_touches_is_large_enough(
    broker: BrokerProcess, client: PahoClient, visit: Visit, view: str
) -> None:
    size = {"width": 360, "height": SIZES[360]}
    page, _ = visit(broker, address(broker, view), viewport=size, has_touch=True, is_mobile=True)
    Console(page).is_at("Groups" if view == "Tail" else view)
    if view in SHOWS and view != "Tail":
        expect(Console(page).row(SHOWS[view])).to_be_visible()
    assert overflow(page) == 0
    small = page.evaluate(
        _SMALL, {"nav a, main .bar button, main input[type=search], main select": 36, "td a, th a": 30}
    )
    assert small == []


_SMALL = """
sizes => Object.entries(sizes).flatMap(([what, least]) => [...document.querySelectorAll(what)]
  .filter(element => element.offsetHeight < least)
  .map(element => `${what}: ${element.textContent} is ${element.offsetHeight} px high`))
"""
"""What is lower than the least height of its kind, in pixels."""


def test_words_of_the_field_are_explained(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker)
    partitions = page.get_by_role("table", name="Partitions of the log")
    for word in ("log start", "high watermark"):
        expect(partitions.locator("abbr", has_text=word)).to_have_attribute("title", re.compile(r"\w+ \w+.*\."))
    expect(page.locator(".card abbr", has_text="Loop busy")).to_have_attribute("title", re.compile("thread"))


def test_the_labels_of_an_axis_differ(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#topics")
    # Drawings are canvases, so what is written on them is noted.
    page.evaluate(_NOTE_TEXTS)
    Console(page).go("Overview")
    # Six charts, and each of them again after a further sample.
    page.wait_for_function("() => window.drawings.length >= 18")
    for texts in page.evaluate("() => window.drawings"):
        times = [one for one in texts if re.fullmatch(r"\d\d:\d\d", one)]
        assert len(times) == len(set(times)) > 1, texts
        values = [one for one in texts if one not in times]
        assert len(values) == len(set(values)) > 0, texts


_NOTE_TEXTS = """
() => {
  const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
  const newest = new Map();
  window.drawings = [];
  CanvasRenderingContext2D.prototype.clearRect = function (...given) {
    const texts = [];
    newest.set(this.canvas, texts);
    window.drawings.push(texts);
    return clearRect.apply(this, given);
  };
  CanvasRenderingContext2D.prototype.fillText = function (text, ...given) {
    newest.get(this.canvas)?.push(text);
    return fillText.call(this, text, ...given);
  };
}
"""
"""Keeps in `window.drawings` the texts of each drawing, which begins with an empty canvas."""


@pytest.mark.parametrize(
    ("step", "says"), [(0, "not growing"), (1, "not full for a month"), (1 << 20, r"full in \d+\.?\d* (h|min)")]
)
def test_a_disk_that_hardly_grows_has_no_time_when_it_is_full(
    broker: BrokerProcess, visit: Visit, step: int, says: str
) -> None:
    page, _ = visit(broker)

    def history(route: Any) -> None:
        found = route.fetch().json()
        used = [1_000_000 + step * second for second in range(300)]
        found["series"] = {name: [0] * 300 for name in found["series"]} | {"disk_used_bytes": used}
        route.fulfill(body=json.dumps(found), content_type="application/json")

    def status(route: Any) -> None:
        found = route.fetch().json()
        found["disk"]["budget_bytes"] = 8 << 30
        route.fulfill(body=json.dumps(found), content_type="application/json")

    page.route("**/api/v1/live/history", history)
    page.route("**/api/v1/live", lambda route: route.fulfill(body="", content_type="text/event-stream"))
    page.route("**/api/v1/status", status)
    page.reload()
    expect(page.locator(".card").filter(has_text="Disk")).to_contain_text(re.compile(rf"of 8.* GiB, {says}"))


def test_without_scripts_the_page_says_so_and_where_to_look(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, java_script_enabled=False)
    # Without scripts the parts of a `noscript` are elements, and Playwright takes its text for none.
    said = page.locator("noscript")
    assert "JavaScript" in said.inner_text()
    expect(said.locator("a[href$='api/v1/status']")).to_be_visible()
