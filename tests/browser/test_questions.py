"""The pages that answer a question: why somebody may not do something, where a record is, and what the log has lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.browser import Page, Visit, axe_violations, expect
from support.console_http import ask
from support.console_page import LIVE, Console, place, some_life
from support.console_users import ACL, DENIED, Signed, start_signed
from support.paho_client import PahoClient
from support.programs import StartBroker

from broker_edge.torture.process import BrokerProcess

LINE = ACL.splitlines().index(DENIED) + 1
"""Of the line in the ACL file."""


@pytest.fixture(scope="module")
def signed(start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return start_signed(start_broker, tmp_path_factory.mktemp("users"))


def as_viewer(signed: Signed, visit: Visit, at: str) -> Page:
    page, watch = visit(signed.broker, at)
    watch.expect("401")
    page.get_by_label("Name", exact=True).fill("viewer")
    page.get_by_label("Password", exact=True).fill(signed.passwords["viewer"])
    page.get_by_role("button", name="Sign in").click()
    return page


def verdict(page: Page, text: str) -> Any:
    return page.get_by_role("heading", name=text, exact=True)


def test_a_viewer_sees_which_line_denies_a_publish(signed: Signed, visit: Visit) -> None:
    page = as_viewer(signed, visit, "/#groups")
    Console(page).is_at("Groups")
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.get_by_role("textbox", name="User").fill("device")
    page.get_by_role("textbox", name="Client id").fill("press-1")
    page.get_by_role("textbox", name="Topic").fill("secret/plan")
    page.keyboard.press("Enter")
    expect(verdict(page, "Not allowed")).to_be_visible()
    answer = page.locator(".answer")
    expect(answer).to_contain_text(
        f"Line {LINE} of the ACL file {signed.acl_file} denies it, whatever other lines allow"
    )
    expect(answer.get_by_text(DENIED)).to_be_visible()
    # The address has the question: sent to somebody else who may look, it gives the answer.
    address = page.url
    other = as_viewer(signed, visit, address)
    expect(verdict(other, "Not allowed")).to_be_visible()
    other.get_by_role("textbox", name="Topic").fill(LIVE)
    other.keyboard.press("Enter")
    expect(verdict(other, "Allowed")).to_be_visible()


def test_one_click_leads_from_a_refusal_to_the_line_that_denies(signed: Signed, visit: Visit) -> None:
    with signed.device("refused-1") as device:
        device.publish("secret/plan", b"no")
    page = as_viewer(signed, visit, "/#access")
    row = Console(page).row("refused-1")
    expect(row).to_contain_text("publish over mqtt, 1 time: the ACL file does not allow it")
    expect(row.get_by_text("secret/plan", exact=True)).to_be_visible()
    assert axe_violations(page) == []
    row.get_by_role("link", name="Ask why about this publish").click()
    answer = page.locator(".answer")
    expect(verdict(page, "Not allowed")).to_be_visible()
    expect(answer).to_contain_text(f"Line {LINE} of the ACL file {signed.acl_file} denies it")
    expect(answer.get_by_text(DENIED)).to_have_count(1)
    for name, value in (("User", "device"), ("Client id", "refused-1"), ("Topic", "secret/plan")):
        expect(page.get_by_role("textbox", name=name)).to_have_value(value)
    # The address has the question, to be sent to somebody.
    page.reload()
    expect(verdict(page, "Not allowed")).to_be_visible()


@pytest.mark.parametrize(
    "topic",
    ["secret/<img src=x onerror=alert(1)>", "secret/\u202egnp.exe", "secret/%2e?a=b&access=replay"],
    ids=["markup", "direction", "address"],
)
def test_a_hostile_topic_of_a_refusal_is_text_and_is_asked_about_as_it_is(
    signed: Signed, visit: Visit, topic: str
) -> None:
    with signed.device("hostile-1") as device:
        device.publish(topic, b"no")
    page = as_viewer(signed, visit, "/#access")
    row = Console(page).row("hostile-1")
    expect(row.get_by_text(topic, exact=True)).to_be_visible()
    row.get_by_role("link", name="Ask why about this publish").click()
    expect(verdict(page, "Not allowed")).to_be_visible()
    expect(page.get_by_role("textbox", name="Topic")).to_have_value(topic)
    expect(page.get_by_role("combobox", name="Action")).to_have_value("publish")
    expect(page.locator("main img")).to_have_count(0)


def test_a_topic_that_was_cut_is_not_asked_about(signed: Signed, visit: Visit) -> None:
    with signed.device("long-1") as device:
        device.publish("secret/" + "x" * 60_000, b"no")
    page = as_viewer(signed, visit, "/#access")
    row = Console(page).row("long-1")
    expect(row).to_contain_text("only the beginning of a topic this long")
    row.get_by_role("link", name="Ask why about this publish").click()
    expect(page.get_by_role("textbox", name="Client id")).to_have_value("long-1")
    topic = page.get_by_role("textbox", name="Topic")
    expect(topic).to_be_focused()
    expect(topic).to_have_value("")
    expect(page.locator(".answer")).to_have_count(0)
    page.keyboard.type("secret/x")
    page.keyboard.press("Enter")
    expect(verdict(page, "Not allowed")).to_be_visible()


def test_what_is_no_question_is_said_at_the_form(broker: BrokerProcess, visit: Visit) -> None:
    page, watch = visit(broker, "/#access?access=subscribe&topic=a/%23/b")
    watch.expect("400")
    expect(page.get_by_role("alert")).to_contain_text(" ")
    expect(page.get_by_role("textbox", name="Filter")).to_have_value("a/#/b")


def test_a_record_is_traced_to_a_session_that_has_passed_it(broker: BrokerProcess, visit: Visit) -> None:
    topic = "devices/traced/telemetry"
    with PahoClient(broker.mqtt[1], version="5", client_id="watcher") as watcher:
        watcher.subscribe("devices/+/telemetry")
        with PahoClient(broker.mqtt[1], version="5", client_id="traced") as device:
            device.publish(topic, b'{"temperature": 21.5}')
        watcher.receive()
        page, _ = visit(broker, "/#groups")
        console = Console(page)
        console.is_at("Groups")
        page.keyboard.press("g")
        page.keyboard.press("r")
        console.is_at("Trace")
        expect(page.get_by_role("searchbox", name="Partition and offset")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type(place(broker, topic))
        page.keyboard.press("Enter")
        steps = page.get_by_role("list", name="Steps of")
        expect(steps).to_contain_text(topic)
        expect(steps.get_by_role("heading", name="On disk and acknowledged")).to_be_visible()
        expect(console.row("watcher")).to_contain_text("has passed the record")
        expect(page.get_by_label("Payload")).to_contain_text("temperature")


def test_a_row_of_the_tail_leads_to_its_trace(broker: BrokerProcess, visit: Visit) -> None:
    with some_life(broker):
        name, _, offset = place(broker, LIVE).partition(":")
        page, _ = visit(broker, f"/#tail?from=offset&at={offset}&partition={name}&filter={LIVE}")
        console = Console(page)
        console.row(f"{name}:{offset}").get_by_role("link", name="Trace").click()
        console.is_at("Trace")
        expect(page.get_by_role("list", name="Steps of")).to_contain_text(LIVE)
        expect(console.row("pipeline")).to_be_visible()


@pytest.mark.parametrize("at", ["telemetry-0", "no-such-partition:0"])
def test_what_is_no_record_is_said_at_the_form(broker: BrokerProcess, visit: Visit, at: str) -> None:
    page, watch = visit(broker, f"/#trace?at={at}")
    watch.expect("40[04]")
    expect(page.get_by_role("alert")).to_contain_text(" ")


def test_a_record_that_is_still_to_come_is_not_yet_there(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#trace?at=telemetry-0:999,999,999")
    expect(page.get_by_role("heading", name="Not yet in the log")).to_be_visible()


def test_a_log_without_damage_is_said_to_have_none(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#damage")
    main = page.locator("main")
    expect(main).to_contain_text("No damage: no record that should be there is missing")
    expect(main).to_contain_text("There are no gaps")
    expect(Console(page).row("telemetry-0")).to_be_visible()
    expect(main).to_contain_text("headwater log verify --online DATA_DIR")


def test_control_lost_offsets_are_told_from_removed_ones(broker: BrokerProcess, visit: Visit) -> None:
    page, watch = visit(broker, "/#groups")
    # The log does not reach as far as the offset that the link leads to.
    watch.expect("400")
    console = Console(page)
    console.is_at("Groups")

    def damaged(route: Any) -> None:
        status = route.fetch().json()
        first = status["partitions"][0]
        first["gaps"] = [
            {"start": 0, "end": 1_000, "reason": "retention", "detail": "below the log start"},
            {"start": 1_200, "end": 1_210, "reason": "damage", "detail": "checksum"},
        ]
        first["damaged_bytes"] = 4_096
        route.fulfill(body=json.dumps(status), content_type="application/json")

    page.route("**/api/v1/status", damaged)
    console.go("Damage")
    main = page.locator("main")
    expect(main).to_contain_text("10 offsets lost in 1 range, 4 KiB damaged")
    expect(main).not_to_contain_text("No damage")
    lost = console.row("checksum")
    expect(lost).to_contain_text("lost by damage")
    expect(console.row("below the log start")).to_contain_text("removed by retention")
    lost.get_by_role("link", name="After the gap").click()
    console.is_at("Tail")
    assert "at=1210" in page.url


def test_the_overview_counts_losses_and_not_what_retention_removed(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#groups")
    console = Console(page)
    console.is_at("Groups")

    def damaged(route: Any) -> None:
        status = route.fetch().json()
        gaps = [{"start": 0, "end": 1_000, "reason": "retention", "detail": "below the log start"}]
        lost = {"start": 1_200, "end": 1_210, "reason": "damage", "detail": "checksum"}
        status["partitions"][0].update(gaps=gaps)
        status["partitions"][1].update(gaps=[*gaps, lost], gaps_left_out=2, damaged_bytes=4_096)
        route.fulfill(body=json.dumps(status), content_type="application/json")

    page.route("**/api/v1/status", damaged)
    console.go("Overview")
    damage = page.get_by_role("table", name="Partitions of the log").get_by_role("row")
    expect(damage.nth(1)).to_contain_text("none")
    expect(damage.nth(2)).to_contain_text("3 ranges lost, 4 KiB damaged")
    damage.nth(2).get_by_role("link", name="3 ranges lost").click()
    console.is_at("Damage")


def test_the_history_of_a_client_shows_its_kick(broker: BrokerProcess, visit: Visit) -> None:
    with PahoClient(broker.mqtt[1], version="5", client_id="kicked-1"):
        assert ask(broker, "DELETE", "/api/v1/clients/kicked-1?session=true").status == 200
    # Its session has ended, and what is known of it is still found, in the list of all.
    page, watch = visit(broker, "/#clients")
    row = Console(page).row("kicked-1")
    expect(row).to_be_visible()
    watch.expect("404")
    row.get_by_role("link", name="kicked-1").click()
    history = page.get_by_role("region", name="History")
    expect(history.locator("tr", has_text="disconnected by an operator")).to_contain_text("ended its session")
    expect(history.locator("tr", has_text="● connected")).to_contain_text("127.0.0.1")
    expect(page.get_by_text("Nobody with this id is connected or has a session now.")).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)
    assert axe_violations(page) == []


def test_a_refused_client_leads_from_its_history_to_the_line_that_denies(signed: Signed, visit: Visit) -> None:
    with signed.device("refused-2") as device:
        device.publish("secret/plan", b"no")
        device.publish("secret/plan", b"no")
        page = as_viewer(signed, visit, "/#clients?client=refused-2")
        history = page.get_by_role("region", name="History")
        refusal = history.locator("tr", has_text="refused (publish)")
        expect(refusal).to_contain_text("the ACL file does not allow it")
        expect(refusal.get_by_text("secret/plan", exact=True)).to_be_visible()
        expect(refusal).to_contain_text("2")
        refusal.get_by_role("link", name="Ask why").click()
        expect(page.get_by_role("textbox", name="Client id")).to_have_value("refused-2")
        expect(page.locator(".answer")).to_contain_text(f"Line {LINE} of the ACL file {signed.acl_file} denies it")
