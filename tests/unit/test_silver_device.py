"""From where a message schema takes the device: the start of the silver job warns if topics name it and the schema
does not say where."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pipelines.settings import Settings
from pipelines.silver.job import load_setup
from pipelines.silver.topics import open_level


@pytest.mark.parametrize(
    ("filters", "level"),
    [
        (["devices/+/telemetry"], 1),
        (["+/telemetry", "+/+/telemetry"], 0),
        (["site/+/+/telemetry"], 1),
        (["site/a/+/telemetry", "site/+/+/state"], 2),
        (["site/a/+", "devices/+"], None),
        (["e/telemetry"], None),
        (["devices/+/telemetry", "e/telemetry"], None),
        (["devices/#"], None),
        (["#"], None),
    ],
)
def test_the_level_that_may_name_the_device_is_open_in_every_filter(filters: list[str], level: int | None) -> None:
    assert open_level(filters) == level


@pytest.mark.parametrize(
    ("says", "warns"),
    [
        ("topics: [devices/+/telemetry]", True),
        ("topics: [devices/+/telemetry]\ndevice_level: null", True),
        ("topics: [devices/+/telemetry]\ndevice_level: 1", False),
        ("topics: [devices/+/telemetry]\ndevice_level: 0", False),
        ("topics: [e/telemetry]", False),
    ],
)
def test_the_start_warns_of_a_schema_that_leaves_the_device_to_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, says: str, warns: bool
) -> None:
    (tmp_path / "weather.yaml").write_text(f"name: weather\n{says}\n")
    settings = Settings()
    settings = settings.model_copy(
        update={"silver": settings.silver.model_copy(update={"schemas": str(tmp_path), "rules": None})}
    )
    with caplog.at_level(logging.WARNING, "pipelines.silver"):
        assert [schema.name for schema in load_setup(settings).schemas] == ["weather"]
    said = [record.getMessage() for record in caplog.records]
    assert (
        said
        == [
            "the schema weather takes the device from a record's key, which whoever may write over Flight "
            "chooses: set device_level: 1 in it if that level of devices/+/telemetry names the device"
        ]
        * warns
    )
