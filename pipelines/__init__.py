"""Jobs of headwater: they wire `sources` to `sinks` and hold no logic of their own beyond that.

Every job is a module with a command line (`python -m pipelines.telemetry --help`).
"""

from broker_edge.errors import PipelineError, SettingsError, SetupError

__all__ = ["PipelineError", "SettingsError", "SetupError"]
