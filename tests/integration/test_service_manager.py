"""What `headwaterd` tells a service manager, as systemd listens for it with `Type=notify` and `WatchdogSec=`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import headwaterd

WAIT_S = 60.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        yield manager


def started(folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    words = [
        f"data_dir={folder / 'data'}",
        *(f"listeners.{name}.bind=127.0.0.1:0" for name in ("mqtt", "flight", "admin")),
    ]
    command = [headwaterd(), *(word for setting in words for word in ("--set", setting))]
    environment = os.environ | environment
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def heard(manager: socket.socket) -> str:
    return manager.recv(1_000).decode()


def fall_silent(manager: socket.socket) -> int:
    """Waits until nothing came for a second; returns how much came before."""
    manager.settimeout(1.0)
    count = 0
    with contextlib.suppress(TimeoutError):
        while heard(manager):
            count += 1
    manager.settimeout(WAIT_S)
    return count


def test_it_says_that_it_is_ready_alive_and_stopping(manager: socket.socket, tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with started(tmp_path, environment) as process:
        try:
            assert heard(manager) == "READY=1"
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready mqtt=")
            for _ in range(5):
                assert heard(manager) == "WATCHDOG=1"
            # A process that does not run says nothing, and the manager ends it.
            process.send_signal(signal.SIGSTOP)
            fall_silent(manager)
            process.send_signal(signal.SIGCONT)
            assert heard(manager) == "WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while (said := heard(manager)) == "WATCHDOG=1":
                pass
            assert said == "STOPPING=1"
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def test_the_watchdog_of_another_process_is_none_of_its_business(manager: socket.socket, tmp_path: Path) -> None:
    name = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    with started(tmp_path, {**name, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}) as process:
        try:
            assert heard(manager) == "READY=1"
            assert fall_silent(manager) == 0
        finally:
            process.kill()


def test_a_manager_that_is_gone_is_a_warning(tmp_path: Path) -> None:
    with started(tmp_path, {"NOTIFY_SOCKET": str(tmp_path / "nowhere")}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready mqtt=")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0
            assert "cannot tell the service manager" in err
        finally:
            process.kill()
