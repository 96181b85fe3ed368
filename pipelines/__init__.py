"""Jobs of headwater: they connect `sources` to `sinks` and contain no other logic.

Every job is a module with a command line (`python -m pipelines.telemetry --help`).
"""

from broker_edge.errors import PipelineError, SettingsError, SetupError

__all__ = ["PipelineError", "SettingsError", "SetupError"]
