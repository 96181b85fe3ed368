"""One connection to a broker's Flight service: deadlines, retries of reads, and the package's own errors.

It knows no action names and keeps no state of a call between attempts; `flight` knows the actions. Several threads may
share a channel. It does not survive a fork.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from broker_edge._arrow import flight, pa
from broker_edge.clear_text import warn_in_clear
from broker_edge.credentials import Credentials
from broker_edge.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    DataLossError,
    DeadlineError,
    FencedError,
    FullError,
    HeadwaterError,
    NotFoundError,
    NotLeaderError,
    OutOfRangeError,
    RefusedError,
    UnavailableError,
)
from broker_edge.server_address import is_tls, nodes_of, parse_server
from broker_edge.tls import Tls, TlsFiles, tls_reason

T = TypeVar("T")

_ANSWER_BYTES_MAX = 256 << 20
"""Of the results of one action: room for the topics of a large broker. Whoever answers in its place must not fill the
memory of a job that reads other brokers too."""
_BACKOFF_FIRST_S = 0.1
_BACKOFF_MAX_S = 2.0
_ELECTION_RETRIES = 20
"""Of several servers: with the pauses between them, longer than an election takes."""

# gRPC's own pause between connection attempts grows to two minutes, which would delay the return of a broker. Its
# `min_reconnect_backoff_ms` stays at 20 s: it is the time that one attempt has, and a link may be slow. Pings during an
# open call detect a dead peer, so that a stream without a deadline cannot hang forever.
_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", -1),
]


class Connection:
    """A lazily opened channel to `server`: one address, or several nodes of a cluster, of which one serves clients.

    `retries` is the number of retries of a read, with growing pauses, while the broker is unreachable and time is left.
    With several addresses the next one is tried, and there are more retries, because an election takes a moment. A node
    that names the leader is believed if the leader's address uses TLS as its own does. A change is never tried again
    here, but the next call goes to where the leader may be.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        timeout_s: float,
        retries: int,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        given = [server] if isinstance(server, str) else server
        self._servers = [node for one in given for node in nodes_of(parse_server(one))]
        if not self._servers:
            raise ConfigError("no server address is given: write grpc://HOST:PORT")
        if len({is_tls(one) for one in self._servers}) > 1:
            raise ConfigError("some of the server addresses use TLS and some do not: write grpc+tls:// for all")
        self.server = self._servers[0]
        self.asked = self.server
        """Where the last call went to; after an error, `server` may be another address."""
        # The place of the address that was used last: a named leader need not be one of the addresses.
        self._turn = 0
        self._credentials = credentials or Credentials()
        self._tls: Tls = tls or TlsFiles()
        if tls is not None and tls.is_given and not is_tls(self.server):
            raise ConfigError(f"{self.server} does not use TLS: write grpc+tls://…, or omit the TLS files")
        self.timeout_s = timeout_s
        self.retries = max(retries, _ELECTION_RETRIES) if retries and len(self._servers) > 1 else retries
        self._client: flight.FlightClient | None = None
        self._closed = False

    def close(self) -> None:
        client, self._client = self._client, None
        self._closed = True
        if client is not None:
            client.close()

    def _channel(self) -> flight.FlightClient:
        if self._closed:
            raise ConnectError(f"this client of {self.server} is closed: create a new one", server=self.server)
        self.asked = self.server
        if self._client is None:
            files = self._tls.read() if is_tls(self.server) else {}
            self._client = flight.FlightClient(self.server, generic_options=_CHANNEL_OPTIONS, **files)
        return self._client

    def _options(self, timeout_s: float | None) -> flight.FlightCallOptions:
        """The options of one call. The secret is read for each call, because it may be renewed."""
        header = self._credentials.header()
        if header is not None and not is_tls(self.server):
            warn_in_clear(self.server, urlsplit(self.server).hostname or "", "grpc+tls")
        headers = [] if header is None else [(b"authorization", header)]
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def read(self, name: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """An action that changes nothing: retried while the broker is unreachable."""
        return self.retrying(lambda left_s: self._action(name, body, left_s), timeout_s=timeout_s)

    def change(self, name: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """An action that changes something: tried once, because without an answer it is unknown whether it happened."""
        with self._following():
            return self._action(name, body, self.timeout_s if timeout_s is None else timeout_s)

    def retrying(self, attempt: Callable[[float], T], *, timeout_s: float | None = None) -> T:
        """Calls `attempt(seconds left)` until it succeeds, fails permanently, or retries or time run out."""
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        failures = 0
        while True:
            try:
                return attempt(max(deadline - time.monotonic(), 0.001))
            except (ConnectError, UnavailableError) as error:
                failures += 1
                if not self.pause(error, failures, deadline=deadline):
                    raise
            except DeadlineError as error:
                self.follow(error)
                raise

    def pause(self, error: HeadwaterError, failures: int, *, deadline: float | None = None) -> bool:
        """Waits before the next attempt; returns False if there must not be one."""
        self.follow(error)
        is_final = self._closed or (isinstance(error, UnavailableError) and error.stopped)
        wait_s = min(_BACKOFF_FIRST_S * 2 ** (failures - 1), _BACKOFF_MAX_S) * random.uniform(0.75, 1.25)
        if is_final or failures > self.retries or (deadline is not None and time.monotonic() + wait_s >= deadline):
            return False
        time.sleep(wait_s)
        return True

    @contextmanager
    def _following(self) -> Iterator[None]:
        """A call that is not tried again: its error moves the next one to where the leader may be."""
        try:
            yield
        except HeadwaterError as error:
            self.follow(error)
            raise

    def follow(self, error: HeadwaterError) -> None:
        """Goes to where the leader may be. A node that does not answer in time may be cut off from the others."""
        leader = error.leader if isinstance(error, NotLeaderError) else None
        if leader is not None and leader != self.server and is_tls(leader) == is_tls(self.server):
            self._go(leader)
        elif isinstance(error, (ConnectError, NotLeaderError, DeadlineError)):
            self.go_on()

    def go_on(self) -> None:
        """The next call goes to the next of the addresses."""
        self._turn = (self._turn + 1) % len(self._servers)
        self._go(self._servers[self._turn])

    def reset(self) -> None:
        """The next call opens a new channel."""
        self._client = None

    def _go(self, server: str) -> None:
        """The old channel is left to those who still use it, and closes with the last of them."""
        if server != self.server:
            self.server, self._client = server, None
        if server in self._servers:
            self._turn = self._servers.index(server)

    def _action(self, name: str, body: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        options = self._options(timeout_s)
        request = flight.Action(name, json.dumps(body).encode())
        with _Errors(self.server):
            answers, left = [], _ANSWER_BYTES_MAX
            for result in self._channel().do_action(request, options=options):
                answer = result.body.to_pybytes()
                left -= len(answer) + 1
                if left < 0:
                    raise BrokerError(
                        f"{self.server} answers {name} with more than {_ANSWER_BYTES_MAX:,} bytes: is it a broker?"
                    )
                answers.append(answer)
            return [json.loads(answer) for answer in answers]

    def get(self, ticket: Mapping[str, Any], *, timeout_s: float | None = None) -> flight.FlightStreamReader:
        """Opens a stream of record batches. Errors of the ticket may also be raised by the first read."""
        options = self._options(timeout_s)
        with _Errors(self.server):
            return self._channel().do_get(flight.Ticket(json.dumps(ticket).encode()), options=options)

    def errors(self) -> _Errors:
        """`with connection.errors():` turns Flight's errors into the package's."""
        return _Errors(self.server)

    def decoding(self) -> _Decoding:
        """`with connection.decoding():` turns a missing or wrong field of an answer into a BrokerError."""
        return _Decoding(self.server)

    def put(
        self, schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, timeout_s: float | None
    ) -> list[dict[str, Any]]:
        """Sends batches one after the other, waiting for each answer; returns one answer per batch."""
        with self._following():
            return self._put(schema, batches, self.timeout_s if timeout_s is None else timeout_s)

    def _put(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch], timeout_s: float) -> list[dict[str, Any]]:
        options = self._options(timeout_s)
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"op": "produce"}).encode())
        with _Errors(self.server):
            writer, reader = self._channel().do_put(descriptor, schema, options=options)
            answers = []
            try:
                for batch in batches:
                    writer.write_batch(batch)
                    answer = reader.read()
                    if answer is None:
                        raise DeadlineError(f"{self.server} ended the call without an answer; the rows may be stored")
                    answers.append(json.loads(answer.to_pybytes()))
                writer.done_writing()
            finally:
                # If the write itself only saw a closed stream, closing raises the refusal with its reason.
                writer.close()
            return answers


