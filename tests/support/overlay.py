"""A copy of this system to install packages into: an overlay over / in namespaces of its own, gone when the test ends.

What is written goes to memory, the network is a loopback of its own, and no systemd runs. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.programs import Ended, program

WAIT_S = 240.0
# The overlay's own files are in memory: a file system that is an overlay itself, as in a container, cannot hold them.
_MAKE = """
mount --make-rprivate /
mount -t tmpfs -o size=1g tmpfs "$1"
mkdir "$1"/upper "$1"/work "$1"/root
mount -t overlay -o lowerdir=/,upperdir="$1"/upper,workdir="$1"/work overlay "$1"/root
mount -t proc proc "$1"/root/proc
mount --rbind /dev "$1"/root/dev
mount -t tmpfs tmpfs "$1"/root/run
mount -t tmpfs -o mode=1777 tmpfs "$1"/root/tmp
mkdir "$1"/root/run/lent "$1"/root/run/lock
mount --bind "$2" "$1"/root/run/lent
ip link set lo up
echo made
exec sleep infinity
"""


class Machine:
    """`lent` is a folder of the test that is /run/lent in there."""

    def __init__(self, pid: int, root: Path, lent: Path) -> None:
        self._pid, self._root, self.lent = pid, root, lent

    def command(self, *words: str, user: str | None = None) -> list[str]:
        """What runs `words` in there, as root or as another user."""
        into = [program("nsenter", "util-linux"), f"--target={self._pid}", "--mount", "--net", "--pid"]
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return [*into, "chroot", str(self._root), *who, *words]

    def run(self, *words: str, user: str | None = None, more: Mapping[str, str] | None = None) -> Ended:
        """Runs a program to its end."""
        command = self.command(*words, user=user)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment(more)
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def do(self, *words: str) -> str:
        """Runs a program that must succeed, and returns what it says."""
        ended = self.run(*words)
        assert ended.code == 0, f"{words}: {ended.out[-1_000:]}{ended.err[-2_000:]}"
        return ended.out

    def shell(self, text: str) -> str:
        return self.do("sh", "-ec", text)

    def mode(self, path: str) -> str:
        """Owner, group and mode, or `none` if nothing is there."""
        ended = self.run("stat", "--format=%U:%G %a", path)
        return ended.out.strip() if ended.code == 0 else "none"

    def listen(self) -> socket.socket:
        """A service manager that listens, as /run/lent/notify."""
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(str(self.lent / "notify"))
        (self.lent / "notify").chmod(0o777)
        manager.settimeout(WAIT_S)
        return manager


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(more or {})}


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.fail("a copy of this system needs root: run the tests of packages as root", pytrace=False)
    unshare = program("unshare", "util-linux")
    program("ip", "iproute2")
    with tempfile.TemporaryDirectory() as mount, tempfile.TemporaryDirectory() as lent:
        Path(lent).chmod(0o755)
        # Everything in there ends with its first process, and the mounts with the last.
        spaces = ["--mount", "--net", "--pid", "--fork", "--kill-child"]
        command = [unshare, *spaces, "sh", "-ec", _MAKE, "sh", mount, lent]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            assert first.stderr is not None
            try:
                if first.stdout.readline() != "made\n":
                    pytest.fail(f"no copy of this system: {first.stderr.read()}", pytrace=False)
                children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
                yield Machine(int(children[0]), Path(mount) / "root", Path(lent))
            finally:
                first.kill()
