"""How the source reaches brokers: credentials and TLS for all servers, or for single ones (option `access`).

Only parses options, and writes them for brokers that are given as values. Secrets stay references until a call is made;
an error never repeats a value that may be a secret.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker_edge.access import BrokerAccess, accesses
from broker_edge.credentials import Credentials
from broker_edge.errors import ConfigError, OptionError
from broker_edge.server_address import parse_server
from broker_edge.tls import TlsReferences
from sources.option_values import count_value, reference_value

CREDENTIAL_NAMES = ("user", "password", "token")
TLS_NAMES = ("tls.ca", "tls.cert", "tls.key")
_ENTRY_NAMES = ("name", "log_id")
_OF_A_SERVER = (*CREDENTIAL_NAMES, *TLS_NAMES, *_ENTRY_NAMES)

REQUEST_TIMEOUT_MS_DEFAULT = 15_000
"""A plan over a long log may scan it; all other requests are answered in milliseconds."""

NUM_RETRIES_DEFAULT = 3
RETRY_INTERVAL_MS_DEFAULT = 10


@dataclass(frozen=True, slots=True)
class Access:
    """How a broker is reached: credentials, TLS, timeouts and retries. Secrets stay references until a call is made."""

    credentials: Credentials = field(default_factory=Credentials)
    tls: TlsReferences = field(default_factory=TlsReferences)
    request_timeout_ms: int = REQUEST_TIMEOUT_MS_DEFAULT
    num_retries: int = NUM_RETRIES_DEFAULT
    retry_interval_ms: int = RETRY_INTERVAL_MS_DEFAULT
    name: str | None = None
    """The name of the broker in the settings; None: its address stands for it."""
    log_id: str | None = None
    """The log that the broker must hold; None: whichever it says first."""


def common_access(values: Mapping[str, str], servers: Sequence[str]) -> Access:
    """The access of every server that option `access` does not name."""
    credentials, tls = _read(values)
    named = _named(values.get("access"), servers)
    plain = next((one for one in servers if not one.startswith("grpc+tls://") and one not in named), None)
    if tls.is_given and plain is not None:
        raise OptionError(
            "options tls.ca, tls.cert and tls.key are for servers of the form grpc+tls://host:port, "
            f"and {plain} is another one"
        )
    retries = count_value(values, "fetchOffset.numRetries", at_least=0)
    interval = count_value(values, "fetchOffset.retryIntervalMs", at_least=0)
    return Access(
        credentials=credentials,
        tls=tls,
        request_timeout_ms=count_value(values, "requestTimeoutMs") or REQUEST_TIMEOUT_MS_DEFAULT,
        num_retries=NUM_RETRIES_DEFAULT if retries is None else retries,
        retry_interval_ms=RETRY_INTERVAL_MS_DEFAULT if interval is None else interval,
    )


def access_by_server(values: Mapping[str, str], servers: Sequence[str], common: Access) -> dict[str, Access]:
    """The access of the servers that option `access` names. Credentials replace those for all servers as a whole, and
    so do certificates; an entry without either keeps them."""
    found = {}
    for server, entry in _named(values.get("access"), servers).items():
        try:
            credentials, tls = _read(entry)
        except OptionError as error:
            raise OptionError(f"option access, {server}: {error}") from error
        chosen = replace(common, name=entry.get("name"), log_id=entry.get("log_id"))
        if any(name in entry for name in CREDENTIAL_NAMES):
            chosen = replace(chosen, credentials=credentials)
        if any(name in entry for name in TLS_NAMES):
            if not server.startswith("grpc+tls://"):
                raise OptionError(f"option access, {server}: certificates are for servers grpc+tls://host:port")
            chosen = replace(chosen, tls=tls)
        elif not server.startswith("grpc+tls://"):
            chosen = replace(chosen, tls=TlsReferences())
        found[server] = chosen
    return found


def access_options(servers: Sequence[BrokerAccess | str]) -> dict[str, str]:
    """The options `servers`, and those of access, for these brokers. An address alone is reached as the environment
    says (`HEADWATER_USER` and so on). The options hold references, never secrets."""
    brokers = accesses(servers)
    addresses = [parse_server(broker.server) for broker in brokers]
    ways = [_way(broker) for broker in brokers]
    entries = [_entry(broker) for broker in brokers]
    options = {"servers": ",".join(addresses)}
    if all(way == ways[0] for way in ways):
        options |= ways[0]
        own = entries
    else:
        own = [way | entry for way, entry in zip(ways, entries, strict=True)]
    access = {server: values for server, values in zip(addresses, own, strict=True) if values}
    return options | ({"access": json.dumps(access)} if access else {})


def _entry(broker: BrokerAccess) -> dict[str, str]:
    values = {"name": broker.name, "log_id": broker.log_id}
    return {name: value for name, value in values.items() if value is not None}


def _way(broker: BrokerAccess) -> dict[str, str]:
    shown, tls = broker.credentials, broker.tls
    values = {
        "user": shown.user,
        "password": shown.password,
        "token": shown.token,
        "tls.ca": tls.ca,
        "tls.cert": tls.cert,
        "tls.key": tls.key,
    }
    return {name: value for name, value in values.items() if value is not None}


def _named(text: str | None, servers: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """The entries of option `access` by server, in the spelling of option `servers`."""
    if text is None:
        return {}
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(_FORM) from None
    if not isinstance(entries, dict):
        raise OptionError(_FORM)
    spelling = {_place(server): server for server in servers}
    found: dict[str, Mapping[str, str]] = {}
    for given, entry in entries.items():
        server = spelling.get(_place(given))
        if server is None:
            raise OptionError(f"option access names {given}, which is not one of the servers: {', '.join(servers)}")
        if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
            raise OptionError(_FORM)
        for name in entry:
            if name not in _OF_A_SERVER:
                near = difflib.get_close_matches(name, _OF_A_SERVER, n=1, cutoff=0.0)
                raise OptionError(f"option access, {server}: unknown key {name}: did you mean {near[0]}?")
        found[server] = entry
    return found


_FORM = (
    'option access is JSON of the form {"grpc+tls://host:port": {"user": …, "password": …, "tls.ca": …}}, '
    "with references in place of secrets"
)


def _place(server: str) -> str:
    try:
        return parse_server(server)
    except ConfigError:
        return server


def _read(values: Mapping[str, str]) -> tuple[Credentials, TlsReferences]:
    password, token, ca, cert, key = (
        reference_value(name, values.get(name)) for name in ("password", "token", *TLS_NAMES)
    )
    try:
        tls = TlsReferences(ca=ca, cert=cert, key=key)
        return Credentials(user=values.get("user"), password=password, token=token), tls
    except ConfigError as error:
        raise OptionError(str(error)) from error
