"""Credentials, TLS and WebSocket of the command line and the devices, against the real broker: they connect, and each
thing that is wrong is one sentence that says what to do."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.programs import Ended, headwater, headwaterd
from support.secured import make_users, start_secured
from support.tls_files import Files

from broker_edge.authority import KeyPair, new_authority, new_certificate
from broker_edge.device import Link, LinkError
from broker_edge.errors import UnavailableError
from broker_edge.tls import TlsReferences
from broker_edge.torture.process import BrokerProcess
from headwater_cli import main
from sources.options import parse_options
from sources.servers import Servers

HOSTS = ("localhost", "127.0.0.1")
USER = "device-1"


def written(folder: Path, name: str, pair: KeyPair, ca: KeyPair) -> Files:
    files = Files(ca=folder / f"{name}.ca.pem", cert=folder / f"{name}.pem", key=folder / f"{name}.key")
    for path, content in ((files.ca, ca.cert), (files.cert, pair.cert), (files.key, pair.key)):
        path.write_bytes(content)
    return files


class World:
    """Brokers with the same users: one as it should be, one that asks for client certificates, one whose certificate
    has expired, and one whose certificate is for another name."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.passwords = make_users(folder, USER, "pipeline")
        self.ca = new_authority("fleet")
        self.client = written(folder, "client", new_certificate(self.ca, USER), self.ca)
        self.stranger = written(folder, "stranger", new_certificate(new_authority("other"), USER), new_authority("x"))
        last_year = datetime.now(UTC) - timedelta(days=400)
        certificates = {
            "good": new_certificate(self.ca, "broker", hosts=HOSTS),
            "mutual": new_certificate(self.ca, "broker", hosts=HOSTS),
            "expired": new_certificate(self.ca, "broker", hosts=HOSTS, now=last_year),
            "renamed": new_certificate(self.ca, "broker", hosts=["edge-7.example"]),
        }
        self.brokers: dict[str, BrokerProcess] = {}

        def start(name: str = "broker", settings: dict[str, str] | None = None) -> BrokerProcess:
            process = BrokerProcess(data_dir=folder / name, settings=settings, log_file=folder / f"{name}.txt")
            stack.enter_context(process)
            process.start()
            return process

        for name, pair in certificates.items():
            tls = written(folder, name, pair, self.ca)
            client_ca = tls.ca if name == "mutual" else None
            self.brokers[name] = start_secured(start, folder, tls, client_ca=client_ca, name=f"data-{name}")

    def at(self, scheme: str, name: str = "good", *, port_of: str | None = None) -> str:
        """The address of a broker; with `port_of` that of the port of another listener."""
        broker = self.brokers[name]
        known = {"mqtt": broker.mqtt, "grpc+tls": broker.flight, "https": broker.admin}
        known |= {one: broker.listener(one) for one in ("mqtts", "ws", "wss")}
        return f"{scheme}://localhost:{known[port_of or scheme][1]}"

    def login(self, *, password: str | None = None) -> list[str]:
        path = self.folder / f"{USER}.password"
        if password is not None:
            path = self.folder / "wrong.password"
            path.write_text(password)
        return ["--user", USER, "--password-from", f"file:{path}"]

    @property
    def trust(self) -> list[str]:
        return ["--tls-ca", str(self.client.ca)]

    def publish(self, address: str, *options: str) -> list[str]:
        """The words of a command."""
        topic = f"devices/{USER}/telemetry"
        return ["pub", topic, "x", "--id", USER, "--mqtt", address, "--timeout", "20", *options]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    headwaterd()
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("secured"), stack)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ended]]:
    """Runs `headwater` in this process, without what an earlier command put into the environment."""
    with monkeypatch.context() as patch:
        for name in [one for one in os.environ if one.startswith("HEADWATER_")]:
            patch.delenv(name)
        before = dict(os.environ)

        def run(*words: str) -> Ended:
            try:
                return Ended(main(words), *capsys.readouterr())
            finally:
                for name in os.environ.keys() - before.keys():
                    del os.environ[name]

        yield run


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_pub_and_sub_speak_tls_and_websocket(world: World, command: Callable[..., Ended], scheme: str) -> None:
    done = command(*world.publish(world.at(scheme), *world.login(), *world.trust))
    assert (done.code, done.err) == (0, "")
    pipeline = {
        "HEADWATER_USER": "pipeline",
        "HEADWATER_PASSWORD_FROM": f"file:{world.folder}/pipeline.password",
        "HEADWATER_TLS_CA": str(world.client.ca),
        "HEADWATER_MQTT": world.at(scheme),
    }
    arguments = ["--from", "earliest", "--count", "1", "--timeout", "60"]
    heard = headwater("sub", f"devices/{USER}/#", *arguments, environment=pipeline)
    assert heard.code == 0, heard.err
    assert f"devices/{USER}/telemetry" in heard.out


