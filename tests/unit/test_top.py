"""`headwater top` without a broker: keys, order, figures, and a screen of hostile names."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from broker_edge.admin import Admin
from broker_edge.scrape import Scrape
from headwater_cli._top import Look, chosen, document, figure
from headwater_cli.top import _Brokers, _Screen, picture

NASTY = "\x1b[2J[red]\u202e"


def looked(address: str, at_s: float, *, received: int, end: int, clients: tuple[dict[str, Any], ...] = ()) -> Look:
    text = f"headwater_mqtt_publishes_received_total {received}\nheadwater_disk_level 1\n"
    group = {"group": NASTY, "next": 3}
    partition = {"name": "telemetry-0", "state": "running", "log_start": 0, "high_watermark": end, "bytes": 2048}
    status = {"version": "1.2.3", "partitions": [{**partition, "held_by": [group]}]}
    return Look(address, Scrape.parse(text, at_s=at_s), status, clients)


def brokers() -> _Brokers:
    client = {
        "client_id": NASTY,
        "user": None,
        "connected": True,
        "per_second": {"received_messages": 1.0, "sent_messages": 0.0},
        "inflight_out": 0,
        "lag_records": 5,
    }
    found = _Brokers([Admin("http://a:1"), Admin("http://b:1")])
    found.before = {"http://a:1": looked("http://a:1", 10.0, received=100, end=50)}
    found.now = [
        looked("http://a:1", 12.0, received=300, end=60, clients=(client,)),
        Look("http://b:1", trouble="it is away"),
    ]
    return found


def test_figures_are_those_between_two_looks() -> None:
    found = brokers()
    first, second = document(found.now, found.before)["brokers"]
    assert (first["in_per_s"], first["disk_level"], first["out_per_s"]) == (100.0, "warned", None)
    assert first["partitions"][0] | {"bytes": 0} == {
        "name": "telemetry-0",
        "state": "running",
        "log_start": 0,
        "high_watermark": 60,
        "per_s": 5.0,
        "bytes": 0,
        "held": 57,
    }
    assert first["groups"] == [{"group": NASTY, "partition": "telemetry-0", "next": 3, "behind": 57}]
    assert second == {"admin": "http://b:1", "trouble": "it is away"}


@pytest.mark.parametrize("key", ["1", "2", "3", "4"])
def test_each_view_is_harmless_and_fits_80_columns(key: str) -> None:
    screen, out = _Screen(), io.StringIO()
    screen.press(key)
    Console(file=out, width=80, height=24).print(picture(screen, brokers(), height=24))
    text = out.getvalue()
    assert "it is away" in text
    assert "q quit" in text
    assert not {"\x1b", "\u202e"} & set(text)
    assert all(len(line) <= 80 for line in text.splitlines())
    wanted = {"1": "a:1", "2": "telemetry-0", "3": "\\x1b[2J[red]", "4": "\\x1b[2J[red]"}
    assert wanted[key] in text


def test_keys_choose_view_order_and_filter() -> None:
    screen = _Screen()
    for key in "2s":
        screen.press(key)
    assert (screen.view, screen.sort) == ("partitions", "name")
    for key in "ssssss":
        screen.press(key)
    assert screen.sort is None, "after the last column the order is the first one again"
    for key in "/qp\x7f1\r":
        screen.press(key)
    assert (screen.part, screen.view, screen.is_over, screen.is_paused) == ("q1", "partitions", False, False)
    for key in "/x\x1bp":
        screen.press(key)
    assert (screen.part, screen.is_paused) == ("", True)
    screen.press("4")
    assert (screen.view, screen.sort) == ("groups", None)
    screen.press("q")
    assert screen.is_over


def test_rows_are_sorted_with_what_is_unknown_last() -> None:
    rows = [{"name": "b", "x": 1}, {"name": "a", "x": None}, {"name": "c", "x": 3}]
    assert [row["name"] for row in chosen(rows, part="", sort="x")] == ["c", "b", "a"]
    assert [row["name"] for row in chosen(rows, part="", sort="name")] == ["a", "b", "c"]
    assert [row["name"] for row in chosen(rows, part="c", sort=None)] == ["c"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes", 0, "0"),
        ("bytes", 1536, "1.5K"),
        ("disk_used_bytes", 5 << 40, "5.0T"),
        ("in_per_s", 1234.5, "1.2K"),
        ("in_per_s", 0.25, "0.2"),
        ("ack_p99_s", 0.00123, "1.2 ms"),
        ("ack_p99_s", 2.5, "2.50 s"),
        ("loop_busy", 0.333, "33%"),
        ("high_watermark", 1234567, "1,234,567"),
        ("leads", True, "yes"),
        ("user", None, "-"),
    ],
)
def test_figures_are_short(name: str, value: object, text: str) -> None:
    assert figure(name, value) == text
