"""The native module: the broker inside this process. Wrapped by `broker_edge.Broker`; nothing else should import it.

Settings come from YAML text or a file, then from `HEADWATER_…` environment variables, then from `overrides`
(`key=value`); later ones override earlier ones. All waits release the interpreter.
"""

from typing import final

class ConfigError(ValueError):
    """The settings are wrong. `str()` is one sentence: the key, its position, what to write."""

class StartError(RuntimeError):
    """The broker did not start. `str()` is one sentence: the address, folder or file, and what to do about it."""

@final
class Broker:
    """A running broker. It stops with `stop()`, and when the object is deleted.

    Raises `ConfigError` or `StartError`. When the constructor returns, all three addresses accept connections.
    """

    def __new__(
        cls, config_yaml: str | None = None, config_path: str | None = None, overrides: list[str] = ...
    ) -> Broker: ...
    @property
    def mqtt(self) -> str:
        """`HOST:PORT` of the MQTT listener."""

    @property
    def flight(self) -> str:
        """`HOST:PORT` of the Flight listener."""

    @property
    def admin(self) -> str:
        """`HOST:PORT` of health, metrics and status."""

    @property
    def log_id(self) -> str:
        """The UUID of the log."""

    def stop(self) -> None:
        """Closes connections, syncs queued records and records the clean stop. Idempotent."""

def run(args: list[str]) -> int:
    """Runs `headwaterd` with `args` until SIGINT or SIGTERM and returns its exit code.

    Prints the line `ready …` on stdout and log messages on stderr. Takes over both signals of the process.
    """

def bench(args: list[str]) -> int:
    """Loads an MQTT broker according to `args` (`docs/bench.md`), prints the report and returns the exit code.

    Ends early, with a report, on SIGINT or SIGTERM. Takes over both signals of the process.
    """

def check_config(config_yaml: str | None = None, config_path: str | None = None, overrides: list[str] = ...) -> str:
    """The resulting settings as JSON text; raises `ConfigError`."""

def version() -> str:
    """The version of the broker."""
