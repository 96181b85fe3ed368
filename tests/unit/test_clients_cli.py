"""`headwater clients` against an admin listener in memory: its requests, its output, and the exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from headwater_cli import main


def _client(client_id: str) -> dict[str, Any]:
    rates = {"received_bytes": 0.0, "sent_bytes": 0.0, "received_messages": 2.5, "sent_messages": 0.0}
    return {
        "client_id": client_id,
        "user": None,
        "connected": True,
        "address": "127.0.0.1:5",
        "version": "5",
        "since_us": 1_700_000_000_000_000,
        "subscriptions": 1,
        "per_second": rates,
        "inflight_out": 0,
        "lag_records": 7,
    }


class _Listener(BaseHTTPRequestHandler):
    """Five clients in pages of two; `e/e` can be shown and kicked."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/api/v1/clients":
            after = parse_qs(url.query).get("after", [""])[0]
            ids = [one for one in ("a", "b", "c", "d", "e/e") if one > after][:2]
            self._answer(200, {"clients": [_client(one) for one in ids], "next": ids[-1] if ids[-1] != "e/e" else None})
        elif url.path == "/api/v1/clients/e%2Fe":
            self._answer(200, {**_client("e/e"), "filters": [], "cursors": []})
        elif url.path == "/api/v1/clients/busy":
            self._answer(503, {"error": "unavailable", "message": "too many requests wait"})
        else:
            self._answer(404, {"error": "not_found", "message": "there is no such client"})

    def do_DELETE(self) -> None:
        self._answer(200, {"was_connected": True, "session_ended": "session=true" in self.path})

    def _answer(self, status: int, body: object) -> None:
        type(self).asked.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    _Listener.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Listener)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HEADWATER_ADMIN", address)
    monkeypatch.delenv("HEADWATER_ADMIN_AUTH", raising=False)
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_list_has_every_page_and_a_limit_ends_it(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clients", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["client_id"] for one in found["clients"]] == ["a", "b", "c", "d", "e/e"]
    assert main(["clients", "list", "x", "--away", "-n", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[2], row[7], row[-1]) for row in rows] == [
        ("a", "connected", "2.5", "7"),
        ("b", "connected", "2.5", "7"),
    ]
    assert "filter=x&connected=false&limit=2" in _Listener.asked[-1]


def test_ids_are_quoted_and_credentials_sent(admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["clients", "show", "e/e", "--json"]) == 0
    monkeypatch.setenv("HEADWATER_ADMIN_AUTH", "me:secret")
    assert main(["clients", "kick", "e/e", "--session"]) == 0
    assert _Listener.asked[-2:] == [
        "GET /api/v1/clients/e%2Fe None",
        "DELETE /api/v1/clients/e%2Fe?session=true Basic bWU6c2VjcmV0",
    ]


def asked_with(admin: str) -> str:
    assert main(["clients", "show", "e/e", "--json"]) == 0
    return _Listener.asked[-1].partition("e%2Fe ")[2]


def test_the_credentials_of_all_commands_hold_for_the_admin_listener(
    admin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pw").write_text("secret\n")
    monkeypatch.setenv("HEADWATER_USER", "me")
    monkeypatch.setenv("HEADWATER_PASSWORD_FROM", f"file:{tmp_path}/pw")
    monkeypatch.delenv("HEADWATER_TOKEN_FROM", raising=False)
    assert asked_with(admin) == "Basic bWU6c2VjcmV0"


def test_the_old_variable_takes_a_reference_and_a_literal_with_a_warning(
    admin: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OLD", "me:secret")
    monkeypatch.setenv("HEADWATER_ADMIN_AUTH", "env:OLD")
    assert asked_with(admin) == "Basic bWU6c2VjcmV0"
    assert caplog.text == ""
    monkeypatch.setenv("HEADWATER_ADMIN_AUTH", "a-token")
    assert asked_with(admin) == "Bearer a-token"
    assert "the next release refuses: write a reference" in caplog.text
    assert "a-token" not in caplog.text


def test_a_literal_secret_as_an_option_is_refused_and_not_repeated(
    admin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for before, after in ((["--token-from", "hunter2"], []), ([], ["--password-from", "hunter2"])):
        assert main([*before, "clients", "list", *after]) == 5
        said = capsys.readouterr().err
        assert "is a reference: write file:PATH or env:NAME, never the secret itself" in said
        assert "hunter2" not in said


def test_the_old_names_of_the_options_work_with_a_warning(
    admin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("USER", "PASSWORD_FROM", "TOKEN_FROM"):
        monkeypatch.setenv(f"HEADWATER_{name}", "")
        monkeypatch.delenv(f"HEADWATER_{name}")
    monkeypatch.setenv("PW", "secret")
    assert main(["--user", "me", "--password", "env:PW", "clients", "show", "e/e", "--json"]) == 0
    assert _Listener.asked[-1].endswith("Basic bWU6c2VjcmV0")
    assert "--password is now --password-from" in capsys.readouterr().err
    # The next option replaces what the environment of this process has.
    monkeypatch.setenv("T", "token")
    assert main(["clients", "show", "e/e", "--json", "--token-from", "env:T"]) == 0
    assert _Listener.asked[-1].endswith("Bearer token")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["show", "nobody"], 4, "no such client"),
        (["show", "busy"], 3, "too many"),
        (["list", "--watch"], 2, "terminal"),
        (["list", "--admin", "ftp://x"], 2, "not an admin address"),
        (["list", "--admin", "127.0.0.1:1"], 3, "cannot connect"),
    ],
)
def test_what_goes_wrong_has_its_exit_code_and_a_sentence(
    admin: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, word: str
) -> None:
    assert main(["clients", *arguments]) == code
    shown = capsys.readouterr()
    assert word in shown.err
    assert not shown.out
