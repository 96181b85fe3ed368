"""`headwater doctor` with the admin of a real broker, and the file for a report of a problem."""

from __future__ import annotations

import json
import signal
import tarfile
from pathlib import Path

from support.programs import Ended, StartBroker, headwater, start_headwater
from support.tls_files import new_authority, sign

from broker_edge.admin import Admin
from broker_edge.torture.process import BrokerProcess

OF_BROKER = {"admin", "ready", "partitions", "disk", "damage", "groups", "descriptors"}


def doctor(broker: BrokerProcess, *words: str) -> Ended:
    flight, mqtt, admin = ("{}:{}".format(*address) for address in (broker.flight, broker.mqtt, broker.admin))
    return headwater("doctor", "--server", f"grpc://{flight}", "--mqtt", mqtt, "--admin", f"http://{admin}", *words)


def test_a_healthy_broker_passes_all_checks(start_broker: StartBroker, tmp_path: Path) -> None:
    done = doctor(start_broker(), "--data-dir", str(tmp_path), "--json")
    states = {check["name"]: check["state"] for check in done.documents[0]["checks"]}
    assert done.code == 0, done.out
    assert states.keys() >= OF_BROKER | {"file system", "free space", "sync"}
    assert {states[name] for name in OF_BROKER} == {"ok"}


def test_certificates_are_checked_and_changes_are_watched(start_broker: StartBroker, tmp_path: Path) -> None:
    ca = new_authority(tmp_path, "authority")
    files = sign(ca, "broker", days=3)
    tls = {"listeners.mqtts.bind": "127.0.0.1:0"} | {
        f"listeners.mqtts.tls.{key}": str(file) for key, file in (("cert", files.cert), ("key", files.key))
    }
    broker = start_broker("tls", tls)
    flight, mqtt, admin = ("{}:{}".format(*at) for at in (broker.flight, broker.listener("mqtts"), broker.admin))
    process = start_headwater(
        *("doctor", "--server", f"grpc://{flight}", "--mqtt", f"mqtts://{mqtt}", "--admin", f"http://{admin}"),
        *("--tls-ca", str(ca), "--watch", "1", "--json"),
    )
    try:
        assert process.stdout is not None
        first = {check["name"]: check for check in json.loads(process.stdout.readline())["checks"]}
        assert first["ready"]["state"] == first["mqtt"]["state"] == "ok"
        assert (first["certificate"]["state"], "renew it" in first["certificate"]["detail"]) == ("warn", True)
        Admin(f"http://{admin}").ask("PUT", "/api/v1/drain")
        changed = {check["name"]: check for check in json.loads(process.stdout.readline())["checks"]}
        assert changed["ready"]["state"] == "warn"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()


def test_an_admin_that_nobody_has_named_may_be_away(start_broker: StartBroker) -> None:
    """As on a machine with another program at port 8080, or without a broker."""
    broker = start_broker()
    flight, mqtt = "{}:{}".format(*broker.flight), "{}:{}".format(*broker.mqtt)
    done = headwater("doctor", "--server", f"grpc://{flight}", "--mqtt", mqtt, "--json")
    (admin,) = [check for check in done.documents[0]["checks"] if check["name"] == "admin"]
    assert (done.code, admin["state"]) == (0, "absent")
    named = doctor(broker, "--admin", "http://127.0.0.1:1", "--json")
    assert (named.code, [c["name"] for c in named.documents[0]["checks"] if c["state"] == "failed"]) == (1, ["admin"])


def test_settings_that_the_broker_does_not_run_with_are_named(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("set", {"mqtt.max_packet_bytes": "1000000"})
    running = Admin("http://{}:{}".format(*broker.admin)).ask("GET", "/api/v1/settings")
    config = tmp_path / "broker.yaml"
    config.write_text(json.dumps(running))

    def settings(*words: str) -> tuple[str, str]:
        done = doctor(broker, "--config", str(config), *words, "--json")
        (check,) = [check for check in done.documents[0]["checks"] if check["name"] == "settings"]
        return check["state"], check["detail"]

    assert settings() == ("ok", f"the broker runs with those of {config}")
    state, detail = settings("--set", "mqtt.max_packet_bytes=2000000", "--set", "log.disk.budget=1024MiB")
    assert state == "warn"
    assert f'mqtt.max_packet_bytes is "2000000" in {config} and "1000000" in the broker' in detail
    assert f'log.disk.budget is "1GiB" in {config} and not set in the broker' in detail
    state, detail = settings("--set", "mqtt.no_such=1")
    assert (state, "mqtt.no_such" in detail) == ("failed", True)


def test_a_bundle_has_what_a_report_needs_and_is_never_written_over(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    path, config = tmp_path / "report.tar.gz", tmp_path / "broker.yaml"
    config.write_text("data_dir: /srv/headwater\n")
    done = doctor(broker, "--bundle", str(path), "--config", str(config))
    assert done.code == 0, done.err
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        found = {name: file.read().decode() for name, file in files.items() if file is not None}
    assert {name.removeprefix("report/") for name in found} == {
        *("versions.json", "checks.json", "status.json", "metrics.txt", "settings.json", "config.json")
    }
    assert json.loads(found["report/config.json"])["data_dir"] == "/srv/headwater"
    assert json.loads(found["report/settings.json"])["data_dir"] == str(broker.data_dir)
    assert json.loads(found["report/status.json"])["partitions"]
    assert "headwater_build_info" in found["report/metrics.txt"]
    before = path.read_bytes()
    again = doctor(broker, "--bundle", str(path))
    assert (again.code, f"{path} exists: give a new name" in again.out) == (1, True)
    assert path.read_bytes() == before


def test_a_bundle_without_a_broker_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    away = "127.0.0.1:1"
    words = ("--server", f"grpc://{away}", "--mqtt", away, "--admin", f"http://{away}", "--bundle", str(path))
    done = headwater("doctor", *words)
    assert done.code == 1
    assert "without status.json, metrics.txt, settings.json, cluster.json" in done.out
    with tarfile.open(path) as archive:
        missing = archive.extractfile("report/status.json.missing")
        assert missing is not None
        assert b"cannot connect" in missing.read()


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    for words, says in (
        (("--security", "--bundle", str(tmp_path / "b.tar.gz")), "do not go with --security"),
        (("--security", "--data-dir", str(tmp_path)), "do not go with --security"),
    ):
        done = headwater("doctor", *words)
        assert (done.code, says in done.err) == (2, True), done.err
    assert list(tmp_path.iterdir()) == []
