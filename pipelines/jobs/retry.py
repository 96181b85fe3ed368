"""Decides whether and after which pause a failed job is restarted. Pure arithmetic; nothing here waits."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.settings import JobsSettings
from pipelines.spark.errors import has_new_columns, own_error, spark_sentence
from sinks.store_errors import store_error

FORGIVEN_S = 600.0
"""A job that ran this long gets all its attempts again."""

_FINAL = frozenset(
    {
        "ConfigError",
        "DataLossError",
        "EngineFencedError",
        "FencedError",
        "NewFieldsError",
        "OffsetError",
        "OptionError",
        "PlanError",
        "RefusedError",
        "SettingsError",
        "SetupError",
        "StoreRefusedError",
    }
)
"""Errors that a restart cannot fix: somebody must change something first."""


def is_final(error: BaseException) -> bool:
    """Whether a restart of the job is useless."""
    return error_name(error) in _FINAL


def error_name(error: BaseException) -> str:
    """The class name of the error, or of our own error wrapped in one of Spark's, or of the trouble of a store behind
    it."""
    trouble = store_error(error)
    if trouble is not None:
        return type(trouble).__name__
    found = own_error(error)
    return type(error).__name__ if found is None else found[0]


def sentence(error: BaseException) -> str:
    """The error in one line."""
    if has_new_columns(error):
        return "the table that it reads has new columns: it goes on with them at the same offset"
    trouble = store_error(error)
    if trouble is not None:
        return str(trouble)
    found = own_error(error)
    return spark_sentence(error) if found is None else found[1]


@dataclass(slots=True)
class Backoff:
    """The attempts of one job. `failed` returns the pause before the next one, or None if none is left."""

    policy: JobsSettings
    tries: int = 0

    def failed(self, ran_s: float) -> float | None:
        if ran_s >= FORGIVEN_S:
            self.tries = 0
        if self.tries >= self.policy.retries:
            return None
        pause = min(self.policy.retry_max_s, self.policy.retry_first_s * 2.0**self.tries)
        self.tries += 1
        return pause
