"""A mosquitto on its own port: the second broker that devices are tested against. Stores nothing on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from support.ports import free_port


class Mosquitto:
    """`kill` and `start` again simulate a broker that lost everything, on the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self._options = options
        self._config = folder / "mosquitto.conf"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        binary = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if binary is None:
            raise RuntimeError("these tests need mosquitto: apt-get install mosquitto")
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence false", *self._options]
        self._config.write_text("\n".join(lines) + "\n")
        self._process = subprocess.Popen([binary, "-c", str(self._config)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"mosquitto did not listen on port {self.port}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
