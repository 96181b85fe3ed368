"""Text from outside never controls a terminal, whatever command prints it; the same in a pipe."""

from __future__ import annotations

import io
import json
import logging
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from support.engine_world import EngineWorld
from support.flight_server import FlightServer
from support.poison import SEED

from broker_edge import Client, Commit, RefusedError
from broker_edge.escape import SafeFormatter, json_line, moment, shown, shown_lines
from headwater_cli import _output, clients, main
from headwater_cli._mqtt import Mqtt
from headwater_cli._watch import bar, picture
from pipelines.jobs.process import run_job

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\r\n\t\x7f\u202e\u2066\u2028\ufeff[red]x[/]"
"""Window title, clear, CSI in C1, NUL, lines, DEL, right-to-left, a line separator, a mark, and Rich's markup."""
HARMFUL = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
HARMFUL += ["\u200e", "\u200f", "\u061c", "\u2028", "\u2029", "\ufeff", "\ud800", "\udfff", "\U000e0041", "\U0010ffff"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    return call


def assert_harmless(text: str) -> None:
    found = sorted({c for c in text if not c.isprintable() and c not in "\t\n"})
    assert not found, f"{found} in {text!r}"


@pytest.mark.parametrize("character", HARMFUL, ids=lambda c: f"U+{ord(c):04X}")
def test_no_character_without_a_shape_passes(character: str) -> None:
    assert_harmless(shown(f"a{character}b"))
    assert shown(f"a{character}b") == f"a{character.encode('unicode_escape').decode()}b"
    line = json_line({f"k{character}": character})
    assert line.isprintable()
    assert json.loads(line) == {f"k{character}": character}


def test_text_that_people_read_stays_as_it_is() -> None:
    for text in ("devices/pump-7/telemetry", "Größe °C", "温度", "🙂", "a\\b", "", "a b"):
        assert shown(text) == text
        assert json_line(text) == json.dumps(text, ensure_ascii=False)
    assert shown_lines("a\n\x1b[2Jb\n") == "a\n\\x1b[2Jb\n"


def test_any_text_comes_back_from_json_and_is_printable() -> None:
    chance = random.Random(SEED)
    for _ in range(3_000):
        text = "".join(chr(chance.randrange(0x110000)) for _ in range(8))
        assert json.loads(json_line(text)) == text, f"seed {SEED}"
        assert json_line(text).isprintable()
        assert shown(text).isprintable()
        assert json_line(text, ascii_only=True).isascii()


@pytest.mark.parametrize("at_us", [2**63 - 1, -(2**63), 2**62, 253_402_300_800_000_000, 10**30])
def test_a_time_beyond_the_calendar_is_a_number(at_us: int) -> None:
    assert moment(at_us) == f"{at_us} µs"
    assert moment(0) == "1970-01-01T00:00:00+00:00"


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch) -> FlightServer:
    monkeypatch.setenv("HEADWATER_SERVER", flight_server.location)
    flight_server.log.append(f"devices/{NASTY}/telemetry", NASTY.encode() + b"\xff", partition=3)
    return flight_server


@pytest.mark.parametrize("command", [("topics",), ("tail", "--from", "earliest", "--no-follow")], ids=lambda c: c[0])
def test_topics_and_payloads_are_escaped_as_lines_and_as_json(
    command: tuple[str, ...], served: FlightServer, run: Run
) -> None:
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert_harmless(out)
    *_, line = out.splitlines()
    assert f"devices/{shown(NASTY)}/telemetry" in line.split("\t")
    code, out, _ = run(*command, "--json")
    assert code == 0
    assert_harmless(out)
    document = json.loads(out)
    found = document["topics"][0] if "topics" in document else document
    assert found["topic"] == f"devices/{NASTY}/telemetry"


def test_groups_are_listed_with_any_name_and_with_partitions_that_nobody_has(served: FlightServer, run: Run) -> None:
    with Client(served.location) as client:
        client.commit(NASTY, reader_epoch=1, offsets={3: Commit(committed=1)})
    served.log.groups[NASTY].committed[4_000] = 10**18
    code, out, _ = run("groups")
    assert code == 0
    assert_harmless(out)
    assert len(out.splitlines()) == 3
    code, out, _ = run("groups", "--json")
    assert [row["group"] for row in json.loads(out)["groups"]] == [NASTY, NASTY]


def test_an_error_that_quotes_a_topic_is_one_harmless_line(served: FlightServer, run: Run) -> None:
    for words in (("groups", NASTY.replace("\0", "")), ("tail", "--from", NASTY.replace("\0", ""))):
        code, out, err = run(*words)
        assert code != 0
        assert_harmless(out + err)
        assert len(err.splitlines()) == 1
    code, _, err = run("--debug", "groups", NASTY.replace("\0", ""))
    assert "Traceback" in err
    assert_harmless(err)


