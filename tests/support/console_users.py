"""A broker with users for the console: who may act, who may look, and who may look but not at payloads."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_edge.torture.process import BrokerProcess
from support.console_http import ask
from support.paho_client import PahoClient
from support.programs import StartBroker
from support.secured import make_users

ACL = """
user operator
operator
topic readwrite #
topic replay #
user viewer
viewer
topic replay #
user blind
viewer
user device
topic readwrite #
topic deny secret/#
"""
DENIED = "topic deny secret/#"
"""The line that keeps `device` from something."""
NAMES = ("operator", "viewer", "blind", "device")


@dataclass(frozen=True, slots=True)
class Signed:
    """A running broker and the passwords of its users."""

    broker: BrokerProcess
    passwords: Mapping[str, str]
    acl_file: Path

    def device(self, client_id: str) -> PahoClient:
        """A client of the user `device`, not yet connected."""
        made = PahoClient(self.broker.mqtt[1], version="5", client_id=client_id)
        made.paho.username_pw_set("device", self.passwords["device"])
        return made

    def refusals(self, user: str | None) -> Mapping[str, Any]:
        """The row of refusals of a user, or of callers without one, as the broker tells a viewer."""
        proof = b64encode(f"viewer:{self.passwords['viewer']}".encode()).decode()
        answer = ask(self.broker, "GET", "/api/v1/refusals", headers={"Authorization": f"Basic {proof}"})
        assert answer.status == 200
        return next((row for row in answer.document["users"] if row["user"] == user), {"refused": []})


def start_signed(
    start: StartBroker, folder: Path, settings: Mapping[str, str] | None = None, *, name: str = "signed"
) -> Signed:
    passwords = make_users(folder, *NAMES)
    (folder / "acl").write_text(ACL)
    files = {"auth.password_file": str(folder / "users"), "auth.acl_file": str(folder / "acl")}
    return Signed(start(name, files | dict(settings or {})), passwords, folder / "acl")
