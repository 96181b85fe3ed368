"""Errors of the pipelines.

    PipelineError
    ├── SetupError      the machine lacks something: Java, the Delta jars
    └── SettingsError   the settings file or an option is wrong

Each message is one sentence that says what, where, and what to do.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Base of every error that `pipelines` raises on purpose."""


class SetupError(PipelineError):
    """Something that must be installed first is missing."""


class SettingsError(PipelineError):
    """A setting is unknown, of the wrong kind, or out of range."""