class _Errors:
    """Turns errors of Flight and of malformed answers into our own; lets our own errors pass."""

    def __init__(self, server: str) -> None:
        self.server = server

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, HeadwaterError) or not isinstance(error, Exception):
            return
        if isinstance(error, (flight.FlightError, pa.ArrowException, ValueError, OSError, RecursionError)):
            raise from_flight(error, server=self.server) from error


class _Decoding:
    """Turns exceptions from reading an answer's fields into a BrokerError that names the broker."""

    def __init__(self, server: str) -> None:
        self.server = server

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)):
            raise BrokerError(
                f"{self.server} sent an answer that cannot be read ({error!r:.200}): check its version"
            ) from error


def from_flight(error: Exception, *, server: str) -> HeadwaterError:
    """The decoded error of a Flight call to `server` (docs/protocols.md, section 3, Errors)."""
    detail = _detail(str(error))
    if detail is not None:
        try:
            found = _from_detail(detail, server)
        except (KeyError, TypeError, ValueError, ConfigError):
            found = BrokerError(f"{server} sent an error that cannot be read: {json.dumps(detail)}")
        found.detail = detail
        return found
    text = _first_line(str(error))
    match error:
        case flight.FlightUnavailableError():
            return ConnectError(f"cannot connect to {server}: {_why(str(error), server, text)}", server=server)
        case flight.FlightTimedOutError():
            return DeadlineError(f"{server} did not answer in time: ask again or allow more time")
        case flight.FlightUnauthenticatedError() | flight.FlightUnauthorizedError():
            return RefusedError(f"{server} refused these credentials: {text}")
        case flight.FlightCancelledError():
            return DeadlineError(f"the call to {server} was cancelled")
        case pa.ArrowNotImplementedError():
            return BrokerError(f"{server} does not support this: is it a headwater broker of this version? ({text})")
        case _:
            return BrokerError(f"{server} failed: {text}")


