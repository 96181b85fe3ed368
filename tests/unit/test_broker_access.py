"""How brokers are reached: settings, environment and job options become one `BrokerAccess` per broker."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from broker_edge.access import BrokerAccess, accesses
from broker_edge.client import Client
from broker_edge.credentials import Credentials
from broker_edge.errors import ConfigError, OptionError, SettingsError
from broker_edge.tls import TlsReferences
from pipelines.settings import Settings, load_settings
from pipelines.settings.job_options import add_broker_options, with_brokers
from sources.option_values import servers_value

VARIABLES = ("USER", "PASSWORD_FROM", "TOKEN_FROM", "TLS_CA", "TLS_CERT", "TLS_KEY")


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"HEADWATER_{name}", raising=False)


def settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "pipelines.yaml"
    path.write_text(text)
    return load_settings(path)


def given(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_broker_options(parser)
    return parser.parse_args(arguments)


def test_a_broker_says_what_differs_and_access_says_the_rest(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """
access: {user: pipeline, password: "file:/run/pw", tls: {ca: "file:/run/ca.pem"}}
brokers:
  - {server: "grpc+tls://north:8815", name: north}
  - {server: "grpc+tls://south:8815", token: "env:SOUTH", tls: {ca: "secret:fleet/south-ca"}}
  - {server: "grpc://east:8815"}
