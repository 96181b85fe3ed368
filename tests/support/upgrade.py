"""Shared by the fixture of an older broker and the test that opens it: folder, names, parts.

`tests/fixtures/upgrade/make.py` fills such a folder with the programs of the old version; the tests unpack it and
continue with those of this checkout. Nothing here imports headwater, because both versions use this module.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from support.raw_mqtt import NEVER, RawMqtt, Will

ARCHIVE = Path(__file__).resolve().parents[1] / "fixtures" / "upgrade" / "583ec94.tar.gz"
READY_S = 120.0
WAIT_S = 60.0
_READY = re.compile(r"^ready mqtt=(\S+) flight=(\S+) admin=(\S+)")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Folder:
    """The parts of an unpacked fixture."""

    root: Path

    @property
    def broker(self) -> Path:
        """The working folder of the broker: configuration file, users, ACL and data folder."""
        return self.root / "broker"

    @property
    def config(self) -> Path:
        return self.broker / "broker.yaml"

    @property
    def acl(self) -> Path:
        return self.broker / "acl"

    @property
    def bronze(self) -> Path:
        return self.root / "lake" / "bronze"

    @property
    def tables(self) -> Path:
        """The tables of actions and devices."""
        return self.root / "lake" / "tables"

    def checkpoint(self, job: str) -> Path:
        return self.root / "lake" / "checkpoints" / job

    @property
    def passwords(self) -> Mapping[str, str]:
        """The password of each user, in clear text."""
        return dict(json.loads((self.root / "passwords.json").read_text()))

    @property
    def expected(self) -> Mapping[str, Any]:
        """The answers of the old programs, recorded when the fixture was made."""
        return dict(json.loads((self.root / "expected.json").read_text()))


def unpack(target: Path) -> Folder:
    """Unpacks the fixture into the test's own folder and sets the file times to now. Otherwise Delta would remove what
    is older than a month from the log of a table, which is not the subject of the tests."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(target)
    for path in target.rglob("*"):
        os.utime(path)
    return Folder(target)


class UpgradeBroker:
    """A `headwaterd` started like the service: in its folder, with its configuration file."""

    def __init__(self, program: Path | str, folder: Folder, *, settings: Mapping[str, str] | None = None) -> None:
        self._program, self.folder, self._settings = str(program), folder, dict(settings or {})
        self.log_file = folder.root / "broker.stderr.txt"
        self._process: subprocess.Popen[str] | None = None
        self.mqtt: Address = ("", 0)
        self.flight: Address = ("", 0)
        self.admin: Address = ("", 0)

    def __enter__(self) -> UpgradeBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    @property
    def server(self) -> str:
        return "grpc://{}:{}".format(*self.flight)

    def start(self) -> None:
        """Returns once the broker serves; fails with its last output if it does not start."""
        command = [self._program, "--config", str(self.folder.config)]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER")}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder.broker, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        # Kill a program that neither prints nor ends, so that the blocking read of its first line returns.
        late = threading.Timer(READY_S, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        match = _READY.match(line)
        assert match is not None, (
            f"{self._program} printed {line!r}; its log ends:\n{self.log_file.read_text()[-3000:]}"
        )
        self.mqtt, self.flight, self.admin = (_address(text) for text in match.groups())

    def stop(self) -> int:
        """A clean stop; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(120)
        self._process = None
        return code

    def connect(
        self,
        client_id: str,
        user: str | None,
        *,
        password: str | None = None,
        passing: bool = False,
        will: Will | None = None,
    ) -> RawMqtt:
        """A client with the password of its user at the old broker, unless another one is given. Its session never
        expires; that of a `passing` client ends with its connection."""
        typed = self.folder.passwords[user] if user is not None and password is None else password
        lasts_s = 0 if passing else NEVER
        return RawMqtt(self.mqtt, client_id, user=user, password=typed, clean=passing, expiry_s=lasts_s, will=will)

    def get(self, path: str, user: str) -> tuple[int, Any]:
        """Status and JSON of the admin HTTP."""
        shown = base64.b64encode(f"{user}:{self.folder.passwords[user]}".encode()).decode()
        host, port = self.admin
        request = urllib.request.Request(f"http://{host}:{port}{path}", headers={"Authorization": f"Basic {shown}"})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read() or b"null")

    def wait_away(self, client_id: str) -> None:
        """Waits until the broker has noticed that a client is gone."""
        deadline = time.monotonic() + WAIT_S
        while True:
            status, client = self.get(f"/api/v1/clients/{client_id}", "root")
            if status == 200 and not client["connected"]:
                return
            assert time.monotonic() < deadline, f"{client_id} is still connected: {client}"
            time.sleep(0.01)

    def engine_environment(self) -> dict[str, str]:
        """Environment with which the action engine can log in to Flight."""
        return {
            "HEADWATER_USER": "engine",
            "HEADWATER_PASSWORD_FROM": "env:UPGRADE_ENGINE",
            "UPGRADE_ENGINE": self.folder.passwords["engine"],
        }


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


# Permissions asked of the old and the new broker: user, client id, action, topic or filter.
ACL_QUESTIONS: tuple[tuple[str | None, str, str, str], ...] = (
    (None, "stranger", "subscribe", "public/#"),
    (None, "stranger", "subscribe", "plants/1/#"),
    (None, "stranger", "publish", "public/motd"),
    (None, "pump-6", "publish", "devices/pump-6/telemetry"),
    ("root", "desk", "publish", "plants/2/x"),
    ("root", "desk", "subscribe", "#"),
    ("ann", "ann-desk", "publish", "plants/1/secret"),
    ("ann", "ann-desk", "publish", "plants/2/x"),
    ("ann", "ann-desk", "subscribe", "plants/1/#"),
    ("ann", "ann-desk", "subscribe", "users/ann/inbox"),
    ("ann", "ann-desk", "subscribe", "users/bob/inbox"),
    ("bob", "bob-desk", "publish", "plants/1/secret"),
    ("bob", "bob-desk", "publish", "plants/1/mode"),
    ("line", "line-c", "publish", "jobs/1"),
    ("line", "line-c", "subscribe", "devices/line-c/#"),
    ("pump-7", "pump-7", "publish", "devices/pump-7/telemetry"),
    ("pump-7", "pump-7", "publish", "devices/pump-8/telemetry"),
    ("pump-7", "pump-7", "subscribe", "devices/pump-7/actions"),
    ("pump-7", "pump-7", "subscribe", "devices/pump-8/actions"),
    # Security holes: with another client's id, a client got that client's topics.
    ("pump-7", "pump-99", "publish", "devices/pump-99/status"),
    ("pump-7", "pump-99", "subscribe", "devices/pump-99/actions"),
    ("gateway", "gw-1", "publish", "devices/gw-1/telemetry"),
    ("gateway", "gw-1", "subscribe", "devices/gw-1/actions"),
)


def ask_acl(broker: UpgradeBroker) -> list[bool]:
    """The answers to `ACL_QUESTIONS`. Each is asked by a passing client, so no session remains afterwards."""
    return [_may(broker, *question) for question in ACL_QUESTIONS]


def _may(broker: UpgradeBroker, user: str | None, client_id: str, act: str, topic: str) -> bool:
    with broker.connect(client_id, user, passing=True) as client:
        assert client.code == 0, (user, client_id, client.connack)
        if act == "subscribe":
            return client.subscribe((topic, 0))[0] < 0x80
        return client.published(topic, b"asked") < 0x80
