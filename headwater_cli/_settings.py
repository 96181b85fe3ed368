"""The settings of a broker as the broker reads them, for commands that run on its box."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker_edge.errors import ConfigError
from broker_edge.native import native


def checked_settings(config: Path | None, settings: Sequence[str] | None) -> str:
    """What results from the defaults, the file, HEADWATER_… variables and pairs of --set, as JSON without secrets.
    Raises ConfigError for a mistake in them."""
    core = native()
    try:
        text: str = core.check_config(
            config_path=None if config is None else str(config), overrides=list(settings or [])
        )
    except core.ConfigError as error:
        raise ConfigError(str(error)) from error
    return text
