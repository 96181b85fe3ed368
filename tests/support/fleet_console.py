"""`headwater console` as a process, with settings of a test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import yaml

from support.programs import COMMAND, python_path, take_interrupts

WAIT_S = 60.0


def fleet_settings(root: Path, brokers: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    return {"brokers": [dict(one) for one in brokers], "tables": {"root": str(root)}, **more}


class FleetConsole:
    """Runs while it is entered. `admin` is its host and port, as at a broker; `log` is what it writes to stderr.
    `options` are those of its command line beside `--config`."""

    admin: tuple[str, int]
    address: str

    def __init__(self, folder: Path, settings: Mapping[str, Any], options: Sequence[str] = ()) -> None:
        self._folder, self._options = folder, options
        self.config, self.log = folder / "console.yaml", folder / "console.err"
        self.config.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", **settings}))

    def __enter__(self) -> FleetConsole:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "console", "--config", str(self.config), *self._options],
                cwd=self._folder,
                env=os.environ | {"PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=take_interrupts,
            )
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        if not said:
            self.process.wait(WAIT_S)
            raise AssertionError(self.log.read_text())
        self.address = said[-1]
        parts = urlsplit(self.address)
        self.admin = (str(parts.hostname), parts.port or 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def interrupt(self) -> int:
        """Ctrl-C. Returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_S)
