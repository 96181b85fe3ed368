"""`headwater bench` over TLS, client certificates and WebSocket with a user of the real broker: every message arrives,
and each thing that is wrong is one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.programs import Ended, headwater, headwaterd, run
from support.tls_files import Files, new_authority, sign

from broker_edge.torture.process import BrokerProcess

PASSWORD = "p4ss-w0rd of the tests"
ACL = "user bench\npattern readwrite #\n"


@dataclass(frozen=True, slots=True)
class World:
    """A broker that knows the user `bench`, and the files that its clients need."""

    broker: BrokerProcess
    server: Files
    device: Files
    password: Path

    def at(self, scheme: str, *, port_of: str | None = None, host: str = "localhost") -> str:
        port_of = port_of or scheme
        address = self.broker.mqtt if port_of == "mqtt" else self.broker.listener(port_of)
        return f"{scheme}://{host}:{address[1]}"

    @property
    def login(self) -> list[str]:
        return ["--user", "bench", "--password-from", f"file:{self.password}"]

    @property
    def trust(self) -> list[str]:
        return ["--tls-ca", str(self.server.ca)]

    @property
    def own(self) -> list[str]:
        return ["--tls-cert", str(self.device.cert), "--tls-key", str(self.device.key)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "ca").mkdir()
    server = sign(new_authority(folder, "server-ca"), "broker")
    device = sign(new_authority(folder / "ca", "device-ca"), "dev-7")
    added = run(headwaterd(), "users", "add", str(folder / "users"), "bench", stdin=f"{PASSWORD}\n")
    assert added.code == 0, added
    (folder / "acl").write_text(ACL)
    (folder / "password").write_text(f"{PASSWORD}\n")
    with ExitStack() as stack:
        broker = start(stack, folder / "broker", server, device, folder)
        yield World(broker, server, device, folder / "password")


def start(stack: ExitStack, folder: Path, server: Files, device: Files, auth: Path) -> BrokerProcess:
    """A broker whose `mqtts` asks for a certificate."""
    settings = {
        "listeners.ws.bind": "127.0.0.1:0",
        "listeners.mqtts.tls.client_ca": str(device.ca),
        "listeners.mqtts.tls.client_auth": "required",
        "auth.password_file": str(auth / "users"),
        "auth.acl_file": str(auth / "acl"),
    }
    for name in ("mqtts", "wss"):
        settings |= {
            f"listeners.{name}.bind": "127.0.0.1:0",
            f"listeners.{name}.tls.cert": str(server.cert),
            f"listeners.{name}.tls.key": str(server.key),
        }
    broker = BrokerProcess(data_dir=folder, settings=settings, log_file=folder.with_suffix(".log"))
    stack.enter_context(broker)
    broker.start()
    return broker


def native(*words: str, environment: dict[str, str] | None = None) -> Ended:
    """What `headwater bench` does with these words, without the start of the command line."""
    program = "import sys; from broker_edge._core import bench; sys.exit(bench(sys.argv[1:]))"
    return run(sys.executable, "-c", program, *words, environment=environment)


def bench(*words: str, environment: dict[str, str] | None = None) -> dict[str, object]:
    done = native(*words, "--json", environment=environment)
    assert (done.code, done.err) == (0, ""), done
    (report,) = done.documents
    return report


def sentence(done: Ended, code: int = 3) -> str:
    """What was said, in one line without the secret."""
    assert done.code == code, done
    assert len(done.err.splitlines()) == 1, done
    assert PASSWORD not in done.err
    return done.err


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_every_scenario_runs_over_every_scheme(world: World, scheme: str) -> None:
    layers = {"mqtt": [], "ws": [], "wss": world.trust, "mqtts": [*world.trust, *world.own]}[scheme]
    place = ["--mqtt", world.at(scheme), *layers, *world.login]
    report = bench("pub", "-c", "5", "-n", "3000", "--qos", "0:1,1:1,2:1", *place)
    assert (report["sent"], report["acked"], report["refused"]) == (3000, 2000, 0)
    report = bench("sub", "-c", "10", "-n", "60", "--size", "64:1,200000:1", "--protocol", "5", *place)
    assert (report["delivered"], report["deliveries_missing"]) == (600, 0)
    report = bench("pair", "-c", "10", "-n", "500", "--qos", "2", *place)
    assert (report["delivered"], report["deliveries_missing"]) == (500, 0)
    assert bench("connect", "-c", "10", "-n", "60", *place)["acked"] == 60


def test_the_environment_and_options_before_the_command_are_honoured(world: World) -> None:
    variables = {
        "HEADWATER_MQTT": world.at("mqtts"),
        "HEADWATER_USER": "bench",
        "HEADWATER_PASSWORD_FROM": "env:BENCH_SECRET",
        "HEADWATER_TLS_CA": str(world.server.ca),
        "HEADWATER_TLS_CERT": str(world.device.cert),
        "HEADWATER_TLS_KEY": str(world.device.key),
        "BENCH_SECRET": PASSWORD,
    }
    done = headwater("bench", "pub", "-n", "50", "--json", environment=variables)
    assert (done.code, done.documents[0]["acked"]) == (0, 50), done
    before = [*world.login, *world.trust, *world.own]
    done = headwater(*before, "bench", "pub", "-n", "50", "--mqtt", world.at("mqtts"), "--json")
    assert (done.code, done.documents[0]["acked"]) == (0, 50), done
    # The system's authorities are trusted when none is named.
    trusted = {"SSL_CERT_FILE": str(world.server.ca)}
    assert bench("pub", "-n", "50", "--mqtt", world.at("wss"), *world.login, environment=trusted)["acked"] == 50
    # The old names work for one release, and say what to write.
    old = ["--mqtt", world.at("mqtt"), "--username", "bench"]
    done = headwater("bench", "pub", "-n", "50", *old, environment={"HEADWATER_PASSWORD": PASSWORD})
    assert done.code == 0, done
    assert "--user" in done.err
    assert "--password-from env:HEADWATER_PASSWORD" in done.err


def test_a_certificate_that_is_not_trusted_is_named_with_its_reason(world: World, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = new_authority(tmp_path / "other", "other-ca")
    known = ["pub", "-n", "5", *world.login]
    said = sentence(native(*known, "--mqtt", world.at("wss"), "--tls-ca", str(other)))
    assert "not signed by a trusted authority" in said
    said = sentence(native(*known, "--mqtt", world.at("wss")))
    assert "--tls-ca" in said
    ca = new_authority(tmp_path, "server-ca")
    for name, certificate, reason in (
        ("expired", sign(ca, "expired", days=-1), "has expired"),
        ("elsewhere", sign(ca, "elsewhere", names="DNS:edge-7.example"), "edge-7.example"),
    ):
        with ExitStack() as stack:
            folder = world.password.parent
            broker = start(stack, tmp_path / f"{name}-data", certificate, world.device, folder)
            for scheme in ("mqtts", "wss"):
                place = ["--mqtt", f"{scheme}://localhost:{broker.listener(scheme)[1]}", "--tls-ca", str(ca)]
                assert reason in sentence(native(*known, *place, *world.own))


def test_what_the_port_does_not_speak_is_told(world: World) -> None:
    known = ["pub", "-n", "5", *world.login]
    for tls in ("mqtts", "wss"):
        done = native(*known, "--mqtt", world.at("mqtt", port_of=tls))
        assert "expects TLS" in sentence(done, 4)
        done = native(*known, "--protocol", "5", "--mqtt", world.at("mqtt", port_of=tls))
        assert "only TLS" in sentence(done, 4)
        done = native(*known, "--mqtt", world.at("ws", port_of=tls))
        assert "only TLS" in sentence(done)
    for clear in ("mqtt", "ws"):
        done = native(*known, "--mqtt", world.at("mqtts", port_of=clear), *world.trust)
        assert "mqtt:// or ws://" in sentence(done)
    assert "not HTTP" in sentence(native(*known, "--mqtt", world.at("ws", port_of="mqtt")))
    assert "/mqtt" in sentence(native(*known, "--mqtt", world.at("ws") + "/other"))


@pytest.mark.parametrize("scenario", ["pub", "connect"])
def test_who_may_not_come_in_is_told_why(world: World, tmp_path: Path, scenario: str) -> None:
    known = [scenario, "-n", "5"]
    mutual = ["--mqtt", world.at("mqtts"), *world.trust]
    assert "--tls-cert" in sentence(native(*known, *mutual, *world.login))
    strange = sign(new_authority(tmp_path, "strange-ca"), "dev-8")
    own = ["--tls-cert", str(strange.cert), "--tls-key", str(strange.key)]
    assert "--tls-cert" in sentence(native(*known, *mutual, *world.login, *own))
    for place in ([*mutual, *world.own], ["--mqtt", world.at("ws"), "--protocol", "5"]):
        wrong = ["--user", "bench", "--password-from", "env:WRONG"]
        done = native(*known, *place, *wrong, environment={"WRONG": "guess"})
        assert "--password-from" in sentence(done, 4)
        assert "--password-from" in sentence(native(*known, *place), 4)


def test_words_that_cannot_be_right_are_told_before_anything_is_opened(world: World) -> None:
    place = ["--mqtt", world.at("mqtts")]
    for words, named in (
        (["--mqtt", "http://localhost:80"], "mqtt, mqtts, ws or wss"),
        (["--mqtt", f"mqtt://bench:{PASSWORD}@localhost"], "--password-from"),
        ([*place, "--password-from", PASSWORD, "--user", "bench"], "file:PATH or env:NAME"),
        ([*place, "--tls-ca", "/no/file"], "/no/file"),
        (["--mqtt", world.at("ws"), *world.trust], "wss://"),
    ):
        assert named in sentence(native("pub", "-n", "5", *words), 2)
