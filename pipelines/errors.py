"""Errors of the pipelines.

    PipelineError
    ├── SetupError      the machine lacks something: Java, the Delta jars
    ├── SettingsError   the settings file or an option is wrong
    ├── PlanError       what a batch of silver was planned with cannot be read or written
    ├── NewFieldsError  a payload has fields that its schema refuses
    └── JobFailedError  a job ended although nobody told it to

Each message is one sentence that says what, where, and what to do.
"""

from __future__ import annotations

import re

# Spark shows an error of a data source as the end of a Python traceback.
_OWN_ERROR = re.compile(r"(?:sources|sinks|pipelines)\.errors\.(\w+): (.+)")


class PipelineError(Exception):
    """Base of every error that `pipelines` raises on purpose."""


class SetupError(PipelineError):
    """Something that must be installed first is missing."""


class SettingsError(PipelineError):
    """A setting is unknown, of the wrong kind, or out of range."""


class PlanError(PipelineError):
    """The plan of a batch cannot be read or written; nothing of the batch was written."""


class NewFieldsError(PipelineError):
    """A payload has fields that its schema does not name, and the schema says `fail_on_new`."""


class JobFailedError(PipelineError):
    """A job ended by itself, and starting it again did not help."""


def own_error(error: BaseException) -> tuple[str, str] | None:
    """Class name and sentence of the error of ours inside one of Spark's, or None when Spark itself failed."""
    found = _OWN_ERROR.findall(str(error))
    if not found:
        return None
    name, sentence = found[-1]
    return name, sentence.strip()
