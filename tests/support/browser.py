"""A real browser for tests: Debian's Chromium, driven by Playwright out of `.cache/browser`, with an eye on the page.

A test fails at its end if the page wrote an error to its console, threw one, opened a dialog, or asked another host for
anything. What a test provokes it announces with `Watch.expect`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.programs import program

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".cache" / "browser"
AXE = TOOLS / "axe_playwright_python" / "axe.min.js"
# Behind the virtual environment, whose own packages come first.
if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))

try:
    from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright
except ModuleNotFoundError as error:
    raise pytest.UsageError(f"{TOOLS} lacks {error.name}: run `make test-setup`") from None

__all__ = [
    "Browser", "BrowserContext", "Page", "Route", "Visit", "Watch", "axe_violations", "chromium", "expect", "overflow",
    "scrolled_tables", "tall_rows", "watched",
]  # fmt: skip

Visit = Callable[..., tuple[Page, "Watch"]]
"""Opens a page of a broker: `visit(broker, "/", viewport=…)`, with Playwright's options for a context."""
WAIT_S = 30.0
"""The deadline of everything that a page is to show."""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
ROW_PX_MAX = 100
_INLINE = ("about", "blob", "data")

expect.set_options(timeout=WAIT_S * 1_000)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium without windows. If there is none, the test fails and says how to install it."""
    path = program("chromium", "chromium")
    with sync_playwright() as playwright:
        # The sandbox of Chromium needs a user other than root.
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=os.geteuid() != 0)
        try:
            yield browser
        finally:
            browser.close()


# No slots: Playwright notes at the object of a handler that it wraps it.
@dataclass
class Watch:
    """What a browser context did that a page of `origin` may not do."""

    origin: str
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    _errors: list[str] = field(default_factory=list)
    _expected: list[re.Pattern[str]] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        """Errors with a match are what the test is about, also those that have come already."""
        self._expected.append(re.compile(pattern))

    def follow(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda one: self._errors.append(f"error of a script: {one.error}"))
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("dialog", self._dialog)
        context.on("page", lambda page: page.on("websocket", lambda one: self.requests.append(one.url)))

    def problems(self) -> list[str]:
        """One line for each, however often it came."""
        errors = [one for one in self._errors if not any(known.search(one) for known in self._expected)]
        foreign = [f"request to another origin: {url}" for url in self.requests if self._is_foreign(url)]
        return list(dict.fromkeys(errors + foreign + [f"dialog: {text}" for text in self.dialogs]))

    def _is_foreign(self, url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme not in _INLINE and f"{parts.scheme}://{parts.netloc}" != self.origin

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self._errors.append(f"error on the console: {message.text} ({message.location.get('url', '')})")

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


@contextmanager
def watched(browser: Browser, origin: str, **options: Any) -> Iterator[tuple[Page, Watch]]:
    """A page in a context of its own with Playwright's options; fails at the end if the watch has seen a problem."""
    watch = Watch(origin)
    context = browser.new_context(base_url=origin, **options)
    try:
        context.set_default_timeout(WAIT_S * 1_000)
        watch.follow(context)
        page = context.new_page()
        yield page, watch
        # A request that a test answers itself may be on its way: its failure would be one of the next test.
        page.unroute_all(behavior="ignoreErrors")
    finally:
        context.close()
    if problems := watch.problems():
        raise AssertionError("\n".join(problems))


def overflow(page: Page) -> int:
    """By how many pixels the document is wider than the window."""
    found: int = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found


def scrolled_tables(page: Page) -> list[str]:
    """The tables that are wider than their place, by their names."""
    found: list[str] = page.evaluate(_SCROLLED)
    return found


_SCROLLED = """
() => [...document.querySelectorAll(".scroll")]
  .filter(({scrollWidth, clientWidth}) => scrollWidth > clientWidth)
  .map(element => element.getAttribute("aria-label"))
"""


def tall_rows(page: Page) -> list[str]:
    """The rows of tables that are higher than five lines, by their names and heights."""
    found: list[str] = page.evaluate(_TALL, ROW_PX_MAX)
    return found


_TALL = """
most => [...document.querySelectorAll("main tr[data-row]")]
  .filter(row => row.offsetHeight > most)
  .map(row => `${row.dataset.row}: ${row.offsetHeight} px`)
"""


def axe_violations(page: Page) -> list[str]:
    """What axe-core finds against WCAG 2.2 AA, one line for each element."""
    page.evaluate(_axe())
    found = page.evaluate(_RUN_AXE, list(RULES))
    return [": ".join(" ".join(str(word).split()) for word in one) for one in found]


@cache
def _axe() -> str:
    return AXE.read_text("utf-8")


_RUN_AXE = """
async rules => {
  const options = {runOnly: {type: 'tag', values: rules}, resultTypes: ['violations']};
  const {violations} = await axe.run(document, options);
  return violations.flatMap(({id, help, nodes}) =>
    nodes.map(({target, failureSummary}) => [id, help, target.join(' '), failureSummary]));
}
"""
