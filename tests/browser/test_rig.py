"""Controls: the checks that every page of these tests is under can fail."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.browser import WAIT_S, Browser, Page, Watch, axe_violations, overflow, watched

HERE = "http://console.test"
GOOD = "<!doctype html><html lang=en><title>page</title><main><h1>Page</h1><p>Text</p></main>"


@pytest.fixture
def shown(browser: Browser) -> Iterator[tuple[Page, Watch]]:
    """A page that no server serves: the test gives its text."""
    watch = Watch(HERE)
    context = browser.new_context(viewport={"width": 360, "height": 640})
    watch.follow(context)
    # Nothing of this test leaves the machine.
    context.route("**/*", lambda route: route.fulfill(body="", content_type="text/html"))
    yield context.new_page(), watch
    context.close()


def show(page: Page, text: str, **headers: str) -> None:
    page.route(f"{HERE}/", lambda route: route.fulfill(body=text, content_type="text/html", headers=headers))
    page.goto(f"{HERE}/")


def test_a_page_without_faults_has_none(shown: tuple[Page, Watch]) -> None:
    page, watch = shown
    show(page, GOOD)
    assert (watch.problems(), axe_violations(page), overflow(page)) == ([], [], 0)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("console.error('no')", "error on the console: no"),
        ("nobody()", "error of a script: nobody is not defined"),
        ("fetch('http://elsewhere.test/x', {mode: 'no-cors'})", "request to another origin: http://elsewhere.test/x"),
        ("new WebSocket('ws://elsewhere.test/y')", "request to another origin: ws://elsewhere.test/y"),
        ("alert(7)", "dialog: 7"),
    ],
)
def test_control_a_fault_of_a_page_is_seen(shown: tuple[Page, Watch], script: str, problem: str) -> None:
    page, watch = shown
    show(page, f"{GOOD}<script>{script}</script>")
    deadline = time.monotonic() + WAIT_S
    while not any(one.startswith(problem) for one in watch.problems()):
        assert time.monotonic() < deadline, watch.problems()
        # Events of the page arrive while Playwright waits for an answer.
        page.evaluate("() => new Promise(requestAnimationFrame)")


def test_control_what_the_policy_of_a_page_forbids_is_seen(shown: tuple[Page, Watch]) -> None:
    page, watch = shown
    show(page, f"{GOOD}<img src=x onerror='alert(7)'>", **{"Content-Security-Policy": "default-src 'none'"})
    assert watch.dialogs == []
    assert any("Content Security Policy" in one for one in watch.problems())
    # axe works under such a policy.
    assert [one.partition(":")[0] for one in axe_violations(page)] == ["image-alt"]


def test_control_a_page_that_is_too_wide_or_too_pale_is_seen(shown: tuple[Page, Watch]) -> None:
    page, _ = shown
    show(page, f"{GOOD}<p style='width: 400px; color: #eee; background: #fff'>pale</p>")
    assert overflow(page) > 0
    assert [one.partition(":")[0] for one in axe_violations(page)] == ["color-contrast"]


def test_control_a_watched_page_fails_its_test(browser: Browser) -> None:
    def visit(expected: str) -> None:
        with watched(browser, HERE) as (page, watch):
            watch.expect(expected)
            page.route("**/*", lambda route: route.fulfill(body=GOOD, content_type="text/html"))
            page.goto("/")
            page.evaluate("() => console.error('provoked')")

    visit("provoked")
    with pytest.raises(AssertionError, match="provoked"):
        visit("something else")
