"""How one broker is reached: its Flight address, and the references of credentials and certificates.

A value that may be sent to other machines and written to logs: secrets are resolved where a connection is opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker_edge.credentials import Credentials
from broker_edge.errors import ConfigError
from broker_edge.log_owners import LogEntry
from broker_edge.server_address import is_tls, parse_server
from broker_edge.tls import TlsReferences

if TYPE_CHECKING:
    from broker_edge.client import Client


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """`server` is `grpc://host:port` or, with TLS, `grpc+tls://host:port`; the nodes of a cluster are one address,
    `grpc://host:port/host:port`. `name` is what people call the broker.
    With `log_id`, it counts as away for jobs while it says that it holds another log.

    Raises ConfigError for another address, and if `tls` is given for a server without TLS.
    """

    server: str
    credentials: Credentials = field(default_factory=Credentials)
    tls: TlsReferences = field(default_factory=TlsReferences)
    name: str | None = None
    log_id: str | None = None

    def __post_init__(self) -> None:
        address = parse_server(self.server)
        if self.tls.is_given and not is_tls(address):
            raise ConfigError(f"{self.server} does not use TLS: write grpc+tls://…, or omit the certificates")

    @property
    def entry(self) -> LogEntry:
        """What decides which log this broker may hold."""
        return LogEntry(parse_server(self.server), self.name, self.log_id)

    def client(self, *, timeout_s: float = 30.0, retries: int = 4) -> Client:
        """A client of this broker. Its secrets are read for each call."""
        from broker_edge.client import Client  # Settings that name brokers do without Flight.

        return Client(self.server, timeout_s=timeout_s, retries=retries, credentials=self.credentials, tls=self.tls)


def accesses(servers: Iterable[BrokerAccess | str]) -> tuple[BrokerAccess, ...]:
    """The brokers, where an address alone stands for a broker that is reached as the environment says."""
    return tuple(one if isinstance(one, BrokerAccess) else from_environment([one])[0] for one in servers)


def from_environment(servers: Iterable[str]) -> tuple[BrokerAccess, ...]:
    """Brokers reached with the credentials and certificates that HEADWATER_USER, HEADWATER_PASSWORD_FROM,
    HEADWATER_TOKEN_FROM and HEADWATER_TLS_CA, _CERT and _KEY name."""
    credentials, tls = Credentials.from_environment(), TlsReferences.from_environment()
    return tuple(BrokerAccess(server, credentials, tls if is_tls(server) else TlsReferences()) for server in servers)
