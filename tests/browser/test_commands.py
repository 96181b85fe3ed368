"""The command that a page shows gives the same answer in a terminal, from any folder and without other options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
from support.browser import Visit, expect
from support.console_page import LIVE, place, some_life
from support.paho_client import PahoClient
from support.programs import headwater

from broker_edge.torture.process import BrokerProcess


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[PahoClient]:
    with some_life(broker) as client:
        yield client


@pytest.mark.parametrize(
    ("view", "row", "answer"),
    [
        ("overview", None, None),
        ("topics", LIVE, LIVE),
        ("clients", "press-1", "press-1"),
        ("clients?client=press-1", "press-1", "devices/press-1/actions"),
        ("groups", "pipeline", "pipeline"),
        ("groups?group=pipeline", "pipeline", "pipeline"),
        ("log", "telemetry-0", "telemetry-0"),
        ("damage", "telemetry-0", "telemetry-0"),
        (f"access?user=ann&topic={LIVE}", "no ACL file", "no ACL file"),
        ("trace?at=telemetry-0:0", "telemetry-0", "telemetry-0"),
    ],
)
@pytest.mark.usefixtures("client")
def test_the_command_answers_as_the_page(
    broker: BrokerProcess, visit: Visit, view: str, row: str | None, answer: str | None
) -> None:
    page, _ = visit(broker, f"/#{view}")
    main = page.locator("main")
    if row is not None:
        expect(main).to_contain_text(row)
    words = shlex.split(main.locator(".command code[title]").inner_text())
    assert words.pop(0) == "headwater"
    if words[0] == "top":
        words.append("--once")
    ended = headwater(*words)
    assert ended.code == 0, ended.err
    assert answer is None or answer in ended.out


@pytest.mark.usefixtures("client")
def test_the_command_of_a_tail_reads_the_same_records(broker: BrokerProcess, visit: Visit) -> None:
    partition, _, at = place(broker, LIVE).partition(":")
    page, _ = visit(broker, f"/#tail?filter={LIVE}&from=offset&partition={partition}&at={at}")
    main = page.locator("main")
    expect(main.locator("tbody")).to_contain_text("temperature")
    words = shlex.split(main.locator(".command code[title]").inner_text())
    assert words[:2] == ["headwater", "tail"]
    assert words[-2:] == ["--", LIVE]
    ended = headwater("tail", "--count", "1", *words[2:])
    assert ended.code == 0, ended.err
    assert '"temperature": 0.5' in ended.out
