"""`headwater doctor --security` at real brokers: one that `headwater init` made, a loose one, a broken one."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.ports import free_port
from support.programs import Ended, StartBroker, headwater, headwaterd, run
from support.tls_files import Files, new_authority, sign

from broker_edge import Client, Credentials, Row
from broker_edge.admin import Admin
from broker_edge.security import Door, neighbours, operated, outside
from broker_edge.security.handshake import handshakes
from broker_edge.tls import TlsReferences
from broker_edge.torture.process import BrokerProcess

MOSQUITTO = f"$7$101$c2FsdHNhbHRzYWx0${base64.b64encode(b'h' * 64).decode()}"
"""A password as Mosquitto stores it."""
Found = list[dict[str, str]]


def checked(*words: str, environment: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    done = headwater("doctor", "--security", "--json", *words, environment=environment)
    assert done.code in (0, 1, 2), done.err
    return done.code, json.loads(done.out)


def bad(told: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["state"], one["name"]) for one in told["checks"] if one["state"] != "ok"}


def of(told: dict[str, Any], name: str, where: str = "") -> Found:
    return [one for one in told["checks"] if one["name"] == name and where in one["where"]]


def addresses(broker: BrokerProcess, *, tls: bool) -> list[str]:
    mqtt = f"mqtts://localhost:{broker.listener('mqtts')[1]}" if tls else f"localhost:{broker.mqtt[1]}"
    flight, admin = ("grpc+tls", "https") if tls else ("grpc", "http")
    words = ["--mqtt", mqtt, "--server", f"{flight}://localhost:{broker.flight[1]}"]
    return [*words, "--admin", f"{admin}://localhost:{broker.admin[1]}"]


# A safe one


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[tuple[Path, BrokerProcess]]:
    """A folder of `headwater init`, and its broker."""
    folder = tmp_path / "safe"
    ports = [word for name in ("mqtt", "mqtts", "flight", "admin") for word in ("--port", f"{name}={free_port()}")]
    made = headwater("init", str(folder), *ports)
    assert made.code == 0, made.err
    settings = _flat(yaml.safe_load((folder / "broker.yaml").read_text()))
    data = Path(settings.pop("data_dir"))
    with BrokerProcess(data_dir=data, settings=settings, log_file=tmp_path / "safe.stderr.txt") as broker:
        broker.start()
        yield folder, broker


def _flat(tree: dict[str, Any], above: str = "") -> dict[str, str]:
    """A tree of settings as dotted keys."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": str(value)}
    return found


def port_of(broker: BrokerProcess, name: str) -> int:
    known = {"mqtt": lambda: broker.mqtt, "flight": lambda: broker.flight, "admin": lambda: broker.admin}
    return known.get(name, lambda: broker.listener(name))()[1]


def test_a_broker_of_init_has_nothing_to_do_on_the_box_and_from_outside(safe: tuple[Path, BrokerProcess]) -> None:
    folder, broker = safe
    code, told = checked("--config", str(folder / "broker.yaml"))
    assert (code, told["state"], bad(told)) == (0, "ok", set())
    assert {one["name"] for one in told["checks"]} >= {
        "plain text", "stranger", "TLS", "certificate", "chain", "TLS 1.0", "TLS 1.1", "client certificates", "health",
        "file modes", "passwords", "rights", "anonymous clients", "limits", "retention",
    }  # fmt: skip
    assert [what.partition(":")[0] for what in told["not_checked"]] == ["version, audit log and refusals"]
    code, told = checked(*addresses(broker, tls=True), "--tls-ca", str(folder / "tls/ca.pem"))
    assert (code, bad(told)) == (0, set())
    assert all("for `localhost`" in one["found"] for one in of(told, "chain"))
    assert len(told["not_checked"]) == 2


