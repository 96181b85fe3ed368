"""Settings of the pipelines: reads `conf/pipelines.yaml`, and only that file, into checked values.

The models here hold the defaults. The file in the repository repeats and explains them, and a test checks that both
agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from actions.engine import Limits
from actions.uplink_status import TOPIC, UplinkTopic
from broker_edge import default_files
from broker_edge.access import BrokerAccess
from broker_edge.credentials import REFERENCE
from broker_edge.errors import ConfigError, SettingsError
from broker_edge.server_address import parse_server
from pipelines.settings.brokers import AccessSection, BrokerSection, fleet_of, referenced
from pipelines.settings.yaml_file import Section, read_yaml
from sinks.store import StoreAccess

_SERVERS = ["grpc://127.0.0.1:8815"]


def _address_or_reference(value: str | None) -> str | None:
    """The rule of every setting that names a webhook."""
    if value is not None and not value.startswith(("http://", "https://")) and not REFERENCE.fullmatch(value):
        raise ValueError("write an http:// or https:// address, or a reference to it: file:PATH, env:NAME")
    return value


class StorageSettings(Section):
    """How object stores are reached: the options of the `object_store` library, secrets by reference."""

    options: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _is_known(self) -> StorageSettings:
        try:
            self.access()
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("storage.options: ")) from error
        return self

    def access(self) -> StoreAccess:
        """What opens tables with these options. Secrets in it are still references."""
        return StoreAccess.of(self.options)


class SparkSettings(Section):
    """The Spark session. `master` counts only if nothing outside headwater names one."""

    master: str | None = None
    conf: dict[str, str] = Field(default={})
    packages: list[str] = Field(default=[])
    cores: str = "local[2,4]"
    driver_memory: str = "1g"
    warehouse: str | None = None


class BronzeSettings(Section):
    """How bronze tables are written; `auto` is `files` for a table by path and `spark` for one by name."""

    writer: Literal["auto", "spark", "files"] = "auto"
    compression: Literal["zstd", "snappy"] = "zstd"
    sync: bool | None = None


class TelemetrySettings(Section):
    """The pipeline from telemetry topics to the bronze table."""

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
            raise ValueError("give either table or table_path, and null for the other")
        return self


class StatusSection(Section):
    """The pipeline from statuses and receipts to `action_events`; its tables are those of `actions`."""

    consumer_group: str = "status"
    checkpoint: str = "data/checkpoints/status"
    trigger: str = "1 second"
    max_offsets_per_trigger: int = Field(default=10_000, gt=0)
    fail_on_data_loss: bool = True
    uplink_topic: str | None = TOPIC

    @model_validator(mode="after")
    def _is_a_topic(self) -> StatusSection:
        if self.uplink_topic is not None:
            UplinkTopic(self.uplink_topic)
        return self


class ActionsSection(Section):
    """The action engine."""

    root: str = "data/tables"
    tick_s: float = Field(default=1.0, gt=0)
    poll_s: float = Field(default=0.2, gt=0)
    device_state_s: float = Field(default=1.0, ge=0)
    keep_days: int | None = Field(default=90, ge=1, le=36_500)
    publish_max: int = Field(default=5_000, gt=0)
    queued_s: int = Field(default=7 * 24 * 3600, gt=0)
    delivered_s: int = Field(default=3600, gt=0)
    in_progress_s: int = Field(default=24 * 3600, gt=0)
    step_s: int = Field(default=24 * 3600, gt=0)
    removal_max_percentage: float = Field(default=10, ge=0, le=100)
    confirmed_names: bool = False
    allow_unsigned: bool = False
    trusted_keys: list[str] = Field(default=[])
    signing_key: str | None = Field(default=None, repr=False)
    webhook: str | None = Field(default=None, repr=False)
    signature_s: int = Field(default=30 * 24 * 3600, gt=0, le=10 * 365 * 24 * 3600)

    _reference = field_validator("signing_key")(referenced)

    def limits(self) -> Limits:
        """The engine's limits."""
        return Limits(
            publish_max=self.publish_max,
            queued_s=self.queued_s,
            delivered_s=self.delivered_s,
            in_progress_s=self.in_progress_s,
            step_s=self.step_s,
            removal_max_percentage=self.removal_max_percentage,
            needs_confirmed_names=self.confirmed_names,
            allow_unsigned=self.allow_unsigned,
            trusted_keys=frozenset(self.trusted_keys),
        )

    _is_an_address = field_validator("webhook")(_address_or_reference)


