"""I11: nothing is reachable from another host without authentication unless the operator wrote `allow_anonymous: true`.

Judged from outside: by the addresses that the process listens on, by its refusal to start, and by what a stranger gets.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.doc_blocks import ROOT
from support.programs import StartBroker, headwaterd, program, run
from support.tls_files import new_authority, sign

from broker_edge import Client
from broker_edge.errors import HeadwaterError

EVERYWHERE = ("0.0.0.0:0", "[::]:0")
# Also those that are added later.
LISTENERS = tuple(yaml.safe_load((ROOT / "conf/broker.yaml").read_text(encoding="utf-8"))["listeners"])


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings of the listeners with TLS: a certificate does not authenticate clients."""
    files = sign(new_authority(tmp_path_factory.mktemp("tls"), "stranger-ca"), "stranger")
    return {
        f"listeners.{name}.tls.{part}": str(path)
        for name in ("mqtts", "wss")
        for part, path in (("cert", files.cert), ("key", files.key))
    }


def listening(pid: int) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses that a process accepts TCP connections on, by what the kernel says."""
    own = {os.readlink(path) for path in _descriptors(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                words = bytes.fromhex(fields[1].partition(":")[0])
                # Each group of four bytes is in the order of the machine.
                found.add(ipaddress.ip_address(b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))))
    return found


def _descriptors(pid: int) -> Iterator[Path]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        if path.is_symlink():
            yield path


def test_i11_without_settings_the_broker_listens_on_loopback_alone(
    start_broker: StartBroker, tls: dict[str, str]
) -> None:
    more = {f"listeners.{name}.bind": "127.0.0.1:0" for name in ("mqtts", "ws", "wss")}
    addresses = listening(start_broker(settings=tls | more).pid)
    assert addresses
    assert all(address.is_loopback for address in addresses), addresses


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("address", EVERYWHERE)
def test_i11_a_listener_beyond_loopback_without_authentication_is_refused_at_the_start(
    listener: str, address: str, tls: dict[str, str], tmp_path: Path
) -> None:
    settings = tls | {"data_dir": str(tmp_path / "data"), f"listeners.{listener}.bind": address}
    ended = run(headwaterd(), *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
    assert ended.code == 5, ended.err
    assert "allow_anonymous" in ended.err
    assert not ended.out, "it was ready"


def test_i11_beyond_loopback_strangers_get_nothing_but_health_and_an_empty_page(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    assert run(headwaterd(), "users", "generate", str(users), stdin="ann\n").code == 0
    everywhere = {f"listeners.{name}.bind": "0.0.0.0:0" for name in ("mqtt", "flight", "admin")}
    broker = start_broker(settings=everywhere | {"auth.password_file": str(users)})
    assert ipaddress.ip_address("0.0.0.0") in listening(broker.pid)
    publish = program("mosquitto_pub", "mosquitto-clients")
    assert run(publish, "-p", str(broker.mqtt[1]), "-q", "1", "-t", "t", "-m", "x").code != 0
    with (
        Client(f"grpc://127.0.0.1:{broker.flight[1]}") as client,
        pytest.raises(HeadwaterError, match=r"(?i)credential"),
    ):
        client.offsets()
    asked = ("console", "live", "live/history", "topics", "records?partition=0", "tail", "groups", "access", "trace")
    for path in ("/metrics", "/api/v1/status", "/artifacts/a/1", *(f"/api/v1/{one}" for one in asked)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{broker.admin[1]}{path}", timeout=60)
        assert refused.value.code == 401, path
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin[1]}/healthz", timeout=60) as answer:
        assert answer.status == 200
    # The page has the form to sign in and no data: the same bytes for everybody.
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin[1]}/", timeout=60) as answer:
        assert answer.read() == (ROOT / "broker_edge" / "ui" / "index.html").read_bytes()


def test_i11_control_with_the_consent_of_the_operator_the_sockets_are_seen(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"listeners.mqtt.bind": "0.0.0.0:0", "auth.allow_anonymous": "true"})
    assert not all(address.is_loopback for address in listening(broker.pid))
