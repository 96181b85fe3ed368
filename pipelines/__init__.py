"""Jobs of headwater: they connect `sources` to `sinks` and contain no other logic.

Every job is a module with a command line (`python -m pipelines.telemetry --help`).
"""

import importlib
from typing import TYPE_CHECKING

from broker_edge.errors import PipelineError, SettingsError, SetupError

__all__ = ["PipelineError", "SettingsError", "SetupError"]

# Not for type checkers, which would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "errors":
            return importlib.import_module("pipelines.errors")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
