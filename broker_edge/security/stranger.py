"""A stranger at an MQTT listener: connects without credentials, asks for topics, and leaves.

It leaves nothing behind. The session ends with the connection (clean start, no expiry), there is no will, the broker
chooses the client id, and nothing is published. What was subscribed ends with the session, which no log records.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker_edge.security.doors import Door

_NO_RETAINED = 2
"""Retain handling: a subscription brings no stored messages."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a stranger got. `reached`: somebody accepted the connection. `answer`: the reason code of the CONNACK, None
    if there was none. `granted` and `replayed`: filters that may be read, and read from an offset."""

    reached: bool
    answer: str | None = None
    is_in: bool = False
    granted: frozenset[str] = frozenset()
    replayed: frozenset[str] = frozenset()
    why: str = ""


@dataclass(slots=True)
class _Heard:
    event: threading.Event = field(default_factory=threading.Event)
    code: Any = None
    codes: dict[int, list[Any]] = field(default_factory=dict)


def visit(door: Door, filters: Sequence[str], *, timeout_s: float) -> Seen:
    """Connects to an MQTT listener without credentials and without checking its certificate, as no secret is sent."""
    heard = _Heard()
    client = _client(door, heard, timeout_s)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 0
    try:
        client.connect(door.host, door.port, keepalive=60, clean_start=True, properties=properties)
    except ssl.SSLError as error:
        return Seen(reached=True, why=str(error))
    except paho.WebsocketConnectionError as error:
        return Seen(reached=True, why=str(error))
    except OSError as error:
        return Seen(reached=False, why=error.strerror or str(error))
    client.loop_start()
    try:
        heard.event.wait(timeout_s)
        if heard.code is None:
            return Seen(reached=True, why="the connection was closed, or nothing was answered")
        if heard.code.is_failure:
            return Seen(reached=True, answer=str(heard.code))
        # First the past: a position counts for a new subscription only.
        replayed = _asked(client, heard, filters, {"stream-offset": "earliest"}, timeout_s)
        granted = _asked(client, heard, filters, {}, timeout_s)
        return Seen(reached=True, answer=str(heard.code), is_in=True, granted=granted, replayed=replayed)
    finally:
        client.disconnect()
        client.loop_stop()


def _client(door: Door, heard: _Heard, timeout_s: float) -> paho.Client:
    transport = "websockets" if door.listener in ("ws", "wss") else "tcp"
    client = paho.Client(
        CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, transport=transport, reconnect_on_failure=False
    )
    client.connect_timeout = timeout_s
    if door.has_tls:
        client.tls_set_context(unchecked())

    def on_connect(_: object, data: object, flags: object, code: Any, properties: object) -> None:
        heard.code = code
        heard.event.set()

    def on_disconnect(_: object, data: object, flags: object, code: Any, properties: object) -> None:
        heard.event.set()

    def on_subscribe(_: object, data: object, number: int, codes: list[Any], properties: object) -> None:
        heard.codes[number] = codes
        heard.event.set()

    client.on_connect, client.on_disconnect, client.on_subscribe = on_connect, on_disconnect, on_subscribe
    return client


def _asked(
    client: paho.Client, heard: _Heard, filters: Sequence[str], users: dict[str, str], timeout_s: float
) -> frozenset[str]:
    """The filters that are granted, in one SUBSCRIBE."""
    properties = Properties(PacketTypes.SUBSCRIBE)
    if users:
        properties.UserProperty = list(users.items())
    options = SubscribeOptions(qos=0, retainHandling=_NO_RETAINED)
    heard.event.clear()
    _, number = client.subscribe([(one, options) for one in filters], properties=properties)
    heard.event.wait(timeout_s)
    codes = heard.codes.get(number or 0, ())
    return frozenset(one for one, code in zip(filters, codes, strict=False) if not code.is_failure)


def unchecked() -> ssl.SSLContext:
    """TLS without a check of the certificate: only for what contains no secret."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
