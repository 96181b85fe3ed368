"""A client's credentials. Secrets are given by reference and read when they are needed: `file:PATH`, `env:NAME`, or on
Databricks `secret:SCOPE/KEY`.

A literal password or token is refused: it would appear in process lists, notebooks, job definitions and logs. A file is
read for each use, so that a token that is renewed by another program takes effect.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from broker_edge.errors import ConfigError

# Default variables, if the program gives no credentials.
USER_VARIABLE = "HEADWATER_USER"
PASSWORD_VARIABLE = "HEADWATER_PASSWORD_FROM"
TOKEN_VARIABLE = "HEADWATER_TOKEN_FROM"

REFERENCE = re.compile(r"(file|env|secret):.+", re.DOTALL)
"""The form of every reference."""

_SECRET_BYTES_MAX = 64 * 1024


def resolve(reference: str, *, what: str) -> str:
    """The first line of the referenced secret. Raises ConfigError, which never repeats it."""
    try:
        secret = resolve_bytes(reference, what=what).decode().split("\n", 1)[0].rstrip("\r")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}: {reference} is not text") from error
    if not secret:
        raise ConfigError(f"{what}: {reference} is empty or missing")
    return secret


def resolve_bytes(reference: str, *, what: str) -> bytes:
    """The whole content of `file:PATH`, `env:NAME` or `secret:SCOPE/KEY`. Raises ConfigError for anything else."""
    kind, _, place = reference.partition(":")
    if kind == "file" and place:
        try:
            with Path(place).open("rb") as file:
                return file.read(_SECRET_BYTES_MAX)
        except OSError as error:
            raise ConfigError(
                f"{what}: cannot read {place} ({error.strerror}): check the path and its permissions"
            ) from error
    if kind == "env" and place:
        return os.environ.get(place, "").encode()
    if kind == "secret" and place:
        return _from_secret_scope(place, what)
    raise ConfigError(f"{what} is given by reference: write file:PATH or env:NAME, never the secret itself")


def _from_secret_scope(place: str, what: str) -> bytes:
    scope, _, key = place.partition("/")
    if not scope or not key:
        raise ConfigError(f"{what}: a secret of Databricks is named secret:SCOPE/KEY, not secret:{place}")
    try:
        # The module only exists on the platform.
        from databricks.sdk.runtime import dbutils
    except ImportError as error:
        raise ConfigError(
            f"{what}: secret:{place} can be read on Databricks only; here use file:PATH or env:NAME"
        ) from error
    try:
        return str(dbutils.secrets.get(scope, key)).encode()
    except Exception as error:
        # The platform's exceptions cannot be imported elsewhere, and their text may be long; the class name helps.
        raise ConfigError(f"{what}: secret:{place} cannot be read ({type(error).__name__})") from error


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with the reference of a password, or the reference of a token (JWT); neither means anonymous."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and self.password is not None:
            raise ConfigError("give a password or a token, not both")
        if (self.user is None) != (self.password is None) and self.token is None:
            raise ConfigError("a user and a password belong together: give both, or a token")
        if self.user is not None and ":" in self.user:
            raise ConfigError("a user name must not contain a colon")

    @classmethod
    def from_environment(cls) -> Credentials:
        """From HEADWATER_USER, HEADWATER_PASSWORD_FROM and HEADWATER_TOKEN_FROM; the last two hold references."""
        get = os.environ.get
        return cls(user=get(USER_VARIABLE), password=get(PASSWORD_VARIABLE), token=get(TOKEN_VARIABLE))

    @property
    def is_anonymous(self) -> bool:
        return self.password is None and self.token is None

    def header(self) -> bytes | None:
        """The value of `Authorization`, with the current secret; None for anonymous."""
        if self.token is not None:
            return b"Bearer " + resolve(self.token, what="the token").encode()
        if self.password is None:
            return None
        secret = resolve(self.password, what="the password")
        return b"Basic " + base64.b64encode(f"{self.user}:{secret}".encode())

    def mqtt(self) -> tuple[str | None, str | None]:
        """User name and password for a CONNECT. A token is sent as the password."""
        if self.token is not None:
            return self.user or "token", resolve(self.token, what="the token")
        if self.password is None:
            return None, None
        return self.user, resolve(self.password, what="the password")
