"""`headwater top` against a real broker: once for a script, and on a terminal with keys."""

from __future__ import annotations

import os
import pty
import select
import signal
import termios
import threading
import time

import pytest
from support.programs import COMMAND, StartBroker, clean_environment, headwater, take_interrupts

from broker_edge import Client, Row

WAIT_S = 120.0


def test_once_measures_between_two_looks(start_broker: StartBroker) -> None:
    broker = start_broker()
    admin = "http://{}:{}".format(*broker.admin)
    has_begun, is_over = threading.Event(), threading.Event()

    def produce() -> None:
        with Client("grpc://{}:{}".format(*broker.flight)) as client:
            while not is_over.wait(0.01):
                client.produce([Row("devices/d1/telemetry", b"x")])
                has_begun.set()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        assert has_begun.wait(60)
        done = headwater("top", "--once", "--json", "--admin", admin)
    finally:
        is_over.set()
        thread.join()
    assert done.code == 0, done.err
    (row,) = done.documents[0]["brokers"]
    assert sum(one["per_s"] for one in row["partitions"]) > 0
    assert 0 < row["sync_p99_s"] < 60
    assert row["resident_bytes"] > 1 << 20
    assert (row["admin"], row["disk_level"]) == (admin, "normal")
    plain = headwater("top", "--once", "--admin", admin)
    assert [line.split("\t")[0] for line in plain.lines] == ["admin", admin]


def test_a_broker_that_is_away_is_said_beside_the_others(start_broker: StartBroker) -> None:
    admin = "http://{}:{}".format(*start_broker().admin)
    done = headwater("top", "--once", "--json", "--admin", admin, "--admin", "http://127.0.0.1:1")
    assert done.code == 3
    there, away = done.documents[0]["brokers"]
    assert there["connections"] == 0
    assert "cannot connect to http://127.0.0.1:1" in away["trouble"]


def test_without_a_terminal_each_look_is_a_line_until_ctrl_c(start_broker: StartBroker) -> None:
    admin = "http://{}:{}".format(*start_broker().admin)
    with Terminal("--every", "0.2", "--admin", admin, is_terminal=False) as top:
        top.until(lambda text: len(text.splitlines()) >= 4)
        os.kill(top.pid, signal.SIGINT)
        assert top.wait() == 130
    names, *rows = top.text.splitlines()
    assert names.split("\t")[:2] == ["admin", "in/s"]
    assert all(row.startswith(admin) for row in rows)


@pytest.mark.parametrize("end", ["q", "ctrl-c"])
def test_on_a_terminal_keys_choose_the_view(end: str, start_broker: StartBroker) -> None:
    broker = start_broker()
    with Terminal("--admin", "http://{}:{}".format(*broker.admin), is_terminal=True) as top:
        top.until(lambda text: "ack p99" in text)
        before = termios.tcgetattr(top.descriptor)[3]
        assert not before & termios.ICANON, "keys are read as they are pressed"
        top.press("2")
        top.until(lambda text: "telemetry-0" in text)
        top.press("/control\r")
        top.until(lambda text: "filter `control`" in text)
        top.press("p")
        top.until(lambda text: "(paused)" in text)
        if end == "q":
            top.press("q")
            assert top.wait() == 0
        else:
            os.kill(top.pid, signal.SIGINT)
            assert top.wait() == 130
        assert termios.tcgetattr(top.descriptor)[3] & termios.ICANON, "the terminal is as it was"


class Terminal:
    """`headwater top` on a terminal of its own, or with its output in a pipe."""

    def __init__(self, *words: str, is_terminal: bool) -> None:
        self.text = ""
        command = [*COMMAND, "top", *words]
        environment = clean_environment({"TERM": "xterm", "COLUMNS": "100", "LINES": "30"})
        # The other end stays open here, so that its settings can be looked at afterwards.
        self.descriptor, self._other = pty.openpty() if is_terminal else os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            take_interrupts()
            os.dup2(self._other, 1)
            if is_terminal:
                os.dup2(self._other, 0)
            os.execvpe(command[0], command, environment)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        os.close(self._other)

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self.descriptor, keys.encode())

    def until(self, is_so: object) -> None:
        assert callable(is_so)
        deadline = time.monotonic() + WAIT_S
        while not is_so(self.text):
            assert time.monotonic() < deadline, self.text
            self._read(0.2)

    def wait(self) -> int:
        """The exit code."""
        deadline = time.monotonic() + WAIT_S
        while True:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, self.text

    def _read(self, seconds: float) -> None:
        readable, _, _ = select.select([self.descriptor], [], [], seconds)
        if readable:
            self.text += os.read(self.descriptor, 65_536).decode(errors="replace")
