"""`headwater doctor --security` at real brokers: one that `headwater init` made, a loose one, a broken one."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.doors import port_of
from support.ports import free_port
from support.programs import Ended, StartBroker, headwater, headwaterd, run
from support.tls_files import new_authority, sign

from broker_edge import Client, Credentials, Row
from broker_edge.admin import Admin
from broker_edge.security import Door, operated
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


def test_what_is_away_is_a_warning() -> None:
    words = ["--mqtt", "127.0.0.1:1", "--server", "grpc://127.0.0.1:1", "--admin", "http://127.0.0.1:1"]
    code, told = checked(*words)
    assert code == 1
    assert [(one["state"], one["name"]) for one in told["checks"]] == [("warn", "listener")] * 3
    # What nobody gave an address of is not asked where another address was given.
    assert [one["where"] for one in checked("--mqtt", "127.0.0.1:1")[1]["checks"]] == ["mqtt 127.0.0.1:1"]


def test_settings_are_read_with_and_without_the_security_checks_and_have_to_be_valid(tmp_path: Path) -> None:
    bad, away = tmp_path / "bad.yaml", tmp_path / "away.yaml"
    bad.write_text("listenrs: {}\n")
    given, told = checked("--set", "auth.open_metrics=true", "--set", "listeners.mqtt.bind=127.0.0.1:1")
    assert given == 1
    assert of(told, "listener", "mqtt 127.0.0.1:1")
    assert of(told, "metrics", "auth.open_metrics")
    invalid = headwater("doctor", "--security", "--config", str(bad))
    assert (invalid.code, "listenrs" in invalid.err) == (5, True)
    # Without --security they are compared with those of the running broker: one check among others.
    for option, wrong in ((f"--config={bad}", "listenrs"), (f"--config={away}", str(away)), ("--set=data=x", "data")):
        done: Ended = headwater("doctor", option, "--json")
        checks = {one["name"]: one for one in json.loads(done.out)["checks"]}
        assert (done.code, checks["settings"]["state"], wrong in checks["settings"]["detail"]) == (1, "failed", True)


def test_a_person_reads_one_line_for_each_check(loose: BrokerProcess) -> None:
    done = headwater("doctor", "--security", *addresses(loose, tls=False))
    assert done.code == 1
    assert all(line.split("\t")[0] in ("ok", "warn", "fail") for line in done.lines[1:])
    assert re.search(r"^headwater: 0 failures, [1-9]\d* warnings, \d+ checks are fine$", done.err, re.MULTILINE)
    assert "not checked: files, users, rights and settings" in done.err
    assert run(headwaterd(), "--version").code == 0
