"""Decides who configures the Spark session of this process: somebody outside headwater, the settings file, or nobody.

A pure function of what is known before Spark starts. It opens nothing; `session` acts on the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from broker_edge.errors import SettingsError
from pipelines.settings import SparkSettings

DATABRICKS_ENV = "DATABRICKS_RUNTIME_VERSION"
"""Set on every Databricks cluster."""

GATEWAY_ENV = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` for the Python process that it starts."""

_CONNECT = "sc://"
_IN_PROCESS = re.compile(r"local(\[[^\]]*\])?")
_DEFAULTS_LINE = re.compile(r"([^\s=:#]+)\s*[\s=:]\s*(.*)")


class Decider(StrEnum):
    """Who decides, in the order in which they are asked."""

    ACTIVE = "a session that is active in this process"
    DATABRICKS = "Databricks"
    SUBMIT = "spark-submit"
    REMOTE = "SPARK_REMOTE"
    SETTINGS = "spark.master of the settings"
    DEFAULTS = "SPARK_MASTER or spark-defaults.conf"
    NOBODY = "nobody, so Spark runs in this process"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known before Spark starts. `defaults`: the content of `spark-defaults.conf`."""

    environment: Mapping[str, str]
    defaults: Mapping[str, str]
    has_active_session: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Who decides, and the master or the Connect server if this process must name it."""

    by: Decider
    master: str | None = None
    remote: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether addresses, memory and the interpreter of the workers are ours to choose."""
        return self.by is Decider.NOBODY

    @property
    def starts_jvm(self) -> bool:
        """Whether this process starts the JVM of the driver, so that every setting can still be made."""
        return self.master is not None

    @property
    def is_shared(self) -> bool:
        """Whether others use the session too. Such a session is never stopped."""
        return self.by in (Decider.ACTIVE, Decider.DATABRICKS)

    @property
    def sentence(self) -> str:
        place = self.remote or self.master
        return f"the Spark session is decided by {self.by.value}{'' if place is None else f': {place}'}"


def decide(around: Surroundings, settings: SparkSettings) -> Decision:
    """Who decides about the session. Raises SettingsError for a `spark.cores` that contradicts `spark.master`."""
    environment = around.environment
    if around.has_active_session:
        return Decision(Decider.ACTIVE)
    if environment.get(DATABRICKS_ENV):
        return Decision(Decider.DATABRICKS)
    if environment.get(GATEWAY_ENV):
        return Decision(Decider.SUBMIT)
    if remote := environment.get("SPARK_REMOTE"):
        return Decision(Decider.REMOTE, remote=remote)
    if master := _named_master(settings):
        return _of_settings(master)
    if remote := around.defaults.get("spark.remote"):
        return Decision(Decider.DEFAULTS, remote=remote)
    if master := environment.get("SPARK_MASTER") or environment.get("MASTER") or around.defaults.get("spark.master"):
        return Decision(Decider.DEFAULTS, master=master)
    return Decision(Decider.NOBODY, master=settings.cores)


def _named_master(settings: SparkSettings) -> str | None:
    """`spark.master`, or the `spark.cores` of an older file that names a cluster."""
    is_cluster = _IN_PROCESS.fullmatch(settings.cores) is None
    if settings.master is None:
        return settings.cores if is_cluster else None
    if is_cluster:
        raise SettingsError(
            f"spark.cores is {settings.cores} and spark.master is {settings.master}: name the cluster in spark.master, "
            "and write the task slots of local runs, such as local[2], in spark.cores"
        )
    return settings.master


def _of_settings(master: str) -> Decision:
    if master.startswith(_CONNECT):
        return Decision(Decider.SETTINGS, remote=master)
    if _IN_PROCESS.fullmatch(master) is not None:
        return Decision(Decider.NOBODY, master=master)
    return Decision(Decider.SETTINGS, master=master)


def read_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings in `spark-defaults.conf` of `SPARK_CONF_DIR`, or of `conf` below `SPARK_HOME`; empty without a file.

    The file has Java's format for properties: a name, then space, `=` or `:`, then the value. Spark reads it itself.
    """
    if folder := environment.get("SPARK_CONF_DIR"):
        path = Path(folder)
    elif home := environment.get("SPARK_HOME"):
        path = Path(home) / "conf"
    else:
        return {}
    try:
        lines = (path / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path / 'spark-defaults.conf'}: {error}") from error
    found = (_DEFAULTS_LINE.fullmatch(line.strip()) for line in lines if not line.lstrip().startswith("#"))
    return {match[1]: match[2].strip() for match in found if match is not None}
