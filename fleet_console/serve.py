"""Runs the console until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from broker_edge.credentials import resolve_bytes
from broker_edge.errors import ConfigError, ConnectError
from fleet_console.brokers import Fleet
from fleet_console.settings import ConsoleSettings, ServerTls
from fleet_console.tables import Tables
from fleet_console.web import Web

_CONNECTIONS_MAX = 256
_KEEP_ALIVE_S = 75
_END_WITHIN_S = 2
_HEAD_WITHIN_S = 10.0


def serve(settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Calls `ready` with the address once it listens. Raises ConfigError, SetupError and ConnectError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    fleet, tables = Fleet(settings.fleet()), Tables(settings.tables)
    web = Web(settings, fleet, tables)
    with _files_of(settings.tls) as files, _listening(settings) as listener:
        config = uvicorn.Config(
            web.app(),
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_END_WITHIN_S,
            **files,  # type: ignore[arg-type]
        )
        try:
            config.load()
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(f"tls: the certificate and its key cannot be used together ({error})") from error
        fleet.start()
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        ready(f"{'https' if files else 'http'}://{shown}:{port}")
        # The server ends with the signal that it has got; the command line has a word for that.
        with contextlib.suppress(KeyboardInterrupt):
            _Server(config, web).run(sockets=[listener])


class _Protocol(H11Protocol):
    """HTTP/1.1 for strangers: a connection that sends no whole head of a request in time ends."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering:
            self._wait_for_head()
        elif self._late is not None:
            self._late.cancel()
            self._late = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(_HEAD_WITHIN_S, self._close_without_head)

    def _close_without_head(self) -> None:
        self._late = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, web: Web) -> None:
        super().__init__(config)
        self._web = web

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._web.end()
        super().handle_exit(sig, frame)


@contextlib.contextmanager
def _listening(settings: ConsoleSettings) -> Iterator[socket.socket]:
    host, port = settings.place()
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConnectError(
            f"cannot listen on {settings.listen}: {error.strerror or error}; is something else there? Choose another "
            "with --listen HOST:PORT",
            server=settings.listen,
        ) from error
    with listener:
        yield listener


@contextlib.contextmanager
def _files_of(tls: ServerTls) -> Iterator[dict[str, str]]:
    """The certificate and its key as files that this user alone can read, as long as the console runs."""
    if tls.cert is None or tls.key is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="headwater-tls-") as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        cert.write_bytes(resolve_bytes(tls.cert, what="tls.cert"))
        key.write_bytes(resolve_bytes(tls.key, what="tls.key"))
        yield {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}
