"""A number in a YAML file costs no more than its text: 1:1:1:… is one number in base 60."""

from __future__ import annotations

from pathlib import Path

import pytest

from actions.rollout_file import read_rollout
from broker_edge.errors import SettingsError
from pipelines.settings import Settings
from pipelines.settings.yaml_file import read_yaml

LONG = "1" + ":1" * 20_000


@pytest.mark.parametrize("text", [f"tenant: {LONG}", f"tenant: {'1' * 1_001}"], ids=["base 60", "base 10"])
def test_a_settings_file_has_no_number_that_takes_minutes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pipelines.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"pipelines\.yaml:1 has a number of more than 1000 characters"):
        read_yaml(path, Settings)


def test_a_rollout_file_has_no_number_that_takes_minutes(tmp_path: Path) -> None:
    path = tmp_path / "rollout.yaml"
    path.write_text(f"id: a\nname: {LONG}\n")
    with pytest.raises(SettingsError, match=r"rollout\.yaml:2.* a number of more than 1000 characters"):
        read_rollout(path)
