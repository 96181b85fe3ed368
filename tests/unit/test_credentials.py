"""Secrets are given by reference: what a reference resolves to, and what is refused without being repeated."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from broker_edge import ConfigError, Credentials
from broker_edge.credentials import resolve


def test_a_reference_is_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "pw"
    secret.write_text("s3cret word\nsecond line\n")
    monkeypatch.setenv("PW", "from the environment")
    assert resolve(f"file:{secret}", what="the password") == "s3cret word"
    assert resolve("env:PW", what="the password") == "from the environment"


@pytest.mark.parametrize("text", ["hunter2", "env:", "file:", "env:NOT_THERE", "file:/no/such/file", "http://x"])
def test_a_literal_or_missing_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(text, what="the password")
    assert "hunter2" not in str(refused.value)


def test_the_header_has_the_secret_of_now(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("one")
    credentials = Credentials(token=f"file:{secret}")
    assert credentials.header() == b"Bearer one"
    secret.write_text("two\n")
    assert credentials.header() == b"Bearer two"
    assert credentials.mqtt() == ("token", "two")


def test_user_and_password_are_a_pair_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "s3cret")
    credentials = Credentials(user="ann", password="env:PW")
    assert credentials.header() == b"Basic " + base64.b64encode(b"ann:s3cret")
    assert credentials.mqtt() == ("ann", "s3cret")
    assert "PW" not in repr(credentials)
    assert Credentials().header() is None
    assert Credentials().mqtt() == (None, None)
    for wrong in ({"user": "ann"}, {"password": "env:PW"}, {"user": "a:b", "password": "env:PW"}):
        with pytest.raises(ConfigError):
            Credentials(**wrong)
    with pytest.raises(ConfigError):
        Credentials(user="ann", password="env:PW", token="env:PW")


def test_the_environment_gives_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_USER", "ann")
    monkeypatch.setenv("HEADWATER_PASSWORD_FROM", "env:PW")
    monkeypatch.delenv("HEADWATER_TOKEN_FROM", raising=False)
    assert Credentials.from_environment() == Credentials(user="ann", password="env:PW")
