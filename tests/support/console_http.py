"""Requests to the admin address as a program or a foreign page makes them, and streams that stay open."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from broker_edge.torture.process import BrokerProcess

WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The head of an answer, and all of its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def ask(
    broker: BrokerProcess,
    method: str,
    path: str,
    *,
    document: object = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answered:
    """One request on a connection of its own; a `Host` among the headers replaces the true one."""
    with _sent(broker, method, path, document, headers or {}, tls) as answer:
        return Answered(answer.status, _lower(answer), answer.read())


@contextmanager
def stream(
    broker: BrokerProcess, path: str, *, headers: Mapping[str, str] | None = None
) -> Iterator[http.client.HTTPResponse]:
    """An answer that does not end; the body is the test's to read."""
    with _sent(broker, "GET", path, None, headers or {}, None) as answer:
        yield answer


@contextmanager
def _sent(
    broker: BrokerProcess,
    method: str,
    path: str,
    document: object,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None,
) -> Iterator[http.client.HTTPResponse]:
    host, port = broker.admin
    connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
    if tls is not None:
        connection = http.client.HTTPSConnection("localhost", port, timeout=WAIT_S, context=tls)
    body = None if document is None else json.dumps(document).encode()
    more = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, body, {**more, **headers})
        with connection.getresponse() as answer:
            yield answer
    finally:
        connection.close()


def _lower(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}
