"""When a job that failed is started again, and after which pause. Values and arithmetic; nothing here waits."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.settings import JobsSettings
from pipelines.spark.errors import own_error

FORGIVEN_S = 600.0
"""A job that ran so long has all its tries again."""

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
    }
)
"""Errors that starting again cannot mend: somebody must change something first."""


def is_final(error: BaseException) -> bool:
    """Whether starting the job again is useless."""
    return error_name(error) in _FINAL


def error_name(error: BaseException) -> str:
    """The class of the error, or of ours inside one of Spark's."""
    found = own_error(error)
    return type(error).__name__ if found is None else found[0]


def sentence(error: BaseException) -> str:
    """The error in one line."""
    found = own_error(error)
    text = str(error) if found is None else found[1]
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


@dataclass(slots=True)
class Backoff:
    """The tries of one job. `failed` gives the pause before the next try, or None when there is none left."""

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
