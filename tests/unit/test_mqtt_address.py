"""Addresses of MQTT listeners, and certificates that are made in memory."""

from __future__ import annotations

import pytest
from cryptography import x509

from broker_edge.authority import new_authority, new_certificate
from broker_edge.errors import ConfigError
from broker_edge.mqtt_address import MqttAddress, parse_mqtt
from broker_edge.tls import TlsReferences, ssl_context, tls_reason


@pytest.mark.parametrize(
    ("text", "means", "shown"),
    [
        ("edge", MqttAddress("edge"), "edge:1883"),
        ("10.0.0.1:99", MqttAddress("10.0.0.1", 99), "10.0.0.1:99"),
        ("mqtt://edge", MqttAddress("edge"), "edge:1883"),
        ("mqtts://edge", MqttAddress("edge", 8883, "mqtts"), "mqtts://edge:8883"),
        ("ws://edge", MqttAddress("edge", 8083, "ws"), "ws://edge:8083"),
        ("wss://[::1]:1/other", MqttAddress("::1", 1, "wss", "/other"), "wss://[::1]:1/other"),
        ("[::1]:5", MqttAddress("::1", 5), "[::1]:5"),
    ],
)
def test_an_address_has_a_scheme_and_the_port_of_it(text: str, means: MqttAddress, shown: str) -> None:
    assert parse_mqtt(text) == means
    assert str(means) == shown
    assert parse_mqtt(shown) == means


@pytest.mark.parametrize(
    "text",
    ["", ":1883", "edge:", "edge:0", "edge:x", "edge:65536", "http://edge", "mqtts://edge/mqtt", "ws://edge?a=1"],
)
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write HOST:PORT, for example 127.0.0.1:1883, or mqtts://HOST:PORT"):
        parse_mqtt(text)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_mqtt("mqtts://ann:hunter2@edge")
    assert "hunter2" not in str(refused.value)


def test_a_certificate_names_its_hosts_and_is_signed_by_its_authority() -> None:
    authority = new_authority("fleet")
    ca = x509.load_pem_x509_certificate(authority.cert)
    broker = x509.load_pem_x509_certificate(new_certificate(authority, "b", hosts=["edge", "10.0.0.1"]).cert)
    broker.verify_directly_issued_by(ca)
    names = broker.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["edge"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    with pytest.raises(ValueError, match=r"issuer|Issuer"):
        broker.verify_directly_issued_by(x509.load_pem_x509_certificate(new_authority("other").cert))
    assert b"PRIVATE" not in authority.cert
    assert "PRIVATE" not in repr(authority)


def test_a_context_takes_references_and_refuses_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = new_authority("fleet")
    one, other = new_certificate(authority, "a"), new_certificate(authority, "b")
    for name, value in (("CA", authority.cert), ("CERT", one.cert), ("KEY", one.key), ("WRONG", other.key)):
        monkeypatch.setenv(name, value.decode())
    context = ssl_context(TlsReferences(ca="env:CA", cert="env:CERT", key="env:KEY"))
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(ConfigError, match=r"tls.cert: env:CERT and tls.key: env:WRONG cannot be used together"):
        ssl_context(TlsReferences(ca="env:CA", cert="env:CERT", key="env:WRONG"))
    with pytest.raises(ConfigError, match=r"tls.ca: env:NOTHING contains no PEM block"):
        ssl_context(TlsReferences(ca="env:NOTHING"))
    with pytest.raises(ConfigError, match=r"tls.ca: env:KEY contains no certificate"):
        ssl_context(TlsReferences(ca="env:KEY"))
    with pytest.raises(ConfigError, match=r"tls.ca: cannot read /no/such/file"):
        ssl_context(TlsReferences(ca="file:/no/such/file"))


def test_an_error_about_something_else_has_no_reason_of_tls() -> None:
    assert tls_reason(ConnectionRefusedError("refused"), has_certificate=False) is None
    assert "another certificate" in (tls_reason("TLSV13_ALERT_CERTIFICATE_REQUIRED", has_certificate=True) or "")
