"""Settings of the pipelines: `conf/pipelines.yaml` made into checked values. It reads one file and nothing else.

Defaults are those of the models here; the file in the repository repeats them with what they mean, and a test holds
the two together.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipelines.errors import SettingsError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SparkSettings(_Section):
    """The local session."""

    cores: str = "local[2,4]"
    driver_memory: str = "1g"
    warehouse: str | None = None


class BronzeSettings(_Section):
    """How bronze tables are written. `files` has its name and is refused by the sink for now."""

    writer: Literal["spark", "files"] = "spark"


class TelemetrySettings(_Section):
    """The pipeline from telemetry topics to its bronze table."""

    subscribe: list[str] = Field(default=["devices/+/telemetry"], min_length=1)
    consumer_group: str = "telemetry"
    table: str | None = None
    table_path: str | None = "data/bronze/telemetry"
    checkpoint: str = "data/checkpoints/telemetry"
    trigger: str = "1 second"
    max_offsets_per_trigger: int | None = Field(default=1_000_000, gt=0)
    fail_on_data_loss: bool = True

    @model_validator(mode="after")
    def _one_table(self) -> TelemetrySettings:
        if (self.table is None) == (self.table_path is None):
            raise ValueError("give one of table and table_path, and null for the other")
        return self


class StatusSection(_Section):
    """The pipeline from statuses and receipts to `action_events`; its tables are those of `actions`."""

    consumer_group: str = "status"
    checkpoint: str = "data/checkpoints/status"
    trigger: str = "1 second"
    max_offsets_per_trigger: int = Field(default=10_000, gt=0)
    fail_on_data_loss: bool = True


class ActionsSection(_Section):
    """The action engine."""

    root: str = "data/tables"
    tick_s: float = Field(default=1.0, gt=0)
    poll_s: float = Field(default=0.2, gt=0)
    publish_max: int = Field(default=5_000, gt=0)
    queued_s: int = Field(default=7 * 24 * 3600, gt=0)
    delivered_s: int = Field(default=3600, gt=0)
    in_progress_s: int = Field(default=24 * 3600, gt=0)
    step_s: int = Field(default=24 * 3600, gt=0)
    allow_unsigned: bool = False
    trusted_keys: list[str] = Field(default=[])


class Settings(_Section):
    """The whole file."""

    servers: list[str] = Field(default=["grpc://127.0.0.1:8815"], min_length=1)
    tenant: str = Field(default="default", min_length=1)
    spark: SparkSettings = SparkSettings()
    bronze: BronzeSettings = BronzeSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    status: StatusSection = StatusSection()
    actions: ActionsSection = ActionsSection()


def load_settings(path: Path | None) -> Settings:
    """Reads `path`, or gives the defaults without one. `SettingsError` names file, line, key and the nearest key."""
    if path is None:
        return Settings()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the settings {path}: {error.strerror}") from error
    try:
        value = yaml.safe_load(text)
        root = yaml.compose(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return Settings.model_validate({} if value is None else value)
    except ValidationError as error:
        raise SettingsError(_sentence(path, root, error)) from error


def _sentence(path: Path, root: yaml.Node | None, error: ValidationError) -> str:
    """The first problem, as `file:line: key: what is wrong`."""
    first = error.errors()[0]
    keys = [str(part) for part in first["loc"]]
    place = f"{path}:{_line(root, keys)}"
    name = ".".join(keys)
    if first["type"] == "extra_forbidden":
        known = list(_section(keys[:-1]).model_fields)
        near = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.0)
        return f"{place}: unknown key {name}: did you mean {'.'.join([*keys[:-1], near[0]])}?"
    return f"{place}: {name or 'settings'}: {first['msg']}"


def _section(keys: list[str]) -> type[BaseModel]:
    model: type[BaseModel] = Settings
    for key in keys:
        inner: Any = model.model_fields[key].annotation
        model = inner
    return model


def _line(node: yaml.Node | None, keys: list[str]) -> int:
    """The line of the deepest key on the way that the file has."""
    line = 1
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            break
        found = next(((name, value) for name, value in node.value if name.value == key), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line
