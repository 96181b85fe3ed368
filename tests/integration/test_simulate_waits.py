"""`headwater devices simulate` without a broker: it says what it waits for, and Ctrl-C ends it without a traceback."""

from __future__ import annotations

import re
import signal
import socket

import pytest
from support.programs import start_headwater


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_it_says_what_it_waits_for_and_ends_on_a_signal(number: signal.Signals) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with start_headwater("devices", "simulate", "3", "--no-telemetry", "--mqtt", at) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            wanted = rf"0 of 3 devices are connected; the others wait for {re.escape(at)}: .*Connect call failed"
            assert re.match(wanted, line), line
            process.send_signal(number)
            _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert all(re.match(wanted, line) for line in rest.splitlines()), rest