def test_an_operator_sees_version_log_level_and_refusals(safe: tuple[Path, BrokerProcess]) -> None:
    folder, broker = safe
    secret = f"file:{folder / 'secrets/operator.password'}"
    words = [*addresses(broker, tls=True), "--tls-ca", str(folder / "tls/ca.pem")]
    words += ["--user", "operator", "--password-from", secret]
    code, told = checked(*words)
    assert (code, bad(told)) == (0, set())
    assert of(told, "audit log")[0]["found"] == "the log level is info"
    assert re.search(r"strangers [1-9]\d* times", of(told, "refusals")[0]["found"])
    # The controls: a newer program, a silent log, and a user who may not look.
    door = Door("admin", "localhost", broker.admin[1], has_tls=True, is_beyond=False)
    tls, operator = TlsReferences(ca=f"file:{folder / 'tls/ca.pem'}"), Credentials(user="operator", password=secret)
    found = operated(door, operator, tls, version="99.0")
    assert [(one.state, one.name) for one in found if one.state != "ok"] == [("warn", "version")]
    for level, state in (
        ("warn", "warn"),
        ("headwater_broker=debug", "warn"),
        ("debug,audit=off", "warn"),
        ("debug", "ok"),
    ):
        _put_level(door, operator, folder, level)
        [one] = [one for one in operated(door, operator, tls, version="0.1.0") if one.name == "audit log"]
        assert one.state == state, level
    jobs = Credentials(user="pipeline", password=f"file:{folder / 'secrets/pipeline.password'}")
    assert [one.name for one in operated(door, jobs, tls, version="0.1.0") if one.state != "ok"] == ["operator"]


def _put_level(door: Door, operator: Credentials, folder: Path, level: str) -> None:
    context = ssl.create_default_context(cafile=str(folder / "tls/ca.pem"))
    connection = http.client.HTTPSConnection(door.host, door.port, context=context, timeout=60)
    header = operator.header()
    assert header is not None
    headers = {"Authorization": header.decode(), "Content-Type": "application/json"}
    connection.request("PUT", "/api/v1/log-level", json.dumps({"level": level}), headers)
    assert connection.getresponse().status == 200
    connection.close()


# A loose one


@pytest.fixture
def loose(start_broker: StartBroker) -> BrokerProcess:
    """Everybody may do everything, from everywhere."""
    everywhere = {f"listeners.{name}.bind": "0.0.0.0:0" for name in ("mqtt", "ws", "flight", "admin")}
    return start_broker("loose", everywhere | {"auth.allow_anonymous": "true", "auth.open_metrics": "true"})


def test_a_loose_broker_is_told_what_strangers_can_do(loose: BrokerProcess, tmp_path: Path) -> None:
    config = tmp_path / "loose.yaml"
    listeners = {name: {"bind": f"0.0.0.0:{port_of(loose, name)}"} for name in ("mqtt", "ws", "flight", "admin")}
    auth = {"allow_anonymous": True, "open_metrics": True}
    config.write_text(json.dumps({"data_dir": str(tmp_path / "loose"), "listeners": listeners, "auth": auth}))
    code, told = checked("--config", str(config))
    assert code == 2
    assert len([one for one in of(told, "plain text") if one["state"] == "fail"]) == 4
    for listener in ("mqtt", "ws"):
        said = [one["found"] for one in of(told, "stranger", f"{listener} ") if one["state"] == "fail"]
        assert said[0] == "CONNECT without credentials is accepted"
        for what in ("read the telemetry of devices", "read the commands of devices", "read the past of some topics"):
            assert any(what in one for one in said), (what, said)
    assert "offsets" in of(told, "stranger", "flight ")[0]["found"]
    # Nobody without a name administers a broker beyond loopback.
    assert of(told, "stranger", "admin ")[0]["state"] == "ok"
    assert ("fail", "metrics") in bad(told)
    assert bad(told) >= {("fail", "anonymous clients"), ("fail", "rights"), ("warn", "limits"), ("warn", "metrics")}
    assert all(one["remedy"] for one in told["checks"] if one["state"] != "ok")


def test_what_only_this_machine_reaches_is_a_warning(broker: BrokerProcess) -> None:
    code, told = checked(*addresses(broker, tls=False))
    assert code == 1
    assert {state for state, _ in bad(told)} == {"warn"}
    assert {name for _, name in bad(told)} == {"stranger", "metrics"}
    assert of(told, "stranger", "admin ")[0]["found"] == "strangers may inspect and administer the broker"