class SilverSettings(Section):
    """The pipeline from bronze to one table per message type; unusable records go to `quarantine`."""

    schemas: str = Field(default_factory=default_files.schemas)
    rules: str | None = Field(default_factory=default_files.rules)
    root: str | None = "data/tables"
    catalog_schema: str | None = None
    checkpoint: str = "data/checkpoints/silver"
    trigger: str = "5 seconds"
    max_bytes_per_trigger: str = "64m"

    @model_validator(mode="after")
    def _one_place(self) -> SilverSettings:
        if (self.root is None) == (self.catalog_schema is None):
            raise ValueError("give either root or catalog_schema, and null for the other")
        return self


class GapsSettings(Section):
    """The job that copies reported gaps into `ingest_gaps`."""

    every_s: float = Field(default=60.0, gt=0)


class QualitySettings(Section):
    """The job that checks the rules as a suite on a sample of each silver table."""

    every_s: float = Field(default=3600.0, gt=0)
    sample_rows: int = Field(default=10_000, gt=0)


class MaintenanceSettings(Section):
    """The job that compacts small files and removes files that no reader needs any more."""

    every_s: float = Field(default=3600.0, gt=0)
    retention_hours: int = Field(default=168, ge=0)
    log_retention_days: int = Field(default=30, gt=0)
    target_file_mb: int = Field(default=128, gt=0)


class JobsSettings(Section):
    """How `headwater jobs run` watches its jobs."""

    look_s: float = Field(default=1.0, gt=0)
    retries: int = Field(default=5, ge=0)
    retry_first_s: float = Field(default=1.0, gt=0)
    retry_max_s: float = Field(default=60.0, gt=0)
    stop_s: float = Field(default=5.0, gt=0)
    lag_records_max: int | None = Field(default=1_000_000, gt=0)
    silent_s_max: float | None = Field(default=300.0, gt=0)
    webhook: str | None = Field(default=None, repr=False)

    _is_an_address = field_validator("webhook")(_address_or_reference)


class Settings(Section):
    """The whole file."""

    servers: list[str] = Field(default=_SERVERS, min_length=1)
    brokers: list[BrokerSection] = Field(default=[])
    access: AccessSection = AccessSection()
    tenant: str = Field(default="default", min_length=1)
    storage: StorageSettings = StorageSettings()
    spark: SparkSettings = SparkSettings()
    bronze: BronzeSettings = BronzeSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    status: StatusSection = StatusSection()
    actions: ActionsSection = ActionsSection()
    silver: SilverSettings = Field(default_factory=SilverSettings)
    gaps: GapsSettings = GapsSettings()
    quality: QualitySettings = QualitySettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    jobs: JobsSettings = JobsSettings()

    @model_validator(mode="after")
    def _one_list(self) -> Settings:
        if self.brokers and self.servers != _SERVERS:
            raise ValueError("give either servers or brokers")
        names = [broker.name for broker in self.brokers if broker.name is not None]
        logs = [broker.log_id for broker in self.brokers if broker.log_id is not None]
        for known in ([_address(broker.server) for broker in self.brokers], names, logs):
            twice = next((one for one in known if known.count(one) > 1), None)
            if twice is not None:
                raise ValueError(f"brokers: {twice} is there twice")
        return self

    def fleet(self) -> tuple[BrokerAccess, ...]:
        """The brokers and how they are reached. Raises SettingsError."""
        return fleet_of(self.brokers or [BrokerSection(server=one) for one in self.servers], self.access)

    def with_servers(self, servers: Sequence[str] | None) -> Settings:
        """The settings with these brokers only; what the file says about their access stays. None changes nothing. An
        entry may be several addresses with commas between them, for platforms that pass a list as one text."""
        if servers is None:
            return self
        known = {_address(broker.server): broker for broker in self.brokers}
        named = [one.strip() for text in servers for one in text.split(",") if one.strip()]
        chosen = [known.get(_address(one)) or BrokerSection(server=one) for one in named]
        return self.model_copy(update={"servers": _SERVERS, "brokers": chosen})


def _address(server: str) -> str:
    """One text for all spellings of an address. One that is no address stays as it is: `fleet` refuses it."""
    try:
        return parse_server(server)
    except ConfigError:
        return server


def load_settings(path: Path | None) -> Settings:
    """Reads `path`; without one returns the defaults. `SettingsError` names file, line, key and the nearest known
    key."""
    if path is None:
        return Settings()
    if not path.exists():
        raise SettingsError(
            f"cannot read the settings {path}: there is no file {path.absolute()}; `headwater init FOLDER` writes a "
            "pipelines.yaml, and without --config the defaults count"
        )
    return read_yaml(path, Settings)