def test_a_client_certificate_is_presented(world: World, command: Callable[..., Ended]) -> None:
    certificate = ["--tls-cert", str(world.client.cert), "--tls-key", str(world.client.key)]
    done = command(*world.publish(world.at("mqtts", "mutual"), *world.login(), *world.trust, *certificate))
    assert (done.code, done.err) == (0, "")


def test_options_before_the_command_count_too(world: World) -> None:
    before = [*world.login(), *world.trust]
    done = headwater(*before, "pub", f"devices/{USER}/telemetry", "x", "--id", USER, "--mqtt", world.at("mqtts"))
    assert (done.code, done.err) == (0, "")
    pipeline = ["--user", "pipeline", "--password-from", f"file:{world.folder}/pipeline.password"]
    listed = headwater(*before, "topics", "--server", world.at("grpc+tls"), *pipeline)
    assert (listed.code, listed.err) == (0, "")
    assert f"devices/{USER}/telemetry" in listed.out


UNKNOWN = "the authority of the certificate is unknown: give its file with --tls-ca"
EXPIRED = "the certificate has expired: renew it"
RENAMED = "the certificate is for another name: call the broker by a name in its certificate"
MISSING = "the broker asks for a certificate: give --tls-cert and --tls-key"
FOREIGN = "the broker does not accept our certificate"


def check_sentence(done: Ended, code: int, says: str) -> None:
    """The command ended with this code and one sentence, which contains `says` and no password."""
    assert (done.code, says in done.err) == (code, True), done.err
    assert len(done.err.splitlines()) == 1
    assert "hunter2" not in done.err


@pytest.mark.parametrize(
    ("scheme", "broker", "port_of", "options", "code", "says"),
    [
        ("mqtts", "good", None, "login", 3, UNKNOWN),
        ("wss", "good", None, "login", 3, UNKNOWN),
        ("mqtts", "expired", None, "login trust", 3, EXPIRED),
        ("mqtts", "renamed", None, "login trust", 3, RENAMED),
        ("mqtts", "mutual", None, "login trust", 3, MISSING),
        ("mqtts", "mutual", None, "login trust stranger", 3, FOREIGN),
        ("mqtts", "good", "mqtt", "login trust", 3, "does this port speak TLS?"),
        ("mqtt", "good", "mqtts", "login", 4, "accepts only TLS connections. Write mqtts://."),
        ("ws", "good", "mqtt", "login", 3, "does not speak WebSocket"),
        ("mqtts", "good", None, "trust", 4, "refused the connection: Not authorized"),
        ("mqtts", "good", None, "wrong trust", 4, "refused the connection: Bad user name or password"),
    ],
)
def test_what_is_wrong_over_mqtt_is_one_sentence(
    world: World,
    command: Callable[..., Ended],
    scheme: str,
    broker: str,
    port_of: str | None,
    options: str,
    code: int,
    says: str,
) -> None:
    done = command(*world.publish(world.at(scheme, broker, port_of=port_of), *chosen(world, options)))
    check_sentence(done, code, says)


@pytest.mark.parametrize(
    ("scheme", "broker", "port_of", "options", "code", "says"),
    [
        ("grpc+tls", "good", None, "login", 3, UNKNOWN),
        ("grpc+tls", "expired", None, "login trust", 3, EXPIRED),
        ("grpc+tls", "renamed", None, "login trust", 3, RENAMED),
        ("grpc+tls", "mutual", None, "login trust", 3, "give a certificate that it accepts, with --tls-cert and"),
        ("grpc+tls", "good", "mqtt", "login trust", 3, "does this port speak TLS?"),
        ("grpc", "good", "grpc+tls", "login", 3, "If this port speaks TLS, write grpc+tls://"),
        ("grpc+tls", "good", None, "wrong trust", 4, "credentials"),
        ("https", "good", None, "login", 3, UNKNOWN),
        ("https", "expired", None, "login trust", 3, EXPIRED),
        ("https", "renamed", None, "login trust", 3, RENAMED),
        ("https", "good", "mqtt", "login trust", 3, "does this port speak TLS?"),
        ("http", "good", "https", "login", 3, "If the port speaks TLS, write https://"),
        ("https", "good", None, "wrong trust", 4, "credentials"),
    ],
)
def test_what_is_wrong_over_flight_and_http_is_one_sentence(
    world: World,
    command: Callable[..., Ended],
    scheme: str,
    broker: str,
    port_of: str | None,
    options: str,
    code: int,
    says: str,
) -> None:
    address = world.at(scheme, broker, port_of=port_of)
    words = ["topics", "--server"] if scheme.startswith("grpc") else ["clients", "list", "--admin"]
    done = command(*words, address, "--timeout", "20", *chosen(world, options))
    check_sentence(done, code, says)


