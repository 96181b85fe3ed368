"""`headwaterd ready`: the probe of images that have no other program."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from support.programs import StartBroker, headwaterd
from support.tls_files import new_authority, sign

from broker_edge.admin import Admin
from broker_edge.torture.process import BrokerProcess

WAIT_S = 60


def ready(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([headwaterd(), "ready", *words], capture_output=True, text=True, timeout=WAIT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def at(port: int) -> tuple[str, str]:
    return "--set", f"listeners.admin.bind=127.0.0.1:{port}"


def test_it_follows_the_broker(broker: BrokerProcess) -> None:
    host, port = broker.admin
    assert ready(*at(port)) == (0, "ready\n", "")
    # A broker that listens everywhere is asked on loopback.
    assert ready("--set", f"listeners.admin.bind=0.0.0.0:{port}", "--set", "auth.allow_anonymous=true")[0] == 0
    admin = Admin(f"http://{host}:{port}")
    admin.ask("PUT", "/api/v1/drain")
    code, out, err = ready(*at(port))
    assert (code, out) == (1, "")
    assert "not ready" in err
    assert '"draining":true' in err
    admin.ask("DELETE", "/api/v1/drain")
    assert ready(*at(port))[0] == 0
    broker.stop()
    code, _, err = ready(*at(port))
    assert (code, err.count("\n")) == (1, 1)
    assert f"no answer from 127.0.0.1:{port}" in err


def test_it_reads_the_address_where_the_broker_reads_it(broker: BrokerProcess, tmp_path: Path) -> None:
    settings = tmp_path / "broker.yaml"
    settings.write_text(f"listeners:\n  admin:\n    bind: 127.0.0.1:{broker.admin[1]}\n")
    assert ready("--config", str(settings))[0] == 0


def test_a_listener_with_tls_is_asked_over_tls_whatever_its_certificate(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    files = sign(new_authority(tmp_path, "authority"), "expired", days=-1)
    tls = {"listeners.admin.tls.cert": str(files.cert), "listeners.admin.tls.key": str(files.key)}
    broker = start_broker("tls", tls)
    words = [word for key, value in tls.items() for word in ("--set", f"{key}={value}")]
    assert ready(*at(broker.admin[1]), *words) == (0, "ready\n", "")


def test_who_does_not_answer_in_time_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, _, err = ready(*at(silent.getsockname()[1]), "--timeout", "0.2")
    assert code == 1
    assert "no answer" in err


def test_who_is_no_broker_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = subprocess.Popen(
            [headwaterd(), "ready", *at(other.getsockname()[1])], stderr=subprocess.PIPE, text=True
        )
        connection, _ = other.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"220 mail.example ESMTP\r\n")
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "is no broker: it answers `220 mail.example ESMTP`" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--set", "listeners.admin.bind=127.0.0.1:0"], 5, "port 0"),
        (["--set", "listeners.admin.bnd=127.0.0.1:1"], 5, "listeners.admin.bind"),
        (["--config", "no/such/file"], 1, "no/such/file"),
        (["--timeout", "-1"], 2, "--timeout"),
        (["--confg", "x"], 2, "unknown argument `--confg`"),
        (["--set"], 2, "needs a value"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], code: int, says: str) -> None:
    found, out, err = ready(*words)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert says in err


def test_client_certificates_are_beyond_it(tmp_path: Path) -> None:
    ca = new_authority(tmp_path, "authority")
    files = sign(ca, "broker")
    keys = {"cert": files.cert, "key": files.key, "client_ca": ca, "client_auth": "required"}
    words = [word for key, value in keys.items() for word in ("--set", f"listeners.admin.tls.{key}={value}")]
    code, _, err = ready(*at(8080), *words)
    assert code == 5
    assert "with a certificate of a client" in err


def test_it_has_a_help() -> None:
    code, out, _ = ready("--help")
    assert code == 0
    assert out.startswith("usage: headwaterd ready")
