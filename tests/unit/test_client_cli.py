"""The `headwater` command against the Flight service in memory: data on stdout, messages on stderr, exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support.flight_server import FlightServer

from broker_edge import Client, Commit, DeadlineError
from headwater_cli import main


@dataclass(frozen=True, slots=True)
class Done:
    """The output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in this process and returns what it printed."""
    for name in ("HEADWATER_SERVER", "HEADWATER_MQTT", "HEADWATER_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = main(arguments)
        shown = capsys.readouterr()
        return Done(code, shown.out, shown.err)

    return call


@pytest.fixture
def served(flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch, run: Run) -> FlightServer:
    """A server with three records in partition 3 that the command finds through its environment variable."""
    monkeypatch.setenv("HEADWATER_SERVER", flight_server.location)
    for i in range(3):
        flight_server.log.append("devices/a/telemetry", b"%d" % i, partition=3, timestamp_us=1_000 + i)
    return flight_server


def test_topics_as_rows_and_as_json(served: FlightServer, run: Run) -> None:
    rows = ["topic\tclass\tpartition\tname\tfirst\tnext", "devices/a/telemetry\ttelemetry\t3\ttelemetry-0\t0\t3"]
    assert run("topics").lines == rows
    assert run("topics", "list").lines == rows
    (document,) = run("topics", "devices/#", "--json").documents
    assert document["topics"] == [
        {
            "topic": "devices/a/telemetry",
            "class": "telemetry",
            "partition": 3,
            "name": "telemetry-0",
            "first": 0,
            "next": 3,
        }
    ]


def test_offsets_show_bounds_and_the_offset_of_a_time(served: FlightServer, run: Run) -> None:
    at = "1970-01-01T00:00:00.001002Z"
    (document,) = run("offsets", "-p", "3", "--time", at, "--json").documents
    assert document["log_id"] == served.log.log_id
    (row,) = document["partitions"]
    assert (row["log_start"], row["high_watermark"], row["offset_for_time"]) == (0, 3, 2)
    assert run("offsets", "-p", "telemetry-0", "--time", at, "--json").documents == [document]


def test_offsets_of_a_partition_that_is_not_there_name_those_that_are(served: FlightServer, run: Run) -> None:
    done = run("offsets", "-p", "telemetry-7")
    assert done.code == 4
    assert "there is no partition `telemetry-7`" in done.err
    assert "telemetry-0" in done.err


def test_groups_show_how_far_they_are_behind(served: FlightServer, run: Run) -> None:
    with Client(served.location) as client:
        client.commit("bronze", reader_epoch=4, initial={3: 0}, offsets={3: Commit(1)})
    (document,) = run("groups", "bronze", "--json").documents
    (row,) = document["groups"]
    assert (row["group"], row["reader_epoch"], row["committed"], row["lag"]) == ("bronze", 4, 1, 2)
    for done, lag in ((Commit(1, scanned=3), 0), (Commit(2, scanned=1), 1)):
        with Client(served.location) as client:
            client.commit("bronze", reader_epoch=4, offsets={3: done})
        assert run("groups", "bronze", "--json").documents[0]["groups"][0]["lag"] == lag, "what it has not looked at"
    missing = run("groups", "silver")
    assert missing.code == 4
    assert "no consumer group `silver`" in missing.err


@pytest.mark.parametrize("words", [("topics", "nobody/#"), ("groups",)], ids=lambda words: words[0])
def test_an_empty_result_is_a_sentence(words: tuple[str, ...], served: FlightServer, run: Run) -> None:
    done = run(*words)
    assert (done.code, done.out, len(done.err.splitlines())) == (0, "", 1)
    assert f"{served.location} has no" in done.err
    assert not run(*words, "--json").err


def test_offsets_and_groups_have_list_too(served: FlightServer, run: Run) -> None:
    with Client(served.location) as client:
        client.commit("bronze", reader_epoch=4, initial={3: 0})
    for noun, words in (("offsets", ("-p", "3")), ("groups", ("bronze",))):
        assert run(noun, *words, "--json").documents == run(noun, "list", *words, "--json").documents
    assert "has no topics of these filters" in run("topics", "list", "list").err, (
        "a filter may have the name of a command"
    )


def test_a_replay_from_before_the_first_place_has_the_lag_of_the_replay(served: FlightServer, run: Run) -> None:
    with Client(served.location) as client:
        client.commit("bronze", reader_epoch=4, initial={3: 3}, offsets={3: Commit(1)})
        assert client.offsets().partitions[3].high_watermark == 3
    (one,) = run("groups", "bronze", "--json").documents[0]["groups"]
    assert (one["initial"], one["committed"], one["lag"]) == (3, 1, 2)


def test_a_reset_moves_the_partitions_of_a_group(served: FlightServer, run: Run) -> None:
    with Client(served.location) as client:
        client.commit("bronze", reader_epoch=4, initial={3: 0}, offsets={3: Commit(3, scanned=3)})
        before = client.committed("bronze")
        tried = run("groups", "reset", "bronze", "--to", "earliest", "--dry-run")
        assert tried.lines == ["partition\tname\tbefore\tnow", "3\ttelemetry-0\t3\t0"]
        assert client.committed("bronze") == before
        at = "1970-01-01T00:00:00.001002Z"
        for to, offset in (("latest", 3), ("earliest", 0), (at, 2), ("telemetry-0:1", 1)):
            done = run("groups", "reset", "bronze", "--to", to, "--json")
            assert (done.code, done.documents[0]["partitions"][0]["now"]) == (0, offset), to
            place = client.committed("bronze").partitions[3]
            assert (place.initial, place.committed, place.scanned) == (offset, offset, None)
        assert client.committed("bronze").reader_epoch > before.reader_epoch


def test_a_reset_of_what_is_not_there_changes_nothing(served: FlightServer, run: Run) -> None:
    missing = run("groups", "reset", "silver", "--to", "earliest")
    assert (missing.code, "no consumer group `silver`" in missing.err) == (4, True)
    with Client(served.location) as client:
        client.commit("bronze", reader_epoch=4)
    for to, code, says in (
        ("yesterday", 2, "`yesterday` is not a position"),
        ("telemetry-9:1", 4, "there is no partition `telemetry-9`"),
        ("earliest", 4, "has no offsets: name partitions"),
    ):
        done = run("groups", "reset", "bronze", "--to", to)
        assert (done.code, len(done.err.splitlines())) == (code, 1), done.err
        assert says in done.err
    assert run("groups", "reset", "bronze").code == 2
    assert served.log.groups["bronze"].reader_epoch == 4


def test_a_removed_group_is_gone_and_can_not_be_removed_again(served: FlightServer, run: Run) -> None:
    with Client(served.location) as client:
        client.commit("bronze", reader_epoch=4, initial={3: 0})
        client.commit("silver", reader_epoch=1, initial={3: 0})
    assert run("groups", "rm", "bronze").code == 0
    assert list(served.log.groups) == ["silver"]
    again = run("groups", "rm", "bronze")
    assert again.code == 4
    assert "no consumer group bronze" in again.err
    assert run("groups", "silver", "bronze").code == 2


def test_tail_to_the_end_of_the_log(served: FlightServer, run: Run) -> None:
    done = run("tail", "devices/+/telemetry", "--from", "telemetry-0:1", "--no-follow")
    assert done.lines == [f"telemetry-0:{i}\tdevices/a/telemetry\t{i}" for i in (1, 2)]
    (document,) = run("tail", "--from", "1970-01-01T00:00:00.001002Z", "--no-follow", "--json").documents
    assert (document["offset"], document["ts"], document["value"], document["epoch"]) == (2, 1_002, "2", 1)


def test_tail_follows_until_it_has_enough(served: FlightServer, run: Run) -> None:
    timer = threading.Timer(0.3, lambda: served.log.append("devices/a/telemetry", b"\xff\n", partition=3))
    timer.start()
    done = run("tail", "--from", "earliest", "--count", "4", "--timeout", "60")
    timer.join()
    assert (done.code, len(done.lines)) == (0, 4)
    assert done.lines[-1].endswith("\t\\xff\\n")


def test_tail_that_waits_in_vain_is_timed_out(served: FlightServer, run: Run) -> None:
    done = run("tail", "--count", "1", "--timeout", "0.3")
    assert (done.code, done.out) == (124, "")
    assert "0 of 1 records within 0.3 s" in done.err


def test_tail_to_the_end_of_a_log_is_timed_out_too(served: FlightServer, run: Run) -> None:
    hung = threading.Event()

    def hang(name: str) -> None:
        if name == "DoGet":
            hung.wait(60)

    served.before = hang
    try:
        done = run("tail", "--from", "earliest", "--no-follow", "--timeout", "0.5")
    finally:
        hung.set()
    assert (done.code, done.out) == (124, "")
    assert "0 records within 0.5 s" in done.err


def test_tail_without_a_limit_says_what_ran_out_of_time(
    served: FlightServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object, **__: object) -> None:
        raise DeadlineError("no answer within 30 s")

    monkeypatch.setattr(Client, "fetch", late)
    done = run("tail", "--from", "earliest", "--no-follow")
    assert (done.code, done.err) == (124, "headwater: no answer within 30 s\n")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_a_time_limit_that_is_no_number_is_a_usage_error(served: FlightServer, run: Run, number: str) -> None:
    for words in (("tail", "--no-follow"), ("topics",), ("sub", "x")):
        done = run(*words, "--timeout", number)
        assert (done.code, done.out) == (2, ""), words
        assert "--timeout" in done.err


def test_an_offset_that_is_gone_is_refused_with_the_bounds(served: FlightServer, run: Run) -> None:
    served.log.expire(3, 2)
    done = run("tail", "--from", "telemetry-0:0", "--no-follow")
    assert done.code == 4
    assert "offset 0 of partition telemetry-0 is outside [2, 3]" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "Usage"),
        (("nonsense",), 2, "nonsense"),
        (("topics", "--nonsense"), 2, "--nonsense"),
        (("topics", "--server", "http://somewhere"), 2, "http://somewhere"),
        (("topics", "--server", "127.0.0.1:1"), 3, "127.0.0.1:1"),
        (("sub", "a", "--mqtt", "127.0.0.1:1"), 3, "127.0.0.1:1"),
        (("sub", "a", "--mqtt", "127.0.0.1:port"), 2, "127.0.0.1:port"),
        (("sub", "a", "--from", "yesterday"), 2, "yesterday"),
        (("tail", "--from", "1002"), 2, "1002"),
        (("offsets", "--time", "1002"), 2, "--time"),
        (("sub", "a", "--session"), 2, "--id"),
        (("tail", "--from", "telemetry-0"), 2, "telemetry-0"),
        (("pub", "a"), 2, "--file"),
        (("pub", "a", "--file", "/does/not/exist"), 2, "/does/not/exist"),
        (("pub", "a", "b", "--ack", "--qos", "0"), 2, "--qos 1"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(run: Run, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert "Traceback" not in done.err
    if arguments:
        assert done.err.count("\n") == 1


def test_a_partition_that_does_not_exist_is_refused_by_name(served: FlightServer, run: Run) -> None:
    done = run("tail", "--from", "telemetry-9:0", "--no-follow")
    assert done.code == 4
    assert "no partition `telemetry-9`" in done.err


def test_debug_shows_where_an_error_came_from(run: Run) -> None:
    done = run("topics", "--server", "127.0.0.1:1", "--debug")
    assert done.code == 3
    assert "Traceback" in done.err


def test_doctor_names_what_failed(served: FlightServer, run: Run) -> None:
    done = run("doctor", "--mqtt", "127.0.0.1:1", "--json")
    (document,) = done.documents
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert done.code == 1
    assert (states["flight"], states["mqtt"]) == ("ok", "failed")
