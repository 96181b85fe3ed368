"""Signing in by the form, what each right shows, and what one stream too many is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.browser import Page, Route, Visit, axe_violations, expect
from support.console_http import ask, stream
from support.console_page import Console
from support.console_users import Signed, start_signed
from support.paho_client import PahoClient
from support.programs import StartBroker

from broker_edge.torture.process import BrokerProcess


@pytest.fixture(scope="module")
def signed(start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return start_signed(start_broker, tmp_path_factory.mktemp("users"))


@pytest.fixture(scope="module")
def device(signed: Signed) -> Iterator[PahoClient]:
    with signed.device("press-1") as client:
        client.publish("devices/press-1/telemetry", b'{"temperature": 21.5}')
        yield client


def fill(page: Page, name: str, password: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.usefixtures("device")
def test_the_form_leads_back_to_the_view(signed: Signed, visit: Visit) -> None:
    page, watch = visit(signed.broker, "/#groups")
    watch.expect("401")
    expect(page.get_by_label("Password")).to_be_visible()
    assert axe_violations(page) == []
    fill(page, "operator", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("credentials are invalid")
    fill(page, "operator", signed.passwords["operator"])
    console = Console(page)
    console.go("Clients")
    expect(console.row("press-1")).to_be_visible()
    [cookie] = page.context.cookies()
    name = f"headwater-session-{signed.broker.admin[1]}"
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (name, True, "Strict")
    assert page.evaluate("() => document.cookie") == ""
    # The address of the view, opened by somebody who is not signed in.
    address = page.url
    other, watch = visit(signed.broker, address)
    watch.expect("401")
    fill(other, "operator", signed.passwords["operator"])
    Console(other).is_at("Clients")
    assert other.url == address


def test_signing_in_at_another_broker_of_the_host_signs_nobody_out(
    signed: Signed, start_broker: StartBroker, tmp_path: Path, visit: Visit
) -> None:
    beside = start_signed(start_broker, tmp_path, name="beside")
    page, watch = visit(signed.broker, "/#groups")
    watch.expect("401")
    fill(page, "viewer", signed.passwords["viewer"])
    Console(page).is_at("Groups")
    host, port = beside.broker.admin
    # With the cookies of the page, as another tab would.
    proof = {"user": "viewer", "password": beside.passwords["viewer"]}
    assert page.context.request.post(f"http://{host}:{port}/api/v1/session", data=proof).status == 200
    assert len(page.context.cookies()) == 2
    page.reload()
    Console(page).is_at("Groups")
    assert page.context.request.get(f"http://{host}:{port}/api/v1/console").status == 200


def test_signing_out_in_one_tab_shows_the_form_in_the_other(signed: Signed, visit: Visit) -> None:
    page, watch = visit(signed.broker)
    watch.expect("401")
    fill(page, "viewer", signed.passwords["viewer"])
    expect(page.get_by_text("● live")).to_be_visible()
    other = page.context.new_page()
    # This view asks for nothing by itself: the stream alone tells that the session has ended.
    other.goto("/#trace")
    expect(other.get_by_text("● live")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    expect(other.get_by_label("Password")).to_be_visible()
    expect(other.get_by_text("you signed out in another tab")).to_be_visible()


def test_who_signs_in_as_another_user_is_that_user_in_every_tab(signed: Signed, visit: Visit) -> None:
    page, watch = visit(signed.broker)
    watch.expect("401")
    fill(page, "operator", signed.passwords["operator"])
    expect(page.locator(".user")).to_have_text("operator")
    expect(page.get_by_text("● live")).to_be_visible()
    proof = {"user": "viewer", "password": signed.passwords["viewer"]}
    assert page.context.request.post("/api/v1/session", data=proof).ok
    expect(page.locator(".user")).to_have_text("viewer")


def test_a_late_answer_to_who_was_not_signed_in_yet_signs_nobody_out(signed: Signed, visit: Visit) -> None:
    """The page asks several questions at once, and without a session each of them is refused."""
    held: list[Route] = []
    page, watch = visit(signed.broker)
    watch.expect("401")
    expect(page.get_by_label("Password")).to_be_visible()
    page.route("**/api/v1/console", lambda route: held.append(route), times=1)
    with page.expect_request("**/api/v1/console"):
        page.reload()
    fill(page, "viewer", signed.passwords["viewer"])
    console = Console(page)
    console.go("Clients")
    (early,) = held
    with page.expect_response("**/api/v1/console"):
        early.fulfill(status=401, json={"error": "unauthenticated", "message": "sign in"})
    console.go("Groups")
    expect(page.get_by_label("Password")).to_have_count(0)


def test_who_is_signed_out_by_a_restart_of_the_broker_reads_why(
    start_broker: StartBroker, tmp_path: Path, visit: Visit
) -> None:
    signed = start_signed(start_broker, tmp_path, name="restarted")
    page, watch = visit(signed.broker, "/#groups")
    watch.expect(r"401|ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET")
    why = page.get_by_text("Your session has ended")
    outage = page.get_by_role("status").filter(has_text="has not answered since")
    fill(page, "viewer", signed.passwords["viewer"])
    expect(page.get_by_text("● live")).to_be_visible()
    signed.broker.kill()
    expect(outage).to_be_visible()
    signed.broker.start()
    expect(why).to_be_visible()
    expect(outage).to_have_count(0)
    assert axe_violations(page) == []
    fill(page, "viewer", signed.passwords["viewer"])
    Console(page).is_at("Groups")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    expect(why).to_have_count(0)


def reasons(signed: Signed) -> list[str]:
    """Why calls were refused so far, without those of users."""
    return [kind["reason"] for kind in signed.refusals(None)["refused"] if kind["act"] == "call"]


def test_a_page_that_is_opened_is_no_refusal_but_another_caller_is(
    start_broker: StartBroker, tmp_path: Path, visit: Visit
) -> None:
    signed = start_signed(start_broker, tmp_path, name="quiet")
    page, watch = visit(signed.broker, "/#groups")
    watch.expect("401")
    expect(page.get_by_label("Password")).to_be_visible()
    ended = f"headwater-session-{signed.broker.admin[1]}=" + "A" * 43
    for headers in ({}, {"Cookie": ended}):
        assert ask(signed.broker, "GET", "/api/v1/groups", headers={"X-Headwater": "1", **headers}).status == 401
    assert reasons(signed) == []
    assert ask(signed.broker, "GET", "/api/v1/groups").status == 401
    assert reasons(signed) == ["no_credentials"]
    fill(page, "viewer", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("credentials are invalid")
    assert sorted(reasons(signed)) == ["bad_credentials", "no_credentials"]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("name", "kicks"), [("operator", 1), ("viewer", 0)])
def test_only_operators_see_how_to_act(signed: Signed, visit: Visit, name: str, kicks: int) -> None:
    page, watch = visit(signed.broker, "/#clients")
    watch.expect("401")
    fill(page, name, signed.passwords[name])
    console = Console(page)
    console.row("press-1").locator("[data-open]").click()
    expect(page.locator("main")).to_contain_text("Keep alive")
    expect(page.get_by_role("button", name="Disconnect")).to_have_count(kicks)


def test_a_page_that_is_one_stream_too_many_says_so(broker: BrokerProcess, visit: Visit) -> None:
    with ExitStack() as stack:
        for _ in range(16):
            assert stack.enter_context(stream(broker, "/api/v1/live")).status == 200
        page, watch = visit(broker, "/#clients")
        watch.expect("503")
        expect(page.get_by_role("status")).to_contain_text("max_streams")
