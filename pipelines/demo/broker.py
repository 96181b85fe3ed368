"""The broker of the demo: open on this machine, or with the users and certificates that `headwater init` writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from broker_edge import Broker, Credentials
from broker_edge.access import BrokerAccess
from broker_edge.free_ports import free_ports
from broker_edge.mqtt_address import MqttAddress, parse_mqtt
from broker_edge.secured_folder import OPERATOR, SecuredFolder
from broker_edge.tls import TlsReferences
from pipelines.demo.layout import Layout
from pipelines.settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class DemoBroker:
    """A running broker. `settings` reach it as the jobs do, `operator` as a person who may publish anything; `mqtt` is
    for devices, `admin` is `host:port`, `others` are for devices too, at the further nodes of a cluster."""

    settings: Settings
    operator: BrokerAccess
    mqtt: MqttAddress
    admin: str
    secured: SecuredFolder | None = None
    others: tuple[MqttAddress, ...] = ()

    @property
    def options(self) -> str:
        """What `headwater` commands need to act as the operator."""
        if self.secured is None:
            return ""
        password = shlex.quote(f"file:{self.secured.password(OPERATOR)}")
        return f" --user {OPERATOR} --password-from {password} --tls-ca {shlex.quote(str(self.secured.ca))}"


@contextmanager
def open_broker(layout: Layout, *, devices: Sequence[str], secure: bool) -> Iterator[DemoBroker]:
    """Starts the broker on free ports of this machine; with `secure` each device has a user of its own, over TLS."""
    if not secure:
        with Broker(layout.broker) as broker:
            settings = Settings.model_validate({"servers": [broker.server]})
            yield DemoBroker(settings, BrokerAccess(broker.server), parse_mqtt(broker.mqtt), broker.admin)
        return
    secured = SecuredFolder(layout.root / "secured", devices=tuple(devices))
    secured.write()
    mqtts = _free_address()
    listeners = {"listeners.mqtts.bind": mqtts}
    with Broker(layout.broker, config=secured.broker, free_ports=True, settings=listeners) as broker:
        settings = load_settings(secured.pipelines).with_servers([broker.server])
        operator = BrokerAccess(
            broker.server,
            Credentials(user=OPERATOR, password=f"file:{secured.password(OPERATOR)}"),
            TlsReferences(ca=f"file:{secured.ca}"),
        )
        yield DemoBroker(settings, operator, parse_mqtt(f"mqtts://{mqtts}"), broker.admin, secured)


def _free_address() -> str:
    """The embedded broker tells only the ports of its three usual listeners, so the port of this one is chosen here."""
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"