def test_the_lines_of_the_acl_decide_what_a_stranger_may_read(start_broker: StartBroker, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(
        "topic read $SYS/#\ntopic read devices/+/telemetry/#\ntopic replay devices/+/telemetry/#\nuser root\noperator\n"
    )
    settings = {"auth.allow_anonymous": "true", "auth.acl_file": str(tmp_path / "acl")}
    _, told = checked(*addresses(start_broker(settings=settings), tls=False))
    granted = re.findall(r"may (read the past of|read) (?:the|some) [^`]*\(`([^`]+)`\)", json.dumps(told))
    assert granted == [
        ("read", "$SYS/#"), ("read", "devices/+/telemetry/#"), ("read", "#"),
        ("read the past of", "devices/+/telemetry/#"), ("read the past of", "#"),
    ]  # fmt: skip


def test_it_leaves_nothing_in_the_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    with Client("grpc://{}:{}".format("127.0.0.1", broker.flight[1])) as client:
        client.produce([Row("devices/a/telemetry", b"1")])
        admin = Admin(f"http://127.0.0.1:{broker.admin[1]}")

        def state() -> dict[str, Any]:
            status = dict(admin.ask("GET", "/api/v1/status"))
            groups = [group.name for group in client.groups()]
            clients = list(admin.clients())
            files = {path: path.stat().st_size for path in (tmp_path / "broker").rglob("*.seg")}
            return {"status": _still(status), "groups": groups, "clients": clients, "files": files}

        before = state()
        assert checked(*addresses(broker, tls=False))[0] == 1
        _gone(admin)
        assert state() == before
        # The control: one record more is seen.
        client.produce([Row("devices/a/telemetry", b"2")])
        assert state() != before


def _still(status: dict[str, Any]) -> dict[str, Any]:
    """What does not move by itself."""
    partitions = [{key: one[key] for key in ("name", "log_start", "high_watermark")} for one in status["partitions"]]
    return {"partitions": partitions, "sessions": status["sessions"]}


def _gone(admin: Admin) -> None:
    """Waits until the connections of the visit have ended."""
    deadline = time.monotonic() + 60
    while admin.ask("GET", "/api/v1/status")["connections"]:
        assert time.monotonic() < deadline, list(admin.clients())
        time.sleep(0.05)


# A broken one


def test_a_broken_broker_is_told_each_fault(start_broker: StartBroker, tmp_path: Path) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker", names="DNS:edge.example", days=-1)
    (tmp_path / "users").write_text(f"root:{MOSQUITTO}\neve:{MOSQUITTO}\n")
    (tmp_path / "users").chmod(0o644)
    files.key.chmod(0o640 | 0o004)
    (tmp_path / "acl").write_text("user root\noperator\nuser eve\ntopic readwrite #\nuser gone\ntopic read a\n")
    settings = {
        "auth.password_file": str(tmp_path / "users"),
        "auth.acl_file": str(tmp_path / "acl"),
        **{f"listeners.{name}.bind": f"127.0.0.1:{free_port()}" for name in ("mqtts", "flight", "admin")},
        **{
            f"listeners.{name}.tls.{part}": str(path)
            for name in ("mqtts", "flight", "admin")
            for part, path in (("cert", files.cert), ("key", files.key))
        },
    }
    broker = start_broker("broken", settings)
    config = tmp_path / "broken.yaml"
    config.write_text(_yaml({**settings, "data_dir": str(tmp_path / "broken"), "listeners.mqtt.bind": _bind(broker)}))
    code, told = checked("--config", str(config), "--tls-ca", str(files.ca))
    assert code == 2
    assert bad(told) == {
        ("fail", "certificate"), ("fail", "chain"), ("fail", "file modes"), ("fail", "passwords"), ("warn", "rights"),
    }  # fmt: skip
    assert all("expired" in one["found"] for one in of(told, "chain"))
    said = " ".join(one["found"] for one in of(told, "rights"))
    assert "there is no user `gone`" in said
    assert "`eve` is no operator" in said
    assert MOSQUITTO not in json.dumps(told)


def _bind(broker: BrokerProcess) -> str:
    return f"{broker.mqtt[0]}:{broker.mqtt[1]}"


def _yaml(settings: dict[str, str]) -> str:
    """Settings with dotted keys as one document; JSON is YAML."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *above, last = key.split(".")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[last] = value
    return json.dumps(tree)


def test_a_certificate_for_another_name_is_found_where_the_name_is_known(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker", names="DNS:edge.example")
    broker = start_broker(settings=_tls(files, "mqtts", "flight", "admin"))
    door = Door("mqtts", "127.0.0.1", broker.listener("mqtts")[1], has_tls=True, is_beyond=False, is_named=True)
    tls = TlsReferences(ca=f"file:{files.ca}")
    assert [one.found for one in outside([door], tls) if one.name == "chain"] == ["the certificate is for another name"]
    unnamed = Door("mqtts", "127.0.0.1", door.port, has_tls=True, is_beyond=False, is_named=False)
    assert [one.state for one in outside([unnamed], tls) if one.name == "chain"] == ["ok"]
    assert [one.state for one in outside([unnamed]) if one.name == "chain"] == ["warn"]


def _tls(files: Files, *names: str) -> dict[str, str]:
    found = {f"listeners.{name}.bind": "127.0.0.1:0" for name in names}
    found |= {f"listeners.{name}.tls.cert": str(files.cert) for name in names}
    return found | {f"listeners.{name}.tls.key": str(files.key) for name in names}


def test_a_listener_that_wants_certificates_says_so(start_broker: StartBroker, tmp_path: Path) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker", days=60)
    names = ("mqtts", "wss", "flight", "admin")
    settings = _tls(files, *names)
    for name in names:
        settings[f"listeners.{name}.tls.client_ca"] = str(files.ca)
        settings[f"listeners.{name}.tls.client_auth"] = "required"
    broker = start_broker(settings=settings)
    doors = [Door(name, "localhost", port_of(broker, name), has_tls=True, is_beyond=True) for name in names]
    found = outside(doors, TlsReferences(ca=f"file:{files.ca}"))
    assert [one for one in found if one.state != "ok"] == []
    assert [one.found for one in found if one.name == "client certificates"] == ["clients need a certificate"] * 4
    assert len([one for one in found if one.name == "stranger"]) == 4


# Other servers


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on loopback that lets `answer` have each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                try:
                    link, _ = listener.accept()
                except TimeoutError:
                    continue
                with link:
                    link.settimeout(10)
                    try:
                        answer(link)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("oldest", ["TLSv1", "TLSv1_2"])
def test_old_versions_of_tls_are_found(tmp_path: Path, oldest: str) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.minimum_version = ssl.TLSVersion[oldest]

    def answer(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as tls:
            tls.recv(1024)

    with serving(answer) as port:
        door = Door("admin", "localhost", port, has_tls=True, is_beyond=True)
        found = {one.name: one.state for one in handshakes(door, TlsReferences(ca=f"file:{files.ca}"), timeout_s=5.0)}
    expected = "fail" if oldest == "TLSv1" else "ok"
    assert (found["TLS 1.0"], found["TLS 1.1"], found["chain"]) == (expected, expected, "ok")


def test_a_password_is_never_sent_without_tls_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pw").write_text("secret-pw\n")
    credentials = Credentials(user="root", password=f"file:{tmp_path / 'pw'}")
    heard: list[bytes] = []

    def answer(link: socket.socket) -> None:
        heard.append(link.recv(4096))
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    real = socket.getaddrinfo
    local = lambda host, *more, **rest: real("127.0.0.1" if host == "edge.example" else host, *more, **rest)  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", local)
    with serving(answer) as port:
        far = Door("admin", "edge.example", port, has_tls=False, is_beyond=True)
        [one] = operated(far, credentials, TlsReferences(), version="0.1.0")
        assert (one.state, one.found) == ("warn", "the credentials were not sent, because this listener has no TLS")
        assert heard == []
        # The control: on this machine they are sent.
        near = Door("admin", "localhost", port, has_tls=False, is_beyond=False)
        operated(near, credentials, TlsReferences(), version="0.1.0")
        assert b"Authorization: Basic" in heard[0]
        # And a stranger has none to send, whatever the environment holds.
        monkeypatch.setenv("HEADWATER_USER", "root")
        monkeypatch.setenv("HEADWATER_PASSWORD_FROM", f"file:{tmp_path / 'pw'}")
        del heard[:]
        outside([far], timeout_s=2.0)
        assert heard
        assert not any(b"Authorization" in one for one in heard)


def test_a_listener_that_nobody_named_is_found_at_its_usual_port(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker", names="DNS:edge.example", days=60)
    broker = start_broker(settings=_tls(files, "mqtts", "flight"))
    real = socket.getaddrinfo
    local = lambda host, *more, **rest: real("127.0.0.1" if host == "edge.example" else host, *more, **rest)  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", local)
    ports = {name: port_of(broker, name) for name in ("mqtt", "mqtts", "flight", "admin")} | {"ws": free_port()}
    named = Door("mqtts", "edge.example", ports["mqtts"], has_tls=True, is_beyond=True)
    found = neighbours([named], ports=ports)
    assert [(one.listener, one.has_tls) for one in found] == [("mqtt", False), ("flight", True), ("admin", False)]
    assert all(one.is_beyond for one in found)
    told = outside([found[0], found[2]])
    assert [one.where for one in told if (one.state, one.name) == ("fail", "plain text")] == [
        f"mqtt edge.example:{ports['mqtt']}", f"admin edge.example:{ports['admin']}"
    ]  # fmt: skip
    # On this machine the ports may be those of another broker.
    assert neighbours([Door("mqtts", "localhost", 1, has_tls=True, is_beyond=False)], ports=ports) == []


def test_what_is_away_or_something_else_is_a_warning(tmp_path: Path) -> None:
    words = ["--mqtt", "127.0.0.1:1", "--server", "grpc://127.0.0.1:1", "--admin", "http://127.0.0.1:1"]
    code, told = checked(*words)
    assert code == 1
    assert [(one["state"], one["name"]) for one in told["checks"]] == [("warn", "listener")] * 3
    # What nobody gave an address of is not asked where another address was given.
    assert [one["where"] for one in checked("--mqtt", "127.0.0.1:1")[1]["checks"]] == ["mqtt 127.0.0.1:1"]
    with serving(lambda link: link.sendall(b"220 mail\r\n")) as port:
        door = Door("mqtt", "127.0.0.1", port, has_tls=False, is_beyond=True)
        assert [(one.state, one.name) for one in outside([door], timeout_s=1.0)] == [("warn", "listener")]


def test_settings_belong_to_the_security_checks_and_have_to_be_valid(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("listenrs: {}\n")
    for option in ("--config=x.yaml", "--set=data_dir=x"):
        without: Ended = headwater("doctor", option)
        assert (without.code, "--security" in without.err) == (2, True)
    given, told = checked("--set", "auth.open_metrics=true", "--set", "listeners.mqtt.bind=127.0.0.1:1")
    assert given == 1
    assert of(told, "listener", "mqtt 127.0.0.1:1")
    assert of(told, "metrics", "auth.open_metrics")
    invalid = headwater("doctor", "--security", "--config", str(tmp_path / "bad.yaml"))
    assert (invalid.code, "listenrs" in invalid.err) == (5, True)


def test_a_person_reads_one_line_for_each_check(loose: BrokerProcess) -> None:
    done = headwater("doctor", "--security", *addresses(loose, tls=False))
    assert done.code == 1
    assert all(line.split("\t")[0] in ("ok", "warn", "fail") for line in done.lines)
    assert re.search(r"^headwater: 0 failures, [1-9]\d* warnings, \d+ checks are fine$", done.err, re.MULTILINE)
    assert "not checked: files, users, rights and settings" in done.err
    assert run(headwaterd(), "--version").code == 0
