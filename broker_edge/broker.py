"""The broker inside this process: for tests, notebooks and programs that bring their own broker.

A thin wrapper of the native module: settings in, addresses out, errors in the package's own kinds. The broker runs on
threads of its own; nothing of it runs in Python.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any

from broker_edge.client import Client
from broker_edge.errors import ConfigError, StartError

if TYPE_CHECKING:
    from broker_edge import _core

_ANY_PORT: Mapping[str, str] = {f"listeners.{name}.bind": "127.0.0.1:0" for name in ("mqtt", "flight", "admin")}


class Broker:
    """A broker on the log in `data_dir`, which is made when it is not there.

    `config` is a YAML file (conf/broker.yaml explains every key), `settings` single keys such as
    `{"log.segment_bytes": "8MiB"}`, which win over the file. `free_ports` (default: only without `config`) listens on
    free ports of this host, so that several brokers can run, except where `settings` name an address.

    Raises ConfigError for settings that are wrong and StartError when it cannot start (a busy port, a folder in use).

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

    def start(self) -> Broker:
        """Recovers the log and serves; when it returns, all addresses accept connections. Does nothing when it runs."""
        if self._native is None:
            core = native()
            try:
                self._native = core.Broker(config_path=self._config, overrides=self._overrides)
            except core.ConfigError as error:
                raise ConfigError(str(error)) from error
            except core.StartError as error:
                raise StartError(str(error)) from error
        return self

    def stop(self) -> None:
        """Closes connections, syncs what is queued, marks the clean stop. `start()` may follow."""
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
        """`host:port` of health, metrics and status over HTTP."""
        return self._running().admin

    @property
    def server(self) -> str:
        """The Flight address as `Client` and the Spark source take it."""
        return f"grpc://{self.flight}"

    @property
    def log_id(self) -> str:
        """The UUID of the log."""
        return self._running().log_id

    def client(self, *, timeout_s: float = 30.0, retries: int = 4) -> Client:
        """A client of this broker; the caller closes it."""
        return Client(self.server, timeout_s=timeout_s, retries=retries)

    def _running(self) -> _core.Broker:
        if self._native is None:
            raise StartError("this broker is not running: use it in a `with` statement, or call start()")
        return self._native


def native() -> Any:
    """The native module, imported when a broker is wanted: a client does without it."""
    try:
        _core = importlib.import_module("broker_edge._core")
    except ImportError as error:
        raise StartError(
            f"the native module of headwater is not there ({error}): install the wheel, or `make build` in a checkout"
        ) from error
    return _core


def overrides(settings: Mapping[str, object]) -> list[str]:
    """Settings as `key=value`, the way YAML writes the values."""
    written = {True: "true", False: "false", None: "null"}
    return [
        f"{key}={written[value] if value is None or isinstance(value, bool) else value}"
        for key, value in settings.items()
    ]
