"""Names and payloads come from whoever can connect. None of them is more than text on any page."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from support.browser import Page, Visit, Watch, expect, overflow
from support.console_http import ask
from support.console_page import Console
from support.paho_client import PahoClient

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess

IMAGE = "<img src=x onerror=alert(7)>"
TURNED = "a\u202etxt.exe"
LONG = "long-" + "w" * 195
NAMES = (IMAGE, TURNED, LONG)
SCRIPT = b"<script>alert(8)</script>" + IMAGE.encode()


@pytest.fixture(scope="module")
def hostile(broker: BrokerProcess) -> Iterator[PahoClient]:
    """Topics, clients, payloads, user properties and groups with such names."""
    clients = [PahoClient(broker.mqtt[1], version="5", client_id=name) for name in NAMES]
    for client, name in zip(clients, NAMES, strict=True):
        client.connect()
        client.subscribe(f"{name}/#")
        client.publish(f"devices/{name}/telemetry", SCRIPT)
    with Client("grpc://{}:{}".format(*broker.flight), timeout_s=60) as flight:
        number = flight.topics()[0].partition
        for name in NAMES:
            flight.commit(name, reader_epoch=1, initial={number: 0})
    yield clients[0]
    for client in clients:
        client.__exit__(None, None, None)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("view", ["Topics", "Clients", "Groups"])
def test_a_hostile_name_is_text(
    broker: BrokerProcess, hostile: PahoClient, visit: Visit, view: str, width: int
) -> None:
    page, watch = visit(broker, f"/#{view.lower()}", viewport={"width": width, "height": 800})
    console = Console(page)
    for name in (IMAGE, "txt.exe", LONG[:20]):
        expect(console.row(name)).to_be_visible()
    is_inert(page, watch)
    console.row(IMAGE).locator("bdi").first.click()
    expect(page.locator("body")).to_contain_text(IMAGE)
    is_inert(page, watch)


@pytest.mark.parametrize("name", [".", "..", "a/b"])
def test_a_client_whose_id_is_a_step_of_a_path_opens(broker: BrokerProcess, visit: Visit, name: str) -> None:
    with PahoClient(broker.mqtt[1], version="5", client_id=name) as client:
        client.connect()
        page, _ = visit(broker, f"/#clients?{urlencode({'client': name})}")
        expect(page.get_by_role("heading", name="Client", level=2)).to_have_text(f"Client {name}")
        page.get_by_role("button", name="End session…").click()
        page.get_by_role("button", name="End session", exact=True).click()
        expect(page.get_by_text("The session has ended.")).to_be_visible()


@pytest.mark.parametrize("width", [360, 1280])
def test_a_hostile_payload_is_text(broker: BrokerProcess, hostile: PahoClient, visit: Visit, width: int) -> None:
    page, watch = visit(broker, "/#groups", viewport={"width": width, "height": 800})
    console = Console(page)
    console.tail()
    for name in NAMES:
        hostile.publish(f"devices/{name}/telemetry", SCRIPT)
    hostile.publish("devices/a/telemetry", b'{"' + SCRIPT + b'": "' + SCRIPT + b'"}')
    hostile.publish("devices/b/telemetry", TURNED.encode() + b"v" * 100_000)
    expect(console.row("devices/b/telemetry")).to_be_visible()
    expect(page.locator("tbody")).to_contain_text("<script>")
    is_inert(page, watch)
    page.keyboard.press("p")
    console.row("devices/a/telemetry").locator("[data-open]").click()
    expect(page.get_by_label("Payload")).to_contain_text("<script>")
    is_inert(page, watch)


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("width", [360, 1280])
def test_hostile_names_in_a_trace_are_text(broker: BrokerProcess, visit: Visit, width: int) -> None:
    groups = ask(broker, "GET", "/api/v1/groups").document["groups"]
    read = groups[0]["partitions"][0]
    address = f"/#trace?at={read['partition']}:{read['log_start']}"
    page, watch = visit(broker, address, viewport={"width": width, "height": 800})
    for name in (IMAGE, "txt.exe", LONG[:20]):
        expect(Console(page).row(name)).to_be_visible()
    expect(page.get_by_label("Payload")).to_contain_text("<script>")
    is_inert(page, watch)


@pytest.mark.parametrize("width", [360, 1280])
def test_a_hostile_question_is_text(broker: BrokerProcess, visit: Visit, width: int) -> None:
    question = urlencode({"user": IMAGE, "client_id": TURNED, "topic": f"devices/{IMAGE}/{LONG}"})
    page, watch = visit(broker, f"/#access?{question}", viewport={"width": width, "height": 800})
    expect(page.get_by_role("heading", name="llowed")).to_be_visible()
    expect(page.locator(".answer")).to_contain_text(IMAGE)
    is_inert(page, watch)


def is_inert(page: Page, watch: Watch) -> None:
    assert page.locator("img[src=x], main script").count() == 0
    assert watch.dialogs == []
    assert not [url for url in watch.requests if url.endswith("/x")]
    assert overflow(page) == 0