@pytest.mark.parametrize(("broker", "says"), [("good", UNKNOWN), ("expired", EXPIRED), ("renamed", RENAMED)])
def test_a_query_says_what_is_wrong_with_a_certificate(world: World, broker: str, says: str) -> None:
    trusted = {} if broker == "good" else {"tls.ca": f"file:{world.client.ca}"}
    options = {"servers": world.at("grpc+tls", broker), "subscribe": "t", "fetchOffset.numRetries": "0", **trusted}
    servers = Servers(parse_options(options))
    try:
        with pytest.raises(UnavailableError, match=says):
            servers.all()
    finally:
        servers.close()


@pytest.mark.parametrize(
    ("broker", "options", "code", "says"),
    [
        ("good", "wrong trust", 4, "credentials"),
        ("good", "login", 3, UNKNOWN),
        ("expired", "login trust", 3, EXPIRED),
        ("renamed", "login trust", 3, RENAMED),
    ],
)
def test_jobs_say_what_is_wrong_in_one_sentence(
    world: World, command: Callable[..., Ended], tmp_path: Path, broker: str, options: str, code: int, says: str
) -> None:
    settings = tmp_path / "pipelines.yaml"
    settings.write_text(
        f"jobs: {{retries: 0}}\nsilver: {{root: {tmp_path}/tables, schemas: {tmp_path}, rules: null}}\n"
    )
    at = ["--config", str(settings), "--server", world.at("grpc+tls", broker)]
    done = command("jobs", "run", "gaps", "--available-now", *at, *chosen(world, options))
    alert, last = done.err.splitlines()
    assert (done.code, alert.startswith("alert: gaps stopped: "), says in last) == (code, True, True), done.err
    assert "hunter2" not in done.out + done.err


def test_a_failed_handshake_of_grpc_prints_our_sentence_only(world: World) -> None:
    """In a process of its own, because gRPC writes to the file descriptor of stderr."""
    done = headwater("topics", "--server", world.at("grpc+tls", "mutual"), *world.login(), *world.trust)
    assert done.code == 3
    (said,) = done.err.splitlines()
    assert said.startswith("headwater: cannot connect to grpc+tls://")


def test_a_device_of_the_command_line_says_what_is_wrong(
    world: World, command: Callable[..., Ended], tmp_path: Path
) -> None:
    at = ["--state", str(tmp_path / "state"), "--mqtt", world.at("mqtts", "expired")]
    done = command("devices", "run", USER, *at, *world.login(), *world.trust)
    assert (done.code, EXPIRED in done.err) == (3, True), done.err
    (tmp_path / "passwords").write_text("device-1:hunter2\n")
    for path, says in ((tmp_path / "passwords", "has no password of device-0001"), (tmp_path / "x", "cannot read")):
        refused = command(
            "devices", "simulate", "1", "--mqtt", world.at("mqtts"), "--passwords", str(path), "--for", "1"
        )
        assert (refused.code, says in refused.err) == (5, True), refused.err
        assert "hunter2" not in refused.err


