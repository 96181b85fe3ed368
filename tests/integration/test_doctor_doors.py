"""What `headwater doctor --security` finds at single listeners: of real brokers, and of servers that are none."""

from __future__ import annotations

import socket
import ssl
import threading
import warnings
from pathlib import Path

import pytest
from support.doors import port_of, serving, with_tls
from support.ports import free_port
from support.programs import StartBroker
from support.tls_files import new_authority, openssl, sign

from broker_edge import Credentials
from broker_edge.security import Door, neighbours, operated, outside
from broker_edge.security.handshake import handshakes
from broker_edge.tls import TlsReferences

NOT_HTTP = b"220 mail\r\n"


def test_a_certificate_for_another_name_is_found_where_the_name_is_known(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker", names="DNS:edge.example")
    broker = start_broker(settings=with_tls(files, "mqtts", "flight", "admin"))
    door = Door("mqtts", "127.0.0.1", broker.listener("mqtts")[1], has_tls=True, is_beyond=False, is_named=True)
    tls = TlsReferences(ca=f"file:{files.ca}")
    assert [one.found for one in outside([door], tls) if one.name == "chain"] == ["the certificate is for another name"]
    unnamed = Door("mqtts", "127.0.0.1", door.port, has_tls=True, is_beyond=False, is_named=False)
    assert [one.state for one in outside([unnamed], tls) if one.name == "chain"] == ["ok"]
    assert [one.state for one in outside([unnamed]) if one.name == "chain"] == ["warn"]


def test_a_listener_that_wants_certificates_says_so(start_broker: StartBroker, tmp_path: Path) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker", days=60)
    names = ("mqtts", "wss", "flight", "admin")
    settings = with_tls(files, *names)
    for name in names:
        settings[f"listeners.{name}.tls.client_ca"] = str(files.ca)
        settings[f"listeners.{name}.tls.client_auth"] = "required"
    broker = start_broker(settings=settings)
    doors = [Door(name, "localhost", port_of(broker, name), has_tls=True, is_beyond=True) for name in names]
    found = outside(doors, TlsReferences(ca=f"file:{files.ca}"))
    assert [one for one in found if one.state != "ok"] == []
    assert [one.found for one in found if one.name == "client certificates"] == ["clients need a certificate"] * 4
    assert len([one for one in found if one.name == "stranger"]) == 4


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
    broker = start_broker(settings=with_tls(files, "mqtts", "flight"))
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


def test_something_else_than_the_listener_is_a_warning() -> None:
    with serving(lambda link: link.sendall(NOT_HTTP)) as port:
        for name in ("mqtt", "ws", "flight", "admin"):
            door = Door(name, "127.0.0.1", port, has_tls=False, is_beyond=True)
            assert [(one.state, one.name) for one in outside([door], timeout_s=1.0)] == [("warn", "listener")], name
        for name in ("mqtts", "wss", "flight", "admin"):
            door = Door(name, "127.0.0.1", port, has_tls=True, is_beyond=True)
            assert [(one.state, one.name) for one in outside([door], timeout_s=1.0)] == [("warn", "listener")], name


def test_a_server_behind_tls_that_is_no_broker_has_not_refused_a_stranger(tmp_path: Path) -> None:
    files = sign(new_authority(tmp_path, "ca"), "broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)

    def answer(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as tls:
            tls.recv(1024)
            tls.sendall(NOT_HTTP)

    with serving(answer) as port:
        door = Door("mqtts", "127.0.0.1", port, has_tls=True, is_beyond=True)
        assert [(one.state, one.name) for one in outside([door], timeout_s=1.0)] == [("warn", "listener")]


def test_settings_without_tls_are_found_before_the_broker_runs() -> None:
    door = Door("mqtt", "127.0.0.1", 1, has_tls=False, is_beyond=True, is_named=False)
    assert [(one.state, one.name) for one in outside([door])] == [("fail", "plain text"), ("warn", "listener")]
    # Of an address that somebody gave, nothing is known.
    named = Door("mqtt", "127.0.0.1", 1, has_tls=False, is_beyond=True, is_named=True)
    assert [(one.state, one.name) for one in outside([named])] == [("warn", "listener")]


def test_a_health_probe_that_is_refused_is_a_warning() -> None:
    def answer(link: socket.socket) -> None:
        link.recv(4096)
        link.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with serving(answer) as port:
        door = Door("admin", "127.0.0.1", port, has_tls=False, is_beyond=False)
        found = outside([door], timeout_s=5.0)
    assert [(one.name, one.found) for one in found if one.state != "ok"] == [("health", "/healthz answers 403")]


def test_an_http_server_that_is_no_broker_has_not_refused_a_stranger() -> None:
    def answer(link: socket.socket) -> None:
        link.recv(4096)
        link.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with serving(answer) as port:
        door = Door("admin", "127.0.0.1", port, has_tls=False, is_beyond=False)
        found = outside([door], timeout_s=5.0)
    assert ("warn", "listener") in [(one.state, one.name) for one in found]
    assert not [one for one in found if one.name == "stranger"]


def test_a_server_that_is_gone_has_not_refused_an_old_version(tmp_path: Path) -> None:
    """It answers the first two handshakes, and no connection after them."""
    files = sign(new_authority(tmp_path, "ca"), "broker", days=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = Door("admin", "localhost", listener.getsockname()[1], has_tls=True, is_beyond=True)

        def serve() -> None:
            for number in range(2):
                link, _ = listener.accept()
                if number == 1:
                    listener.close()
                with link, context.wrap_socket(link, server_side=True) as tls:
                    tls.recv(1024)

        thread = threading.Thread(target=serve)
        thread.start()
        found = {one.name: one.state for one in handshakes(door, TlsReferences(ca=f"file:{files.ca}"), timeout_s=5.0)}
        thread.join()
    assert (found["chain"], found["TLS 1.0"], found["TLS 1.1"]) == ("ok", "warn", "warn")


def test_a_listener_behind_a_proxy_is_not_taken_for_checked() -> None:
    door = Door("mqtts", "127.0.0.1", 1, has_tls=True, is_beyond=True, needs_proxy=True)
    assert [(one.state, one.name) for one in outside([door])] == [("warn", "listener")]


def test_a_short_key_is_found(tmp_path: Path) -> None:
    key, cert = tmp_path / "short.key", tmp_path / "short.pem"
    openssl("genrsa", "-out", key, "1024")
    openssl("req", "-x509", "-new", "-key", key, "-out", cert, "-subj", "/CN=localhost", "-days", "60")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_cert_chain(cert, key)

    def answer(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as tls:
            tls.recv(1024)

    with serving(answer) as port:
        door = Door("admin", "localhost", port, has_tls=True, is_beyond=True)
        found = list(handshakes(door, TlsReferences(), timeout_s=5.0))
    assert "an RSA key of 1024 bits can be broken" in [one.found for one in found if one.state == "fail"]
