"""The console as its reader finds it: pages by their names, rows by their text, keys as docs/console.md has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from broker_edge import Client, Commit
from broker_edge.torture.process import BrokerProcess
from support.browser import Page, expect
from support.console_http import ask
from support.paho_client import PahoClient

VIEWS = {
    "Overview": "o", "Topics": "t", "Tail": "l", "Clients": "c", "Groups": "g", "Log": "s", "Damage": "d",
    "Access": "a", "Trace": "r",
}  # fmt: skip
"""Name of a page to its key after `g`."""
TABS_MAX = 40
LIVE = "devices/press-1/telemetry"


class Console:
    """One open console."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def go(self, view: str) -> None:
        """By the link in the navigation, as with a mouse."""
        self.page.get_by_role("navigation").get_by_role("link", name=view).first.click()
        self.is_at(view)

    def is_at(self, view: str) -> None:
        expect(self.page.locator("nav [aria-current=page]")).to_contain_text(view)

    def row(self, text: str) -> Any:
        """The row of the table that has this text."""
        return self.page.locator("main tr[data-row]").filter(has_text=text).first

    def search(self) -> Any:
        """The field that `/` goes to."""
        return self.page.locator("[data-search]")

    def tail(self, topic_filter: str = "#") -> None:
        """Follows a filter; returns when the broker has begun to answer."""
        with self.follows():
            self.go("Tail")
        if topic_filter != "#":
            with self.follows():
                self.search().fill(topic_filter)
                self.page.keyboard.press("Enter")

    def follows(self) -> Any:
        """Waits at its end for the head of a new stream of records: what is published then is in it."""
        return self.page.expect_response(lambda answer: "/api/v1/tail" in answer.url)

    def tab_to(self, target: Any) -> None:
        """Goes on from what has the focus, as a reader without a mouse does."""
        for _ in range(TABS_MAX):
            self.page.keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"{TABS_MAX} times Tab do not lead to {target}")


def place(broker: BrokerProcess, topic: str) -> str:
    """The first record of a topic, as `telemetry-0:4711`."""
    answer = ask(broker, "GET", f"/api/v1/topics?contains={quote(topic, safe='')}")
    found = next(one for one in answer.document["topics"] if one["topic"] == topic)
    return f"{found['name']}:{found['first']}"


@contextmanager
def some_life(broker: BrokerProcess) -> Iterator[PahoClient]:
    """Something for every page: topics of three kinds of payload, a client that is here and one that is not, and a
    group that is behind. The client may be used to publish."""
    port = broker.mqtt[1]
    away = PahoClient(port, version="5", client_id="mixer-2", keep_session=True)
    with away:
        away.subscribe("devices/mixer-2/actions")
    with PahoClient(port, version="5", client_id="press-1") as client:
        client.subscribe("devices/press-1/actions")
        for number in range(20):
            client.publish(LIVE, b'{"temperature": %d.5, "unit": "C"}' % number)
        client.publish("devices/mixer-2/telemetry", b"\xa1\x61t\x18\x2a")
        client.publish("devices/mixer-2/status", b"running", retain=True)
        with Client("grpc://{}:{}".format(*broker.flight), timeout_s=60) as flight:
            number = next(one.partition for one in flight.topics() if one.topic == LIVE)
            flight.commit("pipeline", reader_epoch=1, initial={number: 0}, offsets={number: Commit(5)})
        yield client