def _why(text: str, server: str, first_line: str) -> str:
    """Why no connection could be made, and what to do."""
    has_tls = is_tls(server)
    reason = tls_reason(text, has_certificate=False) if has_tls else None
    if reason is not None:
        return reason
    what = first_line.rsplit(": ", 1)[-1]
    if has_tls and "TSI_DATA_CORRUPTED" in text:
        # What gRPC makes of an alert after the handshake; it does not say which.
        return "the broker ended the TLS connection: give a certificate that it accepts, with --tls-cert and --tls-key"
    if has_tls and any(words in text for words in ("handshake", "Socket closed", "SSL")):
        return f"does this port speak TLS? ({what})"
    advice = "is the broker running, and is this its Flight address (port 8815 by default)?"
    if not has_tls and "Socket closed" in text:
        advice = f"{advice} If this port speaks TLS, write grpc+tls://"
    return f"{advice} ({what})"


def _from_detail(detail: Mapping[str, Any], server: str) -> HeadwaterError:
    message = f"{detail['message']} ({server})"
    match detail["error"]:
        case "out_of_range":
            return OutOfRangeError(
                message,
                partition=int(detail["partition"]),
                log_start=int(detail["log_start"]),
                high_watermark=int(detail["high_watermark"]),
                wanted=int(detail["wanted"]),
            )
        case "unauthenticated" | "permission_denied" | "exhausted":
            return RefusedError(message)
        case "invalid_argument":
            return RefusedError(message, field=detail.get("field"))
        case "not_found":
            return NotFoundError(message)
        case "fenced":
            return FencedError(message, group=str(detail["group"]), reader_epoch=int(detail["reader_epoch"]))
        case "full":
            return FullError(message, partition=detail.get("partition"))
        case "not_leader":
            leader = detail.get("leader")
            return NotLeaderError(message, leader=None if leader is None else nodes_of(parse_server(str(leader)))[0])
        case "stopped" | "unavailable":
            stopped = detail["error"] == "stopped"
            return UnavailableError(message, partition=detail.get("partition"), stopped=stopped)
        case "data_loss":
            place = {name: int(detail[name]) for name in ("partition", "start", "end")}
            return DataLossError(message, **place)
        case _:
            return BrokerError(message)


def _detail(text: str) -> Mapping[str, Any] | None:
    """The broker's error as JSON, starting at the first `{`; None if the text holds no such object."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "error" in found and "message" in found else None


def _first_line(text: str) -> str:
    """The first line, without the transport's debugging details."""
    line = text.partition("\n")[0]
    return line.partition(". Detail:")[0].partition(". gRPC client debug context")[0].strip()
