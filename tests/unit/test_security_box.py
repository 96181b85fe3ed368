"""What `headwater doctor --security` says about settings and files: each check finds its fault, and is silent without.

The folder of the fixture has no fault; each case changes one thing in it.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from broker_edge.authority import KeyPair, new_authority, new_certificate
from broker_edge.native import native
from broker_edge.security import Check, box, worst

_ARGON2ID = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"
_GENERATED = f"$6${base64.b64encode(b's' * 16).decode()}$aGFzaA=="
_ACL = "user root\noperator\ntopic readwrite #\n\nuser jobs\ntopic replay #\n"
_KEYS = {"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": "A"}]}
_NOW = datetime.now(UTC)


@dataclass
class Folder:
    """A broker without faults. `set` holds the settings that differ from the defaults."""

    path: Path
    set: dict[str, str]
    ca: KeyPair

    def write(self, name: str, text: str | bytes, mode: int = 0o600) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return path

    def crl(self, days: float) -> None:
        builder = x509.CertificateRevocationListBuilder().issuer_name(
            x509.load_pem_x509_certificate(self.ca.cert).subject
        )
        begin = _NOW - timedelta(days=30)
        key = serialization.load_pem_private_key(self.ca.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        made = builder.last_update(begin).next_update(_NOW + timedelta(days=days)).sign(key, hashes.SHA256())
        self.write("crl.pem", made.public_bytes(serialization.Encoding.PEM))

    def certificate(self, days: int) -> None:
        began = _NOW - timedelta(days=100)
        pair = new_certificate(self.ca, "broker", hosts=["localhost"], days=days + 100, now=began)
        self.write("cert.pem", pair.cert)
        self.write("broker.key", pair.key)

    def checks(self) -> list[Check]:
        overrides = [f"{key}={value}" for key, value in self.set.items()]
        return box(json.loads(native().check_config(overrides=overrides)), self.path)

    def bad(self) -> list[tuple[str, str, str]]:
        """State, name and what was found, of the checks that are not fine."""
        return [(c.state, c.name, f"{c.where}: {c.found}") for c in self.checks() if c.state != "ok"]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    tmp_path.chmod(0o700)
    made = Folder(tmp_path, {}, new_authority("ca"))
    made.write("users", f"# people\nroot:{_ARGON2ID}\njobs:{_GENERATED}\n")
    made.write("acl", _ACL, 0o644)
    made.write("ca.pem", made.ca.cert, 0o644)
    made.write("keys.json", json.dumps(_KEYS), 0o644)
    made.certificate(90)
    made.crl(10)
    (tmp_path / "data").mkdir(mode=0o700)
    made.set = {
        "data_dir": str(tmp_path / "data"),
        "auth.password_file": str(tmp_path / "users"),
        "auth.acl_file": str(tmp_path / "acl"),
        "listeners.mqtts.bind": "0.0.0.0:8883",
        "listeners.mqtts.tls.cert": str(tmp_path / "cert.pem"),
        "listeners.mqtts.tls.key": str(tmp_path / "broker.key"),
        "listeners.mqtts.tls.client_ca": str(tmp_path / "ca.pem"),
        "listeners.mqtts.tls.client_auth": "optional",
        "listeners.mqtts.tls.crl": str(tmp_path / "crl.pem"),
        "broker.max_connections_per_ip": "100",
        "mqtt.max_messages_per_second": "100",
    }
    return made


def test_a_folder_without_faults_has_none(folder: Folder) -> None:
    """The control of all cases below."""
    assert folder.bad() == []
    assert worst(folder.checks()) == "ok"
    assert {check.remedy for check in folder.checks()} == {""}
    names = {check.name for check in folder.checks()}
    assert names >= {"file modes", "passwords", "rights", "anonymous clients", "certificate", "revocation", "limits"}


def _with(**settings: str) -> Callable[[Folder], None]:
    return lambda folder: folder.set.update({key.replace("__", "."): value for key, value in settings.items()})


def _file(name: str, text: str) -> Callable[[Folder], object]:
    return lambda folder: folder.write(name, text)


def _mode(name: str, mode: int) -> Callable[[Folder], None]:
    return lambda folder: (folder.path / name).chmod(mode)


def _tokens(keys: object, *known: str) -> Callable[[Folder], None]:
    def change(folder: Folder) -> None:
        folder.write("keys.json", keys if isinstance(keys, str) else json.dumps(keys), 0o644)
        folder.set["auth.token.keys_file"] = str(folder.path / "keys.json")
        folder.set |= {f"auth.token.{key}": "example" for key in known}

    return change


CASES: list[tuple[str, Callable[[Folder], object], str, str, str]] = [
    ("data", _mode("data", 0o750), "fail", "file modes", "mode 750: other users of this machine may read records"),
    ("users", _mode("users", 0o644), "fail", "file modes", "users: mode 644: other users of this machine may use it"),
    ("key", _mode("broker.key", 0o604), "fail", "file modes", "listeners.mqtts.tls.key"),
    ("acl", _mode("acl", 0o664), "fail", "file modes", "may give themselves rights"),
    ("authority", _mode("ca.pem", 0o646), "fail", "file modes", "listeners.mqtts.tls.client_ca"),
    ("key beside", lambda f: f.write("tls/ca.key", "", 0o644), "fail", "file modes", "beside the settings"),
    ("password beside", lambda f: f.write("secrets/a.password", "", 0o644), "fail", "file modes", "a.password"),
    ("folder", lambda f: f.path.chmod(0o777), "fail", "file modes", "everybody on this machine may replace the files"),
    ("no data", lambda f: (f.path / "data").rmdir(), "warn", "file modes", "not looked at (No such file"),
    ("no key", lambda f: (f.path / "broker.key").unlink(), "warn", "file modes", "not looked at (No such file"),
    ("$7$", _file("users", "root:$7$101$c2FsdA==$aGFzaA==\njobs:x"), "fail", "passwords", "PBKDF2 ($7$) with less"),
    ("$6$", _file("users", "root:$6$c2FsdHNhbHRzYWx0$aGFzaA==\njobs:x"), "fail", "passwords", "SHA-512 ($6$)"),
    ("argon2id", _file("users", "root:$argon2id$v=19$m=4096,t=1,p=1$a$b\njobs:x"), "fail", "passwords", "argon2id"),
    ("no acl", lambda f: f.set.pop("auth.acl_file"), "fail", "rights", "may read and write every topic"),
    ("anonymous", _with(auth__allow_anonymous="true"), "fail", "anonymous clients", "without credentials are let in"),
    ("metrics", _with(auth__open_metrics="true"), "warn", "metrics", "/metrics needs no credentials"),
    ("client ids", _with(auth__client_ids="any"), "warn", "client ids", "every client id is believed"),
    (
        "wide",
        _file("acl", _ACL + "topic #\n"),
        "warn",
        "rights",
        "line 7: `jobs` is no operator and may readwrite every",
    ),
    ("write", _file("acl", _ACL + "topic\twrite\t#\n"), "warn", "rights", "`jobs` is no operator and may write every"),
    (
        "every device",
        _file("acl", _ACL + "client-id *\npattern write devices/%c/telemetry\n"),
        "warn",
        "rights",
        "line 7: `jobs` may act as every device",
    ),
    ("pattern", _file("acl", _ACL + "pattern read #\n"), "fail", "rights", "every user may read every topic"),
    (
        "strangers write",
        _file("acl", "topic write a\n" + _ACL),
        "fail",
        "rights",
        "line 1: clients without credentials",
    ),
    ("strangers read", _file("acl", "topic read #\n" + _ACL), "fail", "rights", "credentials may read `#`"),
    ("strangers $SYS", _file("acl", "topic read $SYS/#\n" + _ACL), "fail", "rights", "may read `$SYS/#`"),
    ("nobody's", _file("acl", _ACL + "user eve\ntopic read a\n"), "warn", "rights", "line 7: there is no user `eve`"),
    ("operator", _with(auth__operators="[eve]"), "warn", "rights", "whoever gets this name is an operator"),
    ("silent", _file("acl", "user root\noperator\n"), "warn", "rights", "no line gives a right to `jobs`"),
    (
        "no operator",
        _file("acl", _ACL.replace("operator\ntopic readwrite #", "topic read #")),
        "warn",
        "operators",
        "nobody may administer",
    ),
    ("issuer", _tokens(_KEYS, "audience"), "warn", "tokens", "`iss` is not checked"),
    ("audience", _tokens(_KEYS, "issuer"), "warn", "tokens", "`aud` is not checked"),
    ("kid", _tokens({"keys": [{"kty": "OKP"}]}, "issuer", "audience"), "warn", "tokens", "key 1 has no `kid`"),
    ("PEM", _tokens("-----BEGIN PUBLIC KEY-----", "issuer", "audience"), "warn", "tokens", "PEM keys have no id"),
    ("no JWKS", _tokens('{"keys": 7}', "issuer", "audience"), "fail", "tokens", "neither a JWKS nor PEM"),
    ("ended", lambda f: f.certificate(-1), "fail", "certificate", "it ended on"),
    ("soon", lambda f: f.certificate(10), "warn", "certificate", "it ends on"),
    ("early", lambda f: f.certificate(200) or _early(f), "fail", "certificate", "it begins on"),
    ("no certificate", _file("cert.pem", "x"), "fail", "certificate", "it has no certificate"),
    ("no crl", lambda f: f.set.pop("listeners.mqtts.tls.crl"), "warn", "revocation", "a stolen certificate"),
    ("old crl", lambda f: f.crl(-1), "fail", "revocation", "the list ended on"),
    ("crl soon", lambda f: f.crl(1), "warn", "revocation", "the list ends on"),
    ("empty crl", _file("crl.pem", ""), "fail", "revocation", "it has no revocation list"),
    ("per address", lambda f: f.set.pop("broker.max_connections_per_ip"), "warn", "limits", "max_connections_per_ip"),
    ("rate", lambda f: f.set.pop("mqtt.max_messages_per_second"), "warn", "limits", "mqtt.max_messages_per_second"),
    ("of flight", _with(listeners__flight__bind="0.0.0.0:8815"), "warn", "limits", "flight.max_connections_per_ip"),
    (
        "proxy",
        _with(listeners__mqtts__proxy_protocol="true"),
        "warn",
        "proxy header",
        "names the address of the client",
    ),
    ("age", _with(log__classes__control__retention__age="null"), "warn", "retention", "no record is ever deleted"),
]


def _early(folder: Folder) -> None:
    pair = new_certificate(folder.ca, "broker", hosts=["localhost"], now=_NOW + timedelta(days=5))
    folder.write("cert.pem", pair.cert)


@pytest.mark.parametrize(("change", "state", "name", "says"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_fault_is_found_alone_with_what_to_do(
    folder: Folder, change: Callable[[Folder], Any], state: str, name: str, says: str
) -> None:
    change(folder)
    assert [(s, n) for s, n, _ in folder.bad()] == [(state, name)], folder.bad()
    [check] = [check for check in folder.checks() if check.state != "ok"]
    assert says in f"{check.where}: {check.found}"
    assert check.remedy


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("auth.password_file", "passwords"),
        ("auth.acl_file", "rights"),
        ("auth.token.keys_file", "tokens"),
        ("listeners.mqtts.tls.cert", "certificate"),
        ("listeners.mqtts.tls.crl", "revocation"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_failure(folder: Folder, key: str, name: str) -> None:
    folder.set[key] = "/nowhere/file"
    assert ("fail", name) in {(state, name) for state, name, _ in folder.bad()}


def test_a_file_that_is_too_large_is_not_read(folder: Folder) -> None:
    with (folder.path / "acl").open("ab") as file:
        file.truncate((64 << 20) + 1)
    assert [found.rpartition(": ")[2] for _, name, found in folder.bad() if name == "rights"] == [
        "it is larger than 64 MiB"
    ]


def test_what_only_this_machine_reaches_is_a_warning(folder: Folder) -> None:
    folder.set |= {"listeners.mqtts.bind": "127.0.0.1:8883", "auth.allow_anonymous": "true"}
    del folder.set["auth.acl_file"], folder.set["broker.max_connections_per_ip"]
    assert {(state, name) for state, name, _ in folder.bad()} == {("warn", "anonymous clients"), ("warn", "rights")}


def test_users_of_tokens_and_certificates_are_not_taken_for_unknown(folder: Folder) -> None:
    folder.write("acl", _ACL + "user eve\ntopic read a\n")
    folder.set["auth.certificate.user"] = "common_name"
    assert folder.bad() == []


def test_a_gateway_with_named_client_ids_is_fine(folder: Folder) -> None:
    folder.write("acl", _ACL + "client-id north-*\npattern write devices/%c/telemetry\n")
    assert folder.bad() == []
    # Without a pattern for devices a client id gives nothing.
    folder.write("acl", _ACL + "client-id *\n")
    assert folder.bad() == []


def test_a_pattern_may_be_what_a_user_needs(folder: Folder) -> None:
    folder.write("acl", "user root\noperator\npattern write devices/%c/telemetry\n")
    assert folder.bad() == []


def test_no_check_repeats_a_stored_password(folder: Folder) -> None:
    folder.write("users", "root:$7$101$c2FsdA==$c2VjcmV0\njobs:$6$c2FsdHNhbHRzYWx0$c2VjcmV0\n")
    told = repr(folder.checks())
    assert "`root`" in told
    assert "`jobs`" in told
    assert "c2VjcmV0" not in told


def test_other_commands_do_not_load_the_library_for_certificates() -> None:
    program = "import sys, headwater_cli; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
