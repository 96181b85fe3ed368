"""`headwater init`: the broker starts on what it wrote, the printed commands work, and nothing is ever overwritten."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from deltalake import DeltaTable
from support.ports import free_port
from support.programs import Ended, headwater, headwaterd, run

from headwater_cli import main
from pipelines.settings import load_settings
from pipelines.spark.jars import default_folder

WAIT_S = 60


def ports() -> list[str]:
    return [word for name in ("mqtt", "mqtts", "flight", "admin") for word in ("--port", f"{name}={free_port()}")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def init(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    code = main(["init", *arguments])
    return Ended(code, *capsys.readouterr())


@pytest.mark.timeout(900)
def test_the_broker_starts_and_the_three_commands_work(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    done = headwater("init", str(folder), *ports())
    assert done.code == 0, done.err
    broker, *commands = done.lines
    assert (len(commands), broker) == (2, f"headwater broker --config {shlex.quote(str(folder / 'broker.yaml'))}")
    # The words are those of `headwaterd`, which `headwater broker` runs.
    process = subprocess.Popen(
        [headwaterd(), *shlex.split(broker)[2:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready mqtt=")
        for command in commands:
            ended = headwater(*shlex.split(command)[1:], environment={"HEADWATER_JARS": str(default_folder())})
            assert ended.code == 0, ended.err[-3000:]
        operator = ["--user", "operator", "--password-from", f"file:{folder}/secrets/operator.password"]
        admin = load_broker(folder)["listeners"]["admin"]["bind"]
        listed = headwater(
            "clients", "list", "--admin", f"https://{admin}", "--tls-ca", f"{folder}/tls/ca.pem", *operator
        )
        assert (listed.code, listed.err) == (0, f"https://{admin} has no such clients\n")
    finally:
        process.terminate()
        process.wait(WAIT_S)
    rows = DeltaTable(folder / "data/bronze").to_pyarrow_table()
    assert rows["topic"].to_pylist() == ["devices/device-0001/telemetry"]
    assert rows["value"].to_pylist() == [b'{"celsius": 20.5}']


def load_broker(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = yaml.safe_load((folder / "broker.yaml").read_text())
    return found


def test_keys_and_passwords_are_for_this_user_only_and_stand_in_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    assert init(capsys, str(folder), "--device", "a", "--device", "b").code == 0
    secret = {path for path in folder.rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) == 0o600}
    names = {str(path.relative_to(folder)) for path in secret}
    assert names == {
        "tls/ca.key",
        "tls/broker.key",
        "users",
        "secrets/devices",
        *(f"secrets/{name}.password" for name in ("operator", "pipeline", "a", "b")),
    }
    assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700
    passwords = [path.read_text().strip() for path in (folder / "secrets").glob("*.password")]
    assert len(set(passwords)) == 4
    assert min(map(len, passwords)) >= 32
    for path in folder.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert not any(password in path.read_text() for password in passwords), path
    settings = load_settings(folder / "pipelines.yaml")
    (access,) = settings.fleet()
    assert (access.credentials.user, access.server) == ("pipeline", "grpc+tls://localhost:8815")
    lines = (folder / "secrets/devices").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["a", "b"]
    assert run(headwaterd(), "--check", "--config", str(folder / "broker.yaml")).code == 0


def test_the_certificate_has_the_names_and_is_signed_by_the_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = init(capsys, str(tmp_path / "x"), "--host", "edge-1.example", "--host", "10.1.2.3", "--bind", "0.0.0.0")
    assert done.code == 0, done.err
    cert, ca = (
        x509.load_pem_x509_certificate((tmp_path / "x/tls" / name).read_bytes()) for name in ("broker.pem", "ca.pem")
    )
    cert.verify_directly_issued_by(ca)
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["edge-1.example", "localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1", "::1"]
    assert cert.not_valid_after_utc - datetime.now(UTC) > timedelta(days=360)
    assert load_broker(tmp_path / "x")["listeners"]["mqtts"]["bind"] == "0.0.0.0:8883"
    assert load_broker(tmp_path / "x")["listeners"]["mqtt"]["bind"] == "127.0.0.1:1883"
    assert load_settings(tmp_path / "x/pipelines.yaml").fleet()[0].server == "grpc+tls://edge-1.example:8815"
    assert "to renew it, remove" in done.err


def published(folder: Path, device: str, *options: str) -> Ended:
    """A message of a device, over TLS."""
    port = load_broker(folder)["listeners"]["mqtts"]["bind"].rpartition(":")[2]
    at = ("--mqtt", f"mqtts://localhost:{port}", "--tls-ca", str(folder / "tls/ca.pem"))
    return headwater("pub", f"devices/{device}/telemetry", "x", "--id", device, *at, *options)


def certificate(folder: Path, device: str) -> list[str]:
    secrets = folder / "secrets"
    return ["--tls-cert", str(secrets / f"{device}.pem"), "--tls-key", str(secrets / f"{device}.key")]


def test_devices_with_certificates_need_no_password_and_are_nobody_else(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    done = headwater("init", str(first), "--client-certificates", *ports(), "--device", "pump-1")
    assert done.code == 0, done.err
    # A device that comes later has a certificate, too; and so has each broker beside the first one.
    assert headwater("init", str(first), "--force", "--device", "pump-1", "--device", "pump-2").code == 0
    assert headwater("init", str(second), "--beside", str(first), *ports()).code == 0
    names = {"pump-1.pem", "pump-1.key", "pump-2.pem", "pump-2.key", "operator.password", "pipeline.password"}
    assert {path.name for path in (first / "secrets").iterdir()} == names
    assert not (second / "tls/devices-ca.key").exists()
    with ExitStack() as stack:
        for folder in (first, second):
            process = subprocess.Popen(
                [headwaterd(), "--config", str(folder / "broker.yaml")],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(process.wait, WAIT_S)
            stack.callback(process.terminate)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready mqtt=")
            for device in ("pump-1", "pump-2"):
                ended = published(folder, device, *certificate(first, device))
                assert (ended.code, ended.err) == (0, "")
            other = published(folder, "pump-2", *certificate(first, "pump-1"))
            assert (other.code, other.err.count("\n")) == (4, 1), other.err
            without = published(folder, "pump-1")
            assert (without.code, "asks for a certificate" in without.err) == (3, True), without.err
        (printed,) = [line for line in done.lines if line.startswith("headwater pub ")]
        assert headwater(*shlex.split(printed)[1:]).code == 0


def test_certificates_of_devices_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "fleet"
    assert init(capsys, str(folder), "--client-certificates", "--device", "a").code == 0
    secrets = {"tls/ca.key", "tls/broker.key", "tls/devices-ca.key", "secrets/a.key"}
    for name in secrets:
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    cert, ca = (
        x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("secrets/a.pem", "tls/devices-ca.pem")
    )
    cert.verify_directly_issued_by(ca)
    (folder / "secrets/a.pem").unlink()
    before = contents(folder)
    refused = init(capsys, str(folder), "--force", "--device", "a")
    assert (refused.code, "only one of" in refused.err) == (5, True), refused.err
    (folder / "secrets/a.key").unlink()
    (folder / "tls/devices-ca.key").unlink()
    refused = init(capsys, str(folder), "--force", "--device", "a")
    assert (refused.code, "devices-ca.key: put it back" in refused.err) == (5, True), refused.err
    gone = {"secrets/a.key", "tls/devices-ca.key"}
    assert contents(folder) == {name: content for name, content in before.items() if name not in gone}


@pytest.mark.parametrize("name", ["x" * 65, "pümp"])
def test_a_name_that_no_certificate_can_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    refused = init(capsys, str(tmp_path / "x"), "--client-certificates", "--device", name)
    assert (refused.code, "cannot be the name in a certificate" in refused.err) == (5, True), refused.err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["pump-*", "pump-000?", "pump-[1-3]", "pump-{1,2}"])
def test_a_pattern_is_no_device(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    refused = init(capsys, str(tmp_path / "x"), "--device", name)
    assert (refused.code, f"`{name}` is no pattern" in refused.err) == (5, True), refused.err
    assert "headwater users generate" in refused.err
    assert not (tmp_path / "x").exists()


def test_certificates_are_for_new_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = str(tmp_path / "first")
    assert init(capsys, first).code == 0
    refused = init(capsys, first, "--force", "--client-certificates")
    assert (refused.code, "lets devices in by password" in refused.err) == (5, True), refused.err
    refused = init(capsys, str(tmp_path / "second"), "--beside", first, "--client-certificates")
    assert (refused.code, "does as" in refused.err) == (2, True), refused.err


def test_a_folder_with_files_is_refused_and_force_only_adds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "fleet"
    assert init(capsys, str(folder)).code == 0
    before = contents(folder)
    refused = init(capsys, str(folder))
    assert (refused.code, refused.out) == (5, "")
    assert f"{folder} is not empty: name a new folder" in refused.err
    added = init(capsys, str(folder), "--force", "--device", "device-0001", "--device", "late", "--json")
    assert added.code == 0, added.err
    assert [Path(path).name for path in added.documents[0]["files"]] == ["late.password"]
    # Its settings may name other ports than this call, so no command with an address is printed.
    assert added.documents[0]["commands"] == [f"headwater broker --config {folder}/broker.yaml"]
    after = contents(folder)
    changed = {name for name, content in before.items() if after[name] != content}
    assert changed == {"users", "secrets/devices"}
    for name in changed:
        assert after[name].startswith(before[name])


def test_a_second_broker_has_the_users_and_the_authority_of_the_first(tmp_path: Path) -> None:
    """And nothing else that is secret. A device of the first one publishes at the second one."""
    first, second = tmp_path / "north", tmp_path / "south"
    assert headwater("init", str(first), *ports(), "--device", "pump-1").code == 0
    done = headwater("init", str(second), "--beside", str(first), *ports())
    assert done.code == 0, done.err
    flight = load_broker(second)["listeners"]["flight"]["bind"].rpartition(":")[2]
    entry = f'- {{server: "grpc+tls://localhost:{flight}", name: south}}'
    assert f"add to `brokers` of {first}/pipelines.yaml: {entry}" in done.err
    names = {"users", "acl", "tls/ca.pem", "tls/broker.pem", "tls/broker.key", "broker.yaml"}
    assert set(contents(second)) == names
    for name in ("users", "acl", "tls/ca.pem"):
        assert contents(second)[name] == contents(first)[name]
    assert {name for name in names if stat.S_IMODE((second / name).stat().st_mode) == 0o600} == {
        "users",
        "tls/broker.key",
    }
    (command,) = done.lines
    process = subprocess.Popen(
        [headwaterd(), *shlex.split(command)[2:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready mqtt=")
        port = load_broker(second)["listeners"]["mqtts"]["bind"].rpartition(":")[2]
        ended = headwater(
            *("pub", "devices/pump-1/telemetry", "x", "--ack", "--id", "pump-1", "--user", "pump-1"),
            *("--mqtt", f"mqtts://localhost:{port}", "--tls-ca", str(first / "tls/ca.pem")),
            *("--password-from", f"file:{first}/secrets/pump-1.password"),
        )
        assert (ended.code, ended.lines[0].split()[1]) == (0, "synced"), ended.err
    finally:
        process.terminate()
        process.wait(WAIT_S)


def test_what_cannot_be_beside_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, other, second = (str(tmp_path / name) for name in ("first", "other", "second"))
    refused = init(capsys, second, "--beside", first)
    assert (refused.code, f"{first} has no users: name the folder" in refused.err) == (5, True)
    assert not Path(second).exists()
    assert init(capsys, first).code == init(capsys, other).code == 0
    refused = init(capsys, second, "--beside", first, "--device", "late")
    assert (refused.code, f"headwater init {first} --force --device" in refused.err) == (5, True)
    assert init(capsys, second, "--beside", first).code == 0
    before = contents(Path(second))
    refused = init(capsys, second, "--beside", other, "--force")
    assert (refused.code, f"{second} has another authority than {other}" in refused.err) == (5, True)
    assert contents(Path(second)) == before


def test_a_removed_certificate_is_renewed_by_the_same_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    done = init(capsys, str(folder), "--host", "edge-1.example", "--device", "pump-1")
    assert done.code == 0, done.err
    old = contents(folder)
    for name in ("broker.pem", "broker.key"):
        (folder / "tls" / name).unlink()
    # The printed command keeps the names in the certificate, and adds no user.
    (command,) = re.findall(r"run `headwater init (.*)`, send SIGHUP", done.err)
    assert shlex.split(command) == [str(folder), "--force", "--host", "edge-1.example"]
    renewed = init(capsys, *shlex.split(command))
    assert (renewed.code, "send it SIGHUP" in renewed.err) == (0, True), renewed.err
    new = contents(folder)
    assert {name for name in old if new[name] != old[name]} == {"tls/broker.pem", "tls/broker.key"}
    cert, ca = (x509.load_pem_x509_certificate(new[f"tls/{name}"]) for name in ("broker.pem", "ca.pem"))
    cert.verify_directly_issued_by(ca)
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["edge-1.example", "localhost"]


@pytest.mark.parametrize(
    ("removed", "says"),
    [
        (["broker.pem"], "only one of"),
        (["broker.pem", "broker.key", "ca.key"], "a certificate needs"),
        (["ca.pem"], "put it back, or remove"),
    ],
)
def test_a_key_is_never_replaced_behind_the_back_of_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], removed: list[str], says: str
) -> None:
    folder = tmp_path / "fleet"
    assert init(capsys, str(folder)).code == 0
    for name in removed:
        (folder / "tls" / name).unlink()
    before = contents(folder)
    refused = init(capsys, str(folder), "--force")
    assert refused.code == 5
    assert says in refused.err
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--device", "a/b"], 5, "`a/b` cannot be the name of a device"),
        (["--device", "pipeline"], 5, "`pipeline` cannot be the name of a device"),
        (["--port", "ws=1"], 2, "write NAME=PORT with mqtt, mqtts, flight, admin"),
        (["--port", "mqtt=99999"], 2, "write NAME=PORT"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    refused = init(capsys, str(tmp_path / "x"), *arguments)
    assert (refused.code, says in refused.err) == (code, True), refused.err
    assert not (tmp_path / "x").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("mine")
    assert init(capsys, str(tmp_path / "x")).code == 5
    refused = init(capsys, str(tmp_path / "x"), "--force")
    assert (refused.code, "cannot write" in refused.err) == (5, True), refused.err
    assert (tmp_path / "x").read_text() == "mine"
