"""Consumer groups on the pages that show them: how far one with a filter has looked, which keep up, which have lost
records, and which hold a partition."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.browser import Page, Visit, expect
from support.console_page import LIVE, Console, place, some_life

from broker_edge import Client, Commit
from broker_edge.torture.process import BrokerProcess

GROUPS = "**/api/v1/groups?*"
MINE = {
    "partition": 0, "name": "telemetry-0", "log_start": 0, "lag_s": 1.0, "loss_s": None, "lost_records": 0,
    "high_watermark": 1_000, "lag_records": 0, "next": 1_000,
}  # fmt: skip


def told(page: Page, groups: Callable[[int], dict[str, dict[str, Any]]]) -> None:
    """From now on the broker tells of these groups, each in one partition; `groups` gets the number of the answer."""
    answers = iter(range(1_000))

    def answer(route: Any) -> None:
        found = [
            {"group": name, "owner": None, "touched_us": 1, "is_idle": False, "partitions": [MINE | here]}
            for name, here in groups(next(answers)).items()
        ]
        route.fulfill(body=json.dumps({"groups": found, "next": None}), content_type="application/json")

    page.route(GROUPS, answer)


def test_a_group_that_has_looked_without_a_match_is_not_behind(broker: BrokerProcess, visit: Visit) -> None:
    with some_life(broker), Client("grpc://{}:{}".format(*broker.flight), timeout_s=60) as flight:
        at = place(broker, LIVE)
        number = next(one.partition for one in flight.topics() if one.topic == LIVE)
        first = int(at.partition(":")[2])
        end = flight.offsets(partitions=[number]).partitions[number].high_watermark
        flight.commit("narrow", reader_epoch=1, initial={number: first}, offsets={number: Commit(first, end)})
        flight.commit("reset", reader_epoch=1, initial={number: first})
        page, _ = visit(broker, "/#groups?contains=narrow")
        console = Console(page)
        expect(console.row("narrow")).to_contain_text(f"{end:,}")
        expect(console.row("narrow")).to_contain_text("at the end")
        expect(page.get_by_text("1 group.", exact=True)).to_be_visible()
        page.goto(page.url.replace("groups?contains=narrow", f"trace?at={at}"))
        expect(console.row("narrow")).to_contain_text("has passed it (its filter does not match)")
        expect(console.row("reset")).to_contain_text("has not read it yet")
        expect(console.row("reset")).not_to_contain_text("filter")


def test_a_group_whose_lag_came_since_its_last_commit_keeps_up(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker)

    def groups(look: int) -> dict[str, dict[str, Any]]:
        end = 1_000 + 30 * look
        # One commits all of it with every second look, the other half of it.
        steps = {"healthy": 1_000 + 60 * (look // 2), "slow": 1_000 + 30 * (look // 2)}
        return {name: {"high_watermark": end, "next": at, "lag_records": end - at} for name, at in steps.items()}

    told(page, groups)
    console = Console(page)
    console.go("Groups")
    expect(page.locator("main")).to_contain_text("Times until a loss assume that partition and group go on")
    expect(console.row("healthy")).to_contain_text("keeps up", timeout=20_000)
    for _ in range(2):
        with page.expect_response(GROUPS):
            pass
        expect(console.row("healthy")).to_contain_text("keeps up")
        assert "at this rate" not in console.row("healthy").inner_text()
    expect(console.row("slow")).to_contain_text("grows by")
    expect(console.row("slow")).to_contain_text("not at this rate")


@pytest.mark.parametrize(("lost", "line"), [((0, 0), None), ((7, 0), "1 group had"), ((7, 9), "2 groups had")])
def test_damage_tells_of_groups_that_had_not_read_what_was_removed(
    broker: BrokerProcess, visit: Visit, lost: tuple[int, int], line: str | None
) -> None:
    page, _ = visit(broker)
    told(page, lambda _: {f"group-{at}": {"lost_records": number} for at, number in enumerate(lost)})
    with page.expect_response(GROUPS):
        Console(page).go("Damage")
    main = page.locator("main")
    expect(main).to_contain_text("No damage: no record that should be there is missing")
    link = main.get_by_role("link", name="Which groups")
    if line is None:
        expect(link).to_have_count(0)
        return
    expect(main).to_contain_text(f"{line} not read some of the records that retention removed")
    link.click()
    Console(page).is_at("Groups")
    expect(Console(page).row("group-0")).to_contain_text("7")


def test_a_group_opens_and_shows_what_it_reads_next(broker: BrokerProcess, visit: Visit) -> None:
    with some_life(broker):
        page, _ = visit(broker, "/#groups")
        console = Console(page)
        expect(console.row("pipeline")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("pipeline")
        page.keyboard.press("Escape")
        expect(page.get_by_text("1 group.", exact=True)).to_be_visible()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        panel = page.get_by_role("region", name="Group pipeline", exact=True)
        expect(panel.get_by_role("heading", name="Group pipeline")).to_be_focused()
        expect(panel).to_contain_text("in use")
        page.keyboard.press("Escape")
        expect(panel).to_have_count(0)
        expect(console.row("pipeline")).to_be_focused()
        page.keyboard.press("Enter")
        panel.get_by_role("link", name=re.compile("what it reads next in telemetry-")).click()
        console.is_at("Tail")
        expect(page.locator("tbody tr").first).to_contain_text(":5")
        page.go_back()
        expect(panel).to_contain_text("in use")
        panel.get_by_role("row").last.focus()
        page.keyboard.press("Escape")
        expect(console.row("pipeline")).to_be_focused()
        page.keyboard.press("Enter")
        expect(panel).to_contain_text("in use")
        console.search().fill("another")
        expect(page.get_by_text("No group has this in its name.")).to_be_visible()
        expect(console.search()).to_be_focused()
        expect(panel).to_contain_text("in use")


def test_a_group_that_is_gone_is_no_error(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker, "/#groups?group=gone")
    expect(page.get_by_role("region", name="Group gone")).to_contain_text("There is no group with this name now.")


def test_overview_and_log_name_the_groups_in_the_same_way(broker: BrokerProcess, visit: Visit) -> None:
    page, _ = visit(broker)
    names = ["archive", "reports", "third", "fourth"]

    def status(route: Any) -> None:
        found = route.fetch().json()
        found["partitions"][0]["held_by"] = [{"group": name, "next": 1} for name in names]
        route.fulfill(body=json.dumps(found), content_type="application/json")

    def segments(route: Any) -> None:
        found = route.fetch().json()
        next_ = {"base": 0, "next": 9, "rule": "hard_bytes", "in_s": None, "held_by": names}
        found["partitions"][0].update(goes_next=next_, bytes_per_s=None)
        route.fulfill(body=json.dumps(found), content_type="application/json")

    page.route("**/api/v1/status", status)
    page.route("**/api/v1/segments?limit=1", segments)
    console = Console(page)
    for view in ("Log", "Overview"):
        console.go(view)
        held = page.locator(".names").filter(has_text="archive")
        expect(held).to_have_text("archive, reports and 2 more")
        gaps = held.locator("a").evaluate_all("links => links.map((one) => getComputedStyle(one).marginInlineEnd)")
        assert gaps == ["0px", "0px"]
        if view == "Log":
            expect(page.locator("main")).to_contain_text("by hard size limit, when is not known yet")


@pytest.mark.parametrize(
    ("at", "sentence"),
    [("telemetry-0:99999999999999999999", "is too large: telemetry-0 ends at"), ("telemetry-99:1", "there are ")],
)
def test_what_cannot_be_a_record_is_told_with_what_can(
    broker: BrokerProcess, visit: Visit, at: str, sentence: str
) -> None:
    page, watch = visit(broker, f"/#trace?at={at}")
    watch.expect("40[04]")
    expect(page.get_by_role("alert")).to_contain_text(sentence)
    expect(page.get_by_role("alert")).to_contain_text("telemetry-0")
