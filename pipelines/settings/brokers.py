"""The part of the settings that says which brokers there are and how they are reached. Secrets are references only."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from broker_edge.access import BrokerAccess
from broker_edge.credentials import REFERENCE, Credentials
from broker_edge.errors import ConfigError, SettingsError
from broker_edge.server_address import is_tls
from broker_edge.tls import TlsReferences
from pipelines.settings.yaml_file import Section


def referenced(value: str | None) -> str | None:
    """The rule of every setting that names a secret."""
    if value is not None and REFERENCE.fullmatch(value) is None:
        raise ValueError("write file:PATH, env:NAME or secret:SCOPE/KEY, never the secret itself")
    return value


class TlsSection(Section):
    """Certificates by reference; each names a PEM file."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    _references = field_validator("ca", "cert", "key")(referenced)


class AccessSection(Section):
    """Credentials of a user: a password or a token, and certificates for TLS."""

    user: str | None = None
    password: str | None = Field(default=None, repr=False)
    token: str | None = Field(default=None, repr=False)
    tls: TlsSection = TlsSection()

    _references = field_validator("password", "token")(referenced)

    @model_validator(mode="after")
    def _is_complete(self) -> AccessSection:
        try:
            self.credentials()
            self.certificates()
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def is_anonymous(self) -> bool:
        return self.user is None and self.password is None and self.token is None

    def credentials(self) -> Credentials:
        return Credentials(user=self.user, password=self.password, token=self.token)

    def certificates(self) -> TlsReferences:
        return TlsReferences(ca=self.tls.ca, cert=self.tls.cert, key=self.tls.key)


class BrokerSection(AccessSection):
    """One broker. What it does not say comes from `access`."""

    server: str
    name: str | None = None
    log_id: str | None = None
    """The log that it holds. Without this, the first log that it says and that belongs to no other entry is its own."""


def fleet_of(brokers: list[BrokerSection], access: AccessSection) -> tuple[BrokerAccess, ...]:
    """The brokers with complete access. Credentials that neither the broker nor `access` names come from the
    environment, and so do certificates. Raises SettingsError."""
    from_settings = access.credentials() if not access.is_anonymous else Credentials.from_environment()
    certificates = access.certificates() if access.certificates().is_given else TlsReferences.from_environment()
    found = []
    for broker in brokers:
        credentials = from_settings if broker.is_anonymous else broker.credentials()
        tls = broker.certificates() if broker.certificates().is_given else certificates
        is_default = not broker.certificates().is_given
        if is_default and not is_tls(broker.server):
            tls = TlsReferences()
        try:
            found.append(BrokerAccess(broker.server, credentials, tls, broker.name, broker.log_id))
        except ConfigError as error:
            raise SettingsError(f"brokers: {error}") from error
    return tuple(found)
