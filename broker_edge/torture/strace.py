"""Makes system calls of a running process fail or wait, with strace. Needs root (or ptrace permission) and strace."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ATTACHED_S = 60.0


class StraceError(Exception):
    """strace could not attach to the process; the message contains its output."""


@contextlib.contextmanager
def injected(program: str, *, pid: int, call: str, what: str) -> Iterator[None]:
    """While the block runs, applies `what` to each such call, in strace's notation: `error=EIO:when=60`,
    `delay_enter=1s`.

    Calls are counted per thread, starting now. The process may be killed inside the block.
    """
    command = [program, "-f", "-qq", "-e", f"trace={call}", "-e", f"inject={call}:{what}", "-o", "/dev/null"]
    tracer = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    try:
        _wait_traced(pid, tracer)
        yield
    finally:
        tracer.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(ATTACHED_S)
        tracer.kill()
        tracer.wait(ATTACHED_S)
        if tracer.stderr is not None:
            tracer.stderr.close()


def _wait_traced(pid: int, tracer: subprocess.Popen[str]) -> None:
    """Returns when every thread of the process has a tracer."""
    deadline = time.monotonic() + ATTACHED_S
    while not _all_traced(pid):
        ended = tracer.poll() is not None
        if ended or time.monotonic() > deadline:
            said = tracer.stderr.read() if ended and tracer.stderr is not None else "nothing"
            raise StraceError(f"strace cannot attach to {pid} (it needs root or ptrace permission): {said}")
        time.sleep(0.005)


def _all_traced(pid: int) -> bool:
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # The thread has ended.
        if next(line for line in lines if line.startswith("TracerPid:")).split()[1] == "0":
            return False
    return True
