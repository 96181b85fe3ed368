"""What an operator sees at the doors of the broker: the audit of actions, private files, checks before a start."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.programs import clean_environment, headwaterd, run

from broker_edge import Client, Credentials, RefusedError

WAIT_S = 60


@dataclass
class Logged:
    """A broker with an operator, whose log is JSON lines."""

    process: subprocess.Popen[str]
    folder: Path
    said: list[dict[str, Any]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    addresses: dict[str, str] = field(default_factory=dict)

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.changed:
                self.said.append(json.loads(line))
                self.changed.notify_all()

    def line(self, **wanted: str) -> dict[str, Any]:
        """The first audit line with these fields. Waits until it comes."""
        return self.lines(1, **wanted)[0]

    def lines(self, count: int, **wanted: str) -> list[dict[str, Any]]:
        """The first `count` lines with these fields. Waits until they come."""

        def found() -> list[dict[str, Any]]:
            return [one for one in self.said if all(one.get(name) == value for name, value in wanted.items())]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= count, WAIT_S), (wanted, self.said[-5:])
            return found()[:count]

    def http(self, method: str, path: str, body: str = "", *, user: str = "root") -> int:
        connection = http.client.HTTPConnection(self.addresses["admin"], timeout=WAIT_S)
        shown = base64.b64encode(f"{user}:pw-{user}".encode()).decode()
        headers = {"Authorization": f"Basic {shown}", "Content-Type": "application/json", "Host": "localhost"}
        connection.request(method, path, body, headers)
        status = connection.getresponse().status
        connection.close()
        return status


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Logged]:
    users = tmp_path / "users"
    for user in ("root", "plain"):
        assert run(headwaterd(), "users", "add", str(users), user, stdin=f"pw-{user}\n").code == 0
    (tmp_path / "acl").write_text("user root\noperator\ntopic readwrite #\ntopic replay #\nuser plain\n")
    words = [f"--set=listeners.{name}.bind=127.0.0.1:0" for name in ("mqtt", "flight", "admin")]
    words += [f"--set=auth.password_file={users}", f"--set=auth.acl_file={tmp_path / 'acl'}"]
    words += [f"--set=data_dir={tmp_path / 'log'}", f"--set=log.backup_dir={tmp_path / 'backups'}", "--log-format=json"]
    process = subprocess.Popen(
        [headwaterd(), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(None),
    )
    logged = Logged(process, tmp_path)
    listening = threading.Thread(target=logged.listen)
    listening.start()
    try:
        assert process.stdout is not None
        logged.addresses = dict(word.split("=") for word in process.stdout.readline().split()[1:])
        yield logged
    finally:
        process.terminate()
        process.wait(WAIT_S)
        listening.join(WAIT_S)


def test_each_admin_action_is_logged_with_who_from_where_what_and_result(broker: Logged) -> None:
    for method, path, body, status, result in (
        ("PUT", "/api/v1/drain", "", 200, "ok"),
        ("DELETE", "/api/v1/drain", "", 200, "ok"),
        ("PUT", "/api/v1/log-level", '{"level": "debug"}', 200, "ok"),
        ("PUT", "/api/v1/log-level", '{"level": "loud"}', 400, "Bad Request"),
        ("POST", "/api/v1/reload", "", 200, "ok"),
        ("DELETE", "/api/v1/clients/nobody", "", 404, "Not Found"),
    ):
        assert broker.http(method, path, body) == status, path
        line = broker.line(message="audit: operated", act=f"{method} {path}", result=result)
        assert {name: line[name] for name in ("door", "user", "address")} == {
            "door": "admin",
            "user": "root",
            "address": "127.0.0.1",
        }
    # Looking is no action.
    assert broker.http("GET", "/api/v1/status") == 200
    assert not [one for one in broker.said if "GET" in str(one.get("act"))]


def test_each_flight_action_of_an_operator_is_logged(broker: Logged) -> None:
    credentials = Credentials(user="root", password=f"file:{broker.folder / 'password'}")
    (broker.folder / "password").write_text("pw-root")
    with Client(f"grpc://{broker.addresses['flight']}", credentials=credentials) as client:
        client.backup("first")
        with pytest.raises(RefusedError):
            client.backup("../first")
    lines = broker.lines(2, message="audit: operated", door="flight")
    assert [line["result"] == "ok" for line in lines] == [True, False], lines
    for line in lines:
        assert line["act"].startswith("backup"), line
        assert (line["user"], line["address"]) == ("root", "127.0.0.1")
    copy = broker.folder / "backups"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (copy, *copy.rglob("*"))} == {0o700, 0o600}


def test_what_users_without_the_right_try_is_logged_as_refused_and_not_as_done(broker: Logged) -> None:
    (broker.folder / "password").write_text("pw-plain")
    credentials = Credentials(user="plain", password=f"file:{broker.folder / 'password'}")
    with Client(f"grpc://{broker.addresses['flight']}", credentials=credentials) as client:
        for try_in_vain in (lambda: client.backup("first"), lambda: client.remove_group("spark")):
            with pytest.raises(RefusedError):
                try_in_vain()
    assert broker.http("POST", "/api/v1/whoami", user="plain") == 405
    assert broker.line(message="audit: refused", user="plain")["act"] == "action"
    assert broker.http("DELETE", "/api/v1/drain") == 200
    broker.line(message="audit: operated", user="root")
    assert not [one for one in broker.said if (one["message"], one.get("user")) == ("audit: operated", "plain")]


def test_a_reload_by_signal_is_logged_with_its_result(broker: Logged) -> None:
    broker.process.send_signal(signal.SIGHUP)
    assert broker.line(message="audit: operated", door="signal", act="reload")["result"] == "ok"
    (broker.folder / "users").write_text("broken\n")
    broker.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + WAIT_S
    with broker.changed:
        while not [one for one in broker.said if one.get("act") == "reload" and "users, line 1" in one["result"]]:
            assert broker.changed.wait(deadline - time.monotonic()), broker.said[-5:]


def test_a_look_at_the_log_of_a_running_broker_fails_when_it_reads_nothing(broker: Logged) -> None:
    seen = run(headwaterd(), "log", "verify", str(broker.folder / "log"), "--online")
    assert seen.code == 1
    assert "nothing was read" in seen.out
    assert "no damage" not in seen.out


def test_a_loose_data_folder_is_named_at_the_start_with_the_command_that_changes_it(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    # A busy port would be refused before; this one is refused after the warning.
    words = [f"--set=listeners.{name}.bind=127.0.0.1:0" for name in ("mqtt", "flight", "admin")]
    (folder / "log.meta").write_text("no log")
    ended = run(headwaterd(), *words, f"--set=data_dir={folder}")
    assert ended.code == 1
    assert f"chmod -R go= {folder}" in ended.err


def test_a_level_that_is_none_is_refused_by_name_at_the_start_and_at_the_check(tmp_path: Path) -> None:
    for words in ((), ("--check",)):
        ended = run(headwaterd(), *words, f"--set=data_dir={tmp_path}", environment={"HEADWATER_LOG_LEVEL": "loud"})
        assert ended.code == 5
        assert "HEADWATER_LOG_LEVEL: `loud` is not a level" in ended.err


@pytest.mark.parametrize(
    "setting",
    ["auth.password_file", "auth.acl_file", "auth.token.keys_file", "listeners.flight.tls.cert", "data_dir"],
)
def test_the_check_opens_the_files_that_the_settings_name(tmp_path: Path, setting: str) -> None:
    missing = tmp_path / "missing"
    words = [f"--set=data_dir={tmp_path / 'log'}"]
    if setting == "data_dir":
        missing.write_text("a file where the folder should be")
    if setting.startswith("listeners"):
        words.append(f"--set=listeners.flight.tls.key={missing}")
    ended = run(headwaterd(), "--check", *words, f"--set={setting}={missing}")
    assert ended.code == 5, ended.out
    assert str(missing) in ended.err
    # The control: without the setting the same check passes.
    assert run(headwaterd(), "--check", f"--set=data_dir={tmp_path / 'log'}").code == 0