def test_a_link_reads_its_certificates_for_each_connection(world: World, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(world.ca.cert)

    async def renew() -> None:
        link = Link(
            USER,
            host="localhost",
            port=world.brokers["good"].listener("mqtts")[1],
            scheme="mqtts",
            tls=TlsReferences(ca=f"file:{ca}"),
            reconnect_delay_s=0.05,
            user=USER,
            password=world.passwords[USER],
        )
        await link.open(timeout_s=60)
        try:
            # The next connection cannot trust the broker, and the one after the file is back can.
            ca.write_bytes(new_authority("other").cert)
            await link.drop()
            publishing = asyncio.ensure_future(link.publish(f"devices/{USER}/telemetry", b"x"))
            assert not link.connected
            ca.unlink()
            await asyncio.sleep(0)
            ca.write_bytes(world.ca.cert)
            await asyncio.wait_for(publishing, 60)
        finally:
            await link.close(drain_s=0)

    asyncio.run(renew())


def chosen(world: World, options: str) -> list[str]:
    meanings = {
        "login": world.login(),
        "wrong": world.login(password="hunter2"),
        "trust": world.trust,
        "stranger": ["--tls-cert", str(world.stranger.cert), "--tls-key", str(world.stranger.key)],
    }
    return [word for name in options.split() for word in meanings[name]]


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
def test_devices_publish_large_messages_over_tls_and_websocket(world: World, scheme: str) -> None:
    async def publish() -> None:
        broker = world.brokers["good"]
        link = Link(
            USER,
            host="localhost",
            port=broker.listener(scheme)[1],
            scheme=scheme,
            tls=TlsReferences(ca=f"file:{world.client.ca}"),
            subscribe=f"devices/{USER}/actions",
            user=USER,
            password=world.passwords[USER],
        )
        await link.open(timeout_s=60)
        try:
            for size in (0, 1, 125, 126, 65_535, 300_000):
                await asyncio.wait_for(link.publish(f"devices/{USER}/telemetry", bytes(size)), 60)
            await link.drop()
            await asyncio.wait_for(link.publish(f"devices/{USER}/telemetry", b"after a new connection"), 60)
        finally:
            await link.close(drain_s=0)

    asyncio.run(publish())


@pytest.mark.parametrize(
    ("scheme", "broker", "port_of", "ca", "says"),
    [
        ("mqtts", "good", None, False, UNKNOWN),
        ("wss", "good", None, False, UNKNOWN),
        ("mqtts", "expired", None, True, EXPIRED),
        ("mqtts", "renamed", None, True, RENAMED),
        ("mqtts", "mutual", None, True, MISSING),
        ("mqtt", "good", "mqtts", True, "if this port speaks TLS, write mqtts://"),
        ("ws", "good", "mqtt", True, "could not connect"),
    ],
)
def test_a_device_that_cannot_connect_says_why(
    world: World, scheme: str, broker: str, port_of: str | None, ca: bool, says: str
) -> None:
    async def connect() -> None:
        link = Link(
            USER,
            host="localhost",
            port=int(world.at(scheme, broker, port_of=port_of).rpartition(":")[2]),
            scheme=scheme,
            tls=TlsReferences(ca=f"file:{world.client.ca}") if ca and scheme in ("mqtts", "wss") else None,
            user=USER,
            password=world.passwords[USER],
        )
        try:
            # Those without a sentence of TLS are tried again until this deadline.
            await link.open(timeout_s=60 if scheme in ("mqtts", "wss") else 1)
        finally:
            await link.close(drain_s=0)

    with pytest.raises(LinkError, match=says):
        asyncio.run(connect())


def test_simulated_devices_that_the_broker_refuses_are_one_sentence(world: World, tmp_path: Path) -> None:
    """In processes of their own, because the library of the devices logs as well. `--first` counts for passwords."""
    (tmp_path / "passwords").write_text("device-0007:hunter2\ndevice-0008:hunter2\n")
    at = ("--mqtt", world.at("mqtts"), *world.trust, "--for", "1", "--no-telemetry")
    refused = headwater("devices", "simulate", "2", "--first", "7", "--passwords", str(tmp_path / "passwords"), *at)
    check_sentence(refused, 4, "the fleet could not connect: the broker at mqtts://localhost:")
    wanted = (
        r"refuses device device-000[78]: bad user name or password \(code 134\): check user, password and client id"
    )
    assert re.search(wanted, refused.err), refused.err
    anonymous = headwater("devices", "simulate", "1", *at)
    check_sentence(anonymous, 4, "refuses device device-0001: not authorized (code 135)")


@pytest.mark.parametrize(
    ("options", "flight", "mqtt"),
    [
        ("login trust", f"user {USER}", f"accepts MQTT 5; user {USER}"),
        ("wrong trust", "credentials", "Bad user name or password"),
        ("trust", "credentials", "Not authorized"),
        ("login", UNKNOWN, UNKNOWN),
    ],
)
def test_doctor_checks_a_secured_broker_as_other_commands_reach_it(
    world: World, command: Callable[..., Ended], options: str, flight: str, mqtt: str
) -> None:
    addresses = ["--server", world.at("grpc+tls"), "--mqtt", world.at("mqtts")]
    done = command("doctor", "--json", *addresses, *chosen(world, options))
    (report,) = done.documents
    found = {check["name"]: check for check in report["checks"]}
    state = "ok" if options == "login trust" else "failed"
    for name, says in (("flight", flight), ("mqtt", mqtt)):
        assert (found[name]["state"], says in found[name]["detail"]) == (state, True), found[name]
    assert "hunter2" not in done.out + done.err
