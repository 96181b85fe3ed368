"""Lists of the console: which topics they have and in which order, and what a search field keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.browser import Visit, expect
from support.console_page import Console
from support.paho_client import PahoClient

from broker_edge.torture.process import BrokerProcess

TOPICS = ("!first", "dev-2/t", "dev-10/t", "x/$y")
MANY = 130
"""More internal topics than a page of a list has rows."""


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[PahoClient]:
    with PahoClient(broker.mqtt[1], version="5", client_id="lister") as client:
        client.subscribe("$receipts")
        for topic in TOPICS:
            client.publish(topic, b"1")
        yield client


def topics(page: Any) -> list[str]:
    return [str(one) for one in page.locator("main tr[data-row] th").all_inner_texts()]


@pytest.mark.usefixtures("client")
def test_internal_topics_are_behind_a_switch(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#topics")
    console = Console(page)
    expect(console.row("x/$y")).to_be_visible()
    assert topics(page) == sorted(TOPICS)
    switch = page.get_by_role("checkbox", name="Internal topics")
    switch.check()
    expect(console.row("$state/")).to_be_visible()
    assert set(topics(page)) > set(TOPICS)
    assert "internal=true" in page.url
    switch.uncheck()
    expect(console.row("$state/")).to_have_count(0)
    console.search().fill("$state")
    expect(console.row("$state/")).to_be_visible()
    expect(switch).to_be_checked()


@pytest.mark.usefixtures("client")
def test_the_list_goes_on_behind_thousands_of_internal_topics(broker: BrokerProcess, visit: Visit) -> None:
    page, watch = visit(broker, "/#groups")

    def crowded(route: Any) -> None:
        """A page of internal topics, after which there are more of them."""
        row = {"partition": 0, "name": "internal-0", "class": "internal", "first": 0, "next": 1}
        rows = [{**row, "topic": f"$state/session/{number:03}"} for number in range(MANY)]
        route.fulfill(json={"topics": rows, "next": rows[-1]["topic"]})

    page.route(lambda url: "/api/v1/topics" in url and "after=" not in url, crowded)
    Console(page).go("Topics")
    expect(Console(page).row("dev-10/t")).to_be_visible()
    assert not [name for name in topics(page) if name.startswith("$")]
    asked = [url for url in watch.requests if "after=%24" in url]
    assert len(asked) == len([url for url in asked if "%F4%8F%BF%BF" in url]) > 0


@pytest.mark.usefixtures("client")
def test_a_search_field_keeps_what_is_typed_while_the_list_is_asked_for(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#topics")
    expect(Console(page).row("x/$y")).to_be_visible()
    shown = page.evaluate(_TYPE_DURING_THE_CHANGE, "dev-")
    # The rest is typed at the moment at which the beginning becomes the view.
    expect(Console(page).search()).to_have_value("dev-1")
    assert set(shown) == {"dev-1"}
    expect(Console(page).row("dev-2/t")).to_have_count(0)
    page.go_back()
    page.go_forward()
    expect(Console(page).search()).to_have_value("dev-1")


_TYPE_DURING_THE_CHANGE = """
beginning => new Promise(resolve => {
  const field = document.querySelector("[data-search]");
  const type = text => {
    field.value = text;
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
  };
  const replace = history.replaceState.bind(history);
  const shown = [];
  let isOver = false;
  const look = () => {
    shown.push(field.value);
    if (isOver) resolve(shown);
    else requestAnimationFrame(look);
  };
  history.replaceState = (...given) => {
    replace(...given);
    if (shown.length > 0) {
      isOver = true;
      return;
    }
    type(beginning + "1");
    look();
  };
  type(beginning);
})
"""
"""Types more when the address changes, and tells what the field shows from then on until it changes again."""


_TYPED_AT_ONCE = """
page => {
  const type = () => {
    const field = document.querySelector("main form input");
    if (!field) return;
    watch.disconnect();
    field.value = "typed at once";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const watch = new MutationObserver(type);
  watch.observe(document.body, { childList: true, subtree: true });
  location.hash = page;
}
"""
_TWO_FRAMES = "() => new Promise(on => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(on))))"


@pytest.mark.parametrize("view", ["trace", "tail", "access"])
def test_what_is_typed_as_soon_as_a_field_is_there_stays(broker: BrokerProcess, visit: Visit, view: str) -> None:
    page, _ = visit(broker, "/#groups")
    Console(page).is_at("Groups")
    page.evaluate(_TYPED_AT_ONCE, view)
    field = page.locator("main form input").first
    expect(field).to_be_visible()
    # Two frames on, whatever runs after the field was drawn has run.
    page.evaluate(_TWO_FRAMES)
    expect(field).to_have_value("typed at once")
