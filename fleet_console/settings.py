"""Settings of the console: reads `conf/console.yaml`, and only that file, into checked values.

The models hold the defaults. The file in the repository repeats and explains them, and a test checks that both agree.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from broker_edge.admin import Admin, parse_admin
from broker_edge.clear_text import is_loopback
from broker_edge.credentials import Credentials
from broker_edge.errors import ConfigError, SettingsError
from pipelines.settings.brokers import AccessSection, referenced
from pipelines.settings.yaml_file import Section, read_yaml
from sinks.store import StoreAccess
from sinks.tables import DEFAULT_TENANT

BROKERS_MAX = 200
"""Each has a thread and a stream of its own."""
ANYBODY = "*"
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ConsoleBroker(AccessSection):
    """One broker. What it does not say comes from `access`."""

    admin: str
    name: str | None = None

    @field_validator("admin")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        try:
            return parse_admin(value)
        except ConfigError as error:
            raise ValueError(str(error)) from error


class SignInSection(Section):
    """Who may look and act: what a broker says, or the users whom a proxy names."""

    broker: str | None = None
    header: str | None = None
    header_from: list[str] = Field(default=[])
    operators: list[str] = Field(default=[])
    viewers: list[str] = Field(default=[])

    @model_validator(mode="after")
    def _is_one_way(self) -> SignInSection:
        if self.header is None:
            if self.header_from or self.operators or self.viewers:
                raise ValueError("header_from, operators and viewers count with a header only: name it, or remove them")
            return self
        if self.broker is not None:
            raise ValueError("give broker or header, not both")
        if not _HEADER.fullmatch(self.header):
            raise ValueError("header is not the name of an HTTP header, such as X-Forwarded-User")
        if not self.header_from:
            raise ValueError(
                "with a header, header_from must list the addresses of the proxy, such as 10.0.0.0/8: "
                "anybody else could send the header too"
            )
        self.networks()
        return self

    def networks(self) -> tuple[Network, ...]:
        try:
            return tuple(ipaddress.ip_network(one) for one in self.header_from)
        except ValueError as error:
            raise ValueError(f"header_from: {error}; write an address, or a network such as 10.0.0.0/8") from error


class ServerTls(Section):
    """The certificate of the console, PEM by reference."""

    cert: str | None = None
    key: str | None = None

    _references = field_validator("cert", "key")(referenced)

    @model_validator(mode="after")
    def _is_whole(self) -> ServerTls:
        if (self.cert is None) != (self.key is None):
            raise ValueError("give cert and key, or neither")
        return self


class TablesSection(Section):
    """Where the tables are, and whose rows are shown."""

    root: str = "data/tables"
    silver_root: str | None = None
    bronze: str = "data/bronze/telemetry"
    tenant: str = DEFAULT_TENANT
    options: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _is_known(self) -> TablesSection:
        try:
            self.access()
        except ConfigError as error:
            raise ValueError(str(error).replace("storage.options", "options")) from error
        return self

    def access(self) -> StoreAccess:
        """What opens tables with these options. Secrets in it are still references."""
        return StoreAccess.of(self.options)


class ConsoleSettings(Section):
    """All settings of `headwater console`."""

    listen: str = "127.0.0.1:8090"
    hosts: list[str] = Field(default=[])
    tls: ServerTls = ServerTls()
    brokers: list[ConsoleBroker] = Field(default=[ConsoleBroker(admin="http://127.0.0.1:8080")], max_length=BROKERS_MAX)
    access: AccessSection = AccessSection()
    sign_in: SignInSection = SignInSection()
    tables: TablesSection = TablesSection()

    @model_validator(mode="after")
    def _is_safe(self) -> ConsoleSettings:
        host, _ = self.place()
        if not is_loopback(host) and self.sign_in.header is None and self.tls.cert is None:
            raise ValueError(
                f"listen {self.listen} can be reached from other machines: give tls.cert and tls.key, or listen on "
                "127.0.0.1 behind a proxy"
            )
        known = self.fleet()
        names = [one.name for one in known]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"brokers has {twice} twice: give each a name of its own")
        if self.sign_in.broker is not None and self.verifier() is None:
            raise ValueError(f"sign_in.broker: there is no {self.sign_in.broker} in brokers")
        if self.sign_in.header is None and not known:
            raise ValueError("brokers is empty, so nobody verifies names: add a broker, or sign_in.header")
        return self

    def place(self) -> tuple[str, int]:
        """Host and port to listen on; port 0 is a free one."""
        try:
            parts = urlsplit(f"//{self.listen}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or port is None or parts.path or parts.username is not None:
            raise ValueError("listen is not HOST:PORT, for example 127.0.0.1:8090 or [::1]:8090")
        return host, port

    def fleet(self, *, timeout_s: float = 10.0) -> tuple[ConsoleMember, ...]:
        return tuple(ConsoleMember(one.name or one.admin, self._reached(one, timeout_s)) for one in self.brokers)

    def verifier(self, *, timeout_s: float = 10.0) -> ConsoleMember | None:
        """The broker that verifies names; None if a proxy does."""
        if self.sign_in.header is not None:
            return None
        known = self.fleet(timeout_s=timeout_s)
        if self.sign_in.broker is None:
            return known[0] if known else None
        given = self.sign_in.broker
        return next((one for one in known if given in (one.name, one.admin.address)), None)

    def _reached(self, broker: ConsoleBroker, timeout_s: float) -> Admin:
        own = None if self.access.is_anonymous else self.access.credentials()
        credentials = own if broker.is_anonymous else broker.credentials()
        certificates = self.access.certificates() if self.access.certificates().is_given else None
        tls = broker.certificates() if broker.certificates().is_given else certificates
        return Admin(
            broker.admin, timeout_s=timeout_s, credentials=credentials or Credentials.from_environment(), tls=tls
        )


@dataclass(frozen=True, slots=True)
class ConsoleMember:
    """A broker by its name, or without one by its address."""

    name: str
    admin: Admin


def load_settings(path: Path | None) -> ConsoleSettings:
    """The settings of this file, or the defaults. Raises SettingsError."""
    return ConsoleSettings() if path is None else read_yaml(path, ConsoleSettings)


def checked(settings: ConsoleSettings, changes: dict[str, object]) -> ConsoleSettings:
    """The settings with these values of the command line. Raises SettingsError."""
    try:
        return ConsoleSettings.model_validate({**settings.model_dump(), **changes})
    except ValidationError as error:
        raise SettingsError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