def test_actions_and_what_devices_said_of_them_are_escaped(tmp_path: Path, run: Run) -> None:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1")
    world.action(f"a{NASTY}".replace("\x1b", ""), name="n" * 300)
    world.action("a1", created_by=NASTY, created_at=2**62)
    job = world.job()
    job.turn()
    world.status("d1", "FAILED", message=NASTY, result=json.dumps(NASTY, ensure_ascii=False))
    job.turn()
    job.close()
    root = str(tmp_path / "tables")
    for words in (("list",), ("show", "a1"), ("audit", "a1"), ("watch", "a1"), ("show", f"no{NASTY}")):
        for more in ((), ("--json",)):
            _, out, err = run("actions", *words, "--root", root, *more)
            assert_harmless(out + err)
            assert out or err
            for line in out.splitlines() if more else ():
                json.loads(line)


def test_tables_on_a_terminal_show_markup_and_escapes_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=400, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    _output.put_rows(("a", "b"), [(NASTY, "[/]"), ("[link=http://x]y[/link]", ":smile:")])
    terminal.print(clients._table([(NASTY, *["[/nothing]"] * 10)]))
    row = {"action_id": NASTY, "phase": "RUNNING", "message": NASTY + "[/x]", "wave": 0}
    terminal.print(picture(row, [{"wave": 0, "state": "FAILED", "number": 1}]))
    text = screen.getvalue()
    # Only Rich itself writes the codes of italics.
    for own in ("\x1b[3m", "\x1b[2;3m", "\x1b[0m", "\x1b[1m"):
        text = text.replace(own, "")
    assert_harmless(text)
    for literal in ("[/]", "[link=http://x]y[/link]", ":smile:", "[red]x[/]"):
        assert literal in text


def test_tables_on_a_narrow_terminal_keep_ids_and_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, width=80, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    digest = "0123456789abcdef" * 4
    _output.put_rows(("name", "sha256", "where", "message"), [("fw", digest, "artifacts-0:0", "x " * 40)])
    assert "…" not in screen.getvalue()
    assert "".join(re.findall(r"^ +(?:fw)? +([0-9a-f]+) ", screen.getvalue(), re.MULTILINE)) == digest
    _output.put_rows(tuple("abcdefgh"), [("pump-0001-of-the-cellar", *["a longer text"] * 7)])
    assert "pump-0001-of-the-cellar" in screen.getvalue()
    screen.truncate(0)
    row = {"action_id": "a1", "phase": "RUNNING", "message": "wave 1 of 2", "wave": 0}
    cells = [("SUCCEEDED", 5), ("FAILED", 5), ("CANCELLED", 10)]
    waves = [{"wave": wave, "state": state, "number": number} for wave in (0, 1) for state, number in cells]
    terminal.print(picture(row, waves))
    assert bar({"SUCCEEDED": 5, "FAILED": 5, "CANCELLED": 10}).strip() in screen.getvalue()
    for heading in ("wave", "devices", "SUCCEEDED", "FAILED", "CANCELLED"):
        assert heading in screen.getvalue()
    assert "TIMED_OUT" not in screen.getvalue()
    screen.truncate(0)
    terminal.print(clients._table([("pump-0001", *["connected"] * 10)]))
    assert "pump-0001" in screen.getvalue()


def test_a_terminal_that_cannot_show_a_character_shows_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    _output.put_fields("温度 °C")
    _output.put_json({"topic": "温度 °C"})
    first, second = raw.getvalue().decode("latin-1").splitlines()
    assert first == "\\u6e29\\u5ea6 °C"
    assert json.loads(second) == {"topic": "温度 °C"}


def test_properties_that_a_publisher_chose_end_no_subscription() -> None:
    mqtt = Mqtt("127.0.0.1:1", protocol="5")
    for ts, place in (("x", "y"), ("9" * 5_000, "p:" + "9" * 5_000), ("-1", ":1"), ("²", "p:²"), ("5", "p-0:7")):
        users = [("ts", ts), ("stream-offset", place)]
        properties = SimpleNamespace(UserProperty=users)
        message = SimpleNamespace(topic="t", payload=b"", qos=1, retain=False, properties=properties)
        mqtt._on_message(None, None, message)  # type: ignore[arg-type]
    found = [mqtt.messages.get_nowait() for _ in range(5)]
    assert [(one.ts, one.place) for one in found] == [(None, None)] * 4 + [(5, "p-0:7")]


def test_logs_and_the_last_words_of_a_job_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "no record on %s", (NASTY,), None)
    assert SafeFormatter("%(levelname)s %(message)s").format(record) == f"WARNING no record on {shown(NASTY)}"
    try:
        raise ValueError(NASTY)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", None, sys.exc_info())
    assert_harmless(SafeFormatter().format(record))

    def work() -> Any:
        raise RefusedError(f"not allowed: {NASTY}")

    assert run_job(work) == 4
    assert_harmless(capfd.readouterr().err)
