"""`headwater context` and `--context`: what is kept, what it stands for, and what it takes the place of."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from support.flight_server import FlightServer

from headwater_cli import main

Run = Callable[..., tuple[int, str, str]]

ADDRESSES = ("HEADWATER_SERVER", "HEADWATER_MQTT", "HEADWATER_ADMIN")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the contexts are. The environment names no broker."""
    path = tmp_path / "home" / "contexts.json"
    for name in list(os.environ):
        if name.startswith("HEADWATER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HEADWATER_CONTEXTS", str(path))
    return path


@pytest.fixture
def run(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command, and then puts the environment back as it was."""

    def call(*words: str) -> tuple[int, str, str]:
        before = dict(os.environ)
        capsys.readouterr()
        try:
            code = main(words)
        finally:
            os.environ.clear()
            os.environ.update(before)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_a_context_has_the_other_addresses_of_its_host(run: Run, file: Path) -> None:
    for name, given, rest in (
        ("open", ("--server", "edge-1"), ("grpc://edge-1:8815", "edge-1:1883", "http://edge-1:8080")),
        (
            "safe",
            ("--mqtt", "mqtts://edge-1"),
            ("grpc+tls://edge-1:8815", "mqtts://edge-1:8883", "https://edge-1:8080"),
        ),
        ("six", ("--admin", "http://[::1]:81"), ("grpc://[::1]:8815", "[::1]:1883", "http://[::1]:81")),
        (
            "nodes",
            ("--server", "grpc://n1:1/n2:2", "--mqtt", "n1:5"),
            ("grpc://n1:1/n2:2", "n1:5", "http://n1:8080"),
        ),
    ):
        code, _, err = run("context", "add", name, *given)
        assert code == 0, err
        found = json.loads(run("context", "show", name, "--json")[1])
        assert (found["server"], found["mqtt"], found["admin"]) == rest
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = [line.split("\t")[:2] for line in run("context")[1].splitlines()]
    assert rows == [["name", "current"], *([name, ""] for name in ("nodes", "open", "safe", "six"))]


def test_a_command_goes_where_its_context_says(run: Run, flight_server: FlightServer) -> None:
    flight_server.log.append("devices/a/telemetry", b"1", partition=3)
    assert run("topics", "--timeout", "1")[0] == 3, "nobody answers at the usual address"
    run("context", "add", "prod", "--server", flight_server.location)
    for words in (("topics", "--context", "prod"), ("--context", "prod", "topics")):
        code, out, err = run(*words, "--json")
        assert (code, len(json.loads(out)["topics"])) == (0, 1), err


def test_the_current_context_counts_where_nobody_says_anything(
    run: Run, flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("context", "add", "prod", "--server", flight_server.location, "--use")
    assert run("topics")[0] == 0
    assert run("topics", "--server", "grpc://127.0.0.1:1", "--timeout", "1")[0] == 3
    monkeypatch.setenv("HEADWATER_MQTT", "edge-9")
    code, _, err = run("topics", "--timeout", "1")
    assert (code, "grpc://127.0.0.1:8815" in err) == (3, True), "the environment takes the place of all of it"
    assert run("topics", "--context", "prod")[0] == 0, "and a named context that of the environment"
    monkeypatch.delenv("HEADWATER_MQTT")
    assert run("context", "use", "--none")[0] == 0
    assert run("topics", "--timeout", "1")[0] == 3


def test_a_context_takes_no_credentials_from_elsewhere(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from headwater_cli._contexts import use_context

    secret = tmp_path / "token"
    secret.write_text("t")
    monkeypatch.chdir(tmp_path)
    assert run("context", "add", "prod", "--mqtt", "edge-1", "--user", "ops", "--token", "file:token")[0] == 0
    for name in ("HEADWATER_PASSWORD_FROM", "HEADWATER_TLS_CA", "HEADWATER_ADMIN_AUTH", *ADDRESSES):
        monkeypatch.setenv(name, "of somebody else")
    with monkeypatch.context():
        before = dict(os.environ)
        try:
            use_context("prod")
            found = {name: value for name, value in os.environ.items() if name.startswith("HEADWATER_")}
        finally:
            os.environ.clear()
            os.environ.update(before)
    del found["HEADWATER_CONTEXTS"]
    assert found == {
        "HEADWATER_SERVER": "grpc://edge-1:8815",
        "HEADWATER_MQTT": "edge-1:1883",
        "HEADWATER_ADMIN": "http://edge-1:8080",
        "HEADWATER_USER": "ops",
        "HEADWATER_TOKEN_FROM": f"file:{secret}",
    }


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("add", "prod", "--server", "x"), 2, "there is a context `prod` already: give --replace"),
        (("add", "a b", "--server", "x"), 2, "`a b` is no name of a context"),
        (("add", "new"), 2, "give at least one address"),
        (("add", "new", "--server", "http://x"), 2, "is not a server address"),
        (("add", "new", "--server", "x", "--token", "s3cret"), 5, "--token-from is a reference"),
        (("add", "new", "--server", "x", "--password", "env:P"), 2, "--password-from needs --user"),
        (("use",), 2, "name a context, or give --none"),
        (("use", "new"), 4, "there is no context `new`; there are: prod"),
        (("rm", "new"), 4, "there is no context `new`"),
        (("show",), 4, "no context is current"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_a_sentence_and_changes_nothing(
    words: tuple[str, ...], code: int, says: str, run: Run, file: Path
) -> None:
    run("context", "add", "prod", "--server", "edge-1")
    before = file.read_bytes()
    got, out, err = run("context", *words)
    assert (got, out, len(err.splitlines())) == (code, "", 1), err
    assert says in err
    assert "s3cret" not in err
    assert file.read_bytes() == before


def test_a_link_in_its_place_stays_a_link(run: Run, file: Path, tmp_path: Path) -> None:
    file.parent.mkdir()
    elsewhere = tmp_path / "dotfiles.json"
    file.symlink_to(elsewhere)
    assert run("context", "add", "prod", "--server", "edge-1")[0] == 0
    assert file.is_symlink()
    assert "edge-1" in elsewhere.read_text()


def test_a_context_that_is_not_there_ends_a_command(run: Run) -> None:
    for words in (("topics", "--context", "prod"), ("--context", "prod", "topics")):
        code, out, err = run(*words)
        assert (code, out) == (4, "")
        assert err == "headwater: there is no context `prod` (see `headwater context add --help`)\n"


def test_a_removed_context_is_no_longer_the_current_one(run: Run) -> None:
    run("context", "add", "prod", "--server", "edge-1", "--use")
    assert run("context", "rm", "prod")[0] == 0
    code, out, err = run("context")
    assert (code, out) == (0, "")
    assert "there are no contexts" in err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "contexts": {}}',
        '{"version": 1}',
        '{"version": 1, "contexts": {"a": {"server": 1}}}',
        '{"version": 1, "contexts": {"a": {"colour": "red"}}}',
        '{"version": 1, "contexts": {}, "current": "a"}',
        "\xff",
    ],
)
def test_a_file_that_is_none_of_ours_is_named_and_left_alone(text: str, run: Run, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    for words in (("context",), ("topics",), ("context", "add", "b", "--server", "x")):
        code, _, err = run(*words)
        assert (code, len(err.splitlines())) == (5, 1), err
        assert str(file) in err
    assert file.read_bytes() == text.encode("latin-1")
    assert run("--version")[0] == 0
