"""A broker inside this process: for tests, notebooks and programs with their own broker.

A thin wrapper of the native module: settings in, addresses out, the package's own errors. The broker runs on its own
threads; none of its code is Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from broker_edge.credentials import Credentials
from broker_edge.errors import ConfigError, StartError
from broker_edge.native import native

if TYPE_CHECKING:
    from broker_edge import _core
    from broker_edge.client import Client

_ANY_PORT: Mapping[str, str] = {f"listeners.{name}.bind": "127.0.0.1:0" for name in ("mqtt", "flight", "admin")}


class Broker:
    """A broker on the log in `data_dir`, which is created if it does not exist.

    `config` is a YAML file (conf/broker.yaml explains every key), `settings` are single keys such as
    `{"log.segment_bytes": "8MiB"}`, which override the file. `free_ports` (default: only without `config`) listens on
    free ports of this host, so that several brokers can run, except where `settings` give an address.

    Raises ConfigError for wrong settings, and StartError if it cannot start (a port or folder is in use).

    >>> with Broker("./data") as broker, broker.client() as client:
    ...     print(broker.mqtt, client.version().log_id)
    """

    def __init__(
        self,
        data_dir: str | PathLike[str] | None = None,
        *,
        config: str | PathLike[str] | None = None,
        settings: Mapping[str, object] | None = None,
        free_ports: bool | None = None,
    ) -> None:
        given = dict(settings or {})
        if data_dir is not None:
            given["data_dir"] = fspath(data_dir)
        if free_ports is None:
            free_ports = config is None
        self._overrides = overrides({**(_ANY_PORT if free_ports else {}), **given})
        self._config = None if config is None else fspath(config)
        self._native: _core.Broker | None = None
        self._flight_has_tls = False

    def start(self) -> Broker:
        """Recovers the log and serves. When it returns, all addresses accept connections. Does nothing if it is
        running."""
        if self._native is None:
            core = native()
            try:
                self._native = core.Broker(config_path=self._config, overrides=self._overrides)
                settings = json.loads(core.check_config(config_path=self._config, overrides=self._overrides))
                self._flight_has_tls = settings["listeners"]["flight"]["tls"]["cert"] is not None
            except core.ConfigError as error:
                raise ConfigError(str(error)) from error
            except core.StartError as error:
                raise StartError(str(error)) from error
        return self

    def stop(self) -> None:
        """Closes connections, syncs queued records, records the clean stop. `start()` may follow."""
        running, self._native = self._native, None
        if running is not None:
            running.stop()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def mqtt(self) -> str:
        """`host:port` of the MQTT listener."""
        return self._running().mqtt

    @property
    def flight(self) -> str:
        """`host:port` of the Flight listener."""
        return self._running().flight

    @property
    def admin(self) -> str:
        """`host:port` of the admin HTTP: health, metrics and status."""
        return self._running().admin

    @property
    def server(self) -> str:
        """The Flight address for `Client` and the Spark source: `grpc://`, or `grpc+tls://` if Flight has a
        certificate."""
        return f"grpc+tls://{self.flight}" if self._flight_has_tls else f"grpc://{self.flight}"

    @property
    def log_id(self) -> str:
        """The UUID of the log."""
        return self._running().log_id

    def client(
        self,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        credentials: Credentials | None = None,
        tls_ca: Path | None = None,
    ) -> Client:
        """A client of this broker; the caller closes it. Credentials and the authority of the broker's certificate come
        from the environment if they are not given. Needs the extra `client`, the broker itself does not."""
        from broker_edge.client import Client

        return Client(self.server, timeout_s=timeout_s, retries=retries, credentials=credentials, tls_ca=tls_ca)

    def _running(self) -> _core.Broker:
        if self._native is None:
            raise StartError("this broker is not running: use it in a `with` statement, or call start()")
        return self._native


def overrides(settings: Mapping[str, object]) -> list[str]:
    """Settings as `key=value`, with values in YAML notation."""
    written = {True: "true", False: "false", None: "null"}
    return [
        f"{key}={written[value] if value is None or isinstance(value, bool) else value}"
        for key, value in settings.items()
    ]