""",
    ).fleet()
    assert [broker.name for broker in found] == ["north", None, None]
    assert found[0].credentials == Credentials(user="pipeline", password="file:/run/pw")
    assert found[0].tls == TlsReferences(ca="file:/run/ca.pem")
    assert found[1].credentials == Credentials(token="env:SOUTH")
    assert found[1].tls == TlsReferences(ca="secret:fleet/south-ca")
    assert (found[2].credentials.user, found[2].tls.is_given) == ("pipeline", False)


def test_the_environment_says_what_the_settings_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_USER", "ann")
    monkeypatch.setenv("HEADWATER_PASSWORD_FROM", "env:PW")
    monkeypatch.setenv("HEADWATER_TLS_CA", "/etc/ca.pem")
    monkeypatch.setenv("HEADWATER_TLS_CERT", "env:CERT")
    monkeypatch.setenv("HEADWATER_TLS_KEY", "secret:a/b")
    (one, plain) = Settings().with_servers(["grpc+tls://a:1", "grpc://b:1"]).fleet()
    assert one.credentials == Credentials(user="ann", password="env:PW")
    assert one.tls == TlsReferences(ca="file:/etc/ca.pem", cert="env:CERT", key="secret:a/b")
    assert (plain.credentials.user, plain.tls.is_given) == ("ann", False)
    assert accesses(["grpc+tls://a:1", one]) == (one, one)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("access: {user: a, password: hunter2}", "write file:PATH, env:NAME or secret:SCOPE/KEY, never the secret"),
        ("access: {user: a}", "a user and a password belong together"),
        ('access: {tls: {cert: "file:c"}}', "a certificate and its key belong together"),
        ('brokers: [{server: "grpc+tls://a", token: hunter2}]', "never the secret itself"),
        ("access:\n  user: a\n  password: hunter2: x\n", ":3:20 is not YAML: mapping values are not allowed here"),
        ("access:\n  password: *hunter2\n", ":2:13 is not YAML: found undefined alias"),
        ("access:\n  password: !hunter2 x\n", ":2:13 is not YAML: could not determine a constructor for the tag"),
        ("access:\n  password: !hunter2!a x\n", ":2:13 is not YAML: found undefined tag handle"),
        ("brokers: [{server: a}, {server: a}]", "brokers: grpc://a:8815 is there twice"),
        ('brokers: [{server: "GRPC://A:1/"}, {server: "grpc://a:1"}]', "brokers: grpc://a:1 is there twice"),
        ("brokers: [{server: a, name: x}, {server: b, name: x}]", "brokers: x is there twice"),
        ("servers: [a]\nbrokers: [{server: b}]", "give either servers or brokers"),
    ],
)
def test_settings_that_are_wrong_are_one_sentence_without_the_secret(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(tmp_path, text)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_certificates_need_a_server_with_tls(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="grpc://a:1 does not use TLS: write grpc\\+tls://"):
        settings(tmp_path, 'brokers: [{server: "grpc://a:1", tls: {ca: "file:x"}}]').fleet()
    with pytest.raises(SettingsError, match="`http://a` is not a server address"):
        Settings().with_servers(["http://a"]).fleet()
    with pytest.raises(ConfigError, match="is not a server address"):
        BrokerAccess("grpc://a:99999")


def test_an_address_with_a_password_is_refused_without_repeating_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="brokers: a server address has a user or a password in it") as refused:
        settings(tmp_path, 'brokers: [{server: "grpc://a:hunter2@h:1"}]').fleet()
    assert "hunter2" not in str(refused.value)
    with pytest.raises(OptionError, match="option servers has a user or a password in it") as option:
        servers_value("grpc://h:1,grpc://a:hunter2@h:1")
    assert "hunter2" not in str(option.value)


def test_a_broker_may_have_a_named_log(tmp_path: Path) -> None:
    file = settings(tmp_path, 'brokers: [{server: "grpc://a:1", log_id: l1}, {server: "grpc://b:1"}]')
    assert [broker.log_id for broker in with_brokers(file, given("--token-from", "env:T")).fleet()] == ["l1", None]
    with pytest.raises(SettingsError, match="brokers: l1 is there twice"):
        settings(tmp_path, 'brokers: [{server: "grpc://a:1", log_id: l1}, {server: "grpc://b:1", log_id: l1}]')


def test_options_of_a_job_hold_for_every_broker(tmp_path: Path) -> None:
    file = settings(
        tmp_path,
        'brokers: [{server: "grpc+tls://a:1", name: a, user: x, password: "env:X"}, {server: "grpc+tls://b:1"}]',
    )
    chosen = with_brokers(file, given("--token-from", "env:T", "--tls-ca", "ca.pem"))
    assert [broker.credentials for broker in chosen.fleet()] == [Credentials(token="env:T")] * 2
    assert [broker.tls for broker in chosen.fleet()] == [TlsReferences(ca="file:ca.pem")] * 2
    assert with_brokers(file, given()) == file


def test_servers_of_the_command_line_keep_what_the_file_says_about_them(tmp_path: Path) -> None:
    file = settings(tmp_path, 'brokers: [{server: "grpc://a:1", name: a, user: x, password: "env:X"}]')
    chosen = with_brokers(file, given("--server", "grpc://b:1", "--server", "grpc://a:1"))
    assert [(one.server, one.name, one.credentials.user) for one in chosen.fleet()] == [
        ("grpc://b:1", None, None),
        ("grpc://a:1", "a", "x"),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--user", "a"), "a user and a password belong together"),
        (("--user", "a", "--password-from", "hunter2"), "write file:PATH, env:NAME or secret:SCOPE/KEY"),
        (("--tls-cert", "c.pem"), "a certificate and its key belong together"),
    ],
)
def test_options_that_are_wrong_are_one_sentence_without_the_secret(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        with_brokers(Settings(), given(*arguments))
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_scheme_in_capitals_is_tls_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_TLS_CA", "/run/ca.pem")
    (of_environment,) = accesses(["GRPC+TLS://edge-7:8815"])
    (of_settings,) = settings(tmp_path, 'servers: ["GRPC+TLS://edge-7:8815"]').fleet()
    assert of_environment.tls == of_settings.tls == TlsReferences(ca="file:/run/ca.pem")
    monkeypatch.setattr("broker_edge.client.FlightClient", lambda server, **given: given["tls"])
    assert Client("GRPC+TLS://edge-7:8815")._flight == TlsReferences(ca="file:/run/ca.pem")
    assert servers_value("GRPC+TLS://edge-7:8815") == ("grpc+tls://edge-7:8815",)
