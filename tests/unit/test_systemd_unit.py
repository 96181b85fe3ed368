"""The systemd unit runs the broker as a fixed user that may do little, and systemd understands it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "headwaterd.service"


def _lines() -> list[str]:
    return [line for line in UNIT.read_text().splitlines() if line and not line.startswith("#")]


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is missing: install it (Debian: apt-get install systemd)")
    return found


def test_the_user_is_fixed_and_made_by_sysusers() -> None:
    lines = _lines()
    assert "User=headwater" in lines
    assert not [line for line in lines if line.startswith("DynamicUser")]
    made = (DEPLOY / "headwater.sysusers").read_text().splitlines()
    assert [line.split()[:2] for line in made if not line.startswith("#")] == [["u", "headwater"]]


@pytest.mark.parametrize(
    "line",
    [
        "UMask=0077",
        "StateDirectoryMode=0700",
        "SystemCallFilter=@system-service",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "MemoryMax=4G",
    ],
)
def test_the_unit_is_hardened(line: str) -> None:
    assert line in _lines()


def test_systemd_understands_the_unit(analyze: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # The tool wants the program to exist.
    unit.write_text(UNIT.read_text().replace("/usr/bin/headwaterd", "/bin/true"))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_rates_the_exposure_as_low(analyze: str) -> None:
    # In tenths: 2.0 of 10.
    command = [analyze, "security", "--offline=true", "--threshold=20", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:]
