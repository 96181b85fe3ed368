"""A command that runs in a folder of somebody else imports nothing from there, not in the processes that it starts
either."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker_edge.own_python import own_environment, own_python
from broker_edge.secured_folder import generate_passwords
from pipelines.spark.worker_python import make_python

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("actions", "broker_edge", "fleet_console", "headwater_cli", "pipelines", "sinks", "sources")
NAMES = ("broker_edge", "json", "headwater_cli", "pipelines", "re")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder whose modules leave a file when they are imported. Returns that file."""
    folder, said = tmp_path / "hostile", tmp_path / "imported"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(said)!r}, 'a').write('{name}'); raise SystemExit(9)\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(folder))])
    return said


def test_passwords_are_made_by_our_own_code_wherever_init_runs(tmp_path: Path, hostile: Path) -> None:
    users = tmp_path / "users"
    assert set(generate_passwords(users, ["pump-7"])) == {"pump-7"}
    assert not hostile.exists()


@pytest.mark.parametrize("words", [("-c", "import json, broker_edge, pipelines"), ("-m", "broker_edge.own_python")])
def test_our_own_processes_import_nothing_of_the_current_folder(words: tuple[str, ...], hostile: Path) -> None:
    done = subprocess.run(own_python(*words), env=own_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, hostile.exists()) == (0, False), done.stderr


def test_a_python_without_these_words_would_import_it(hostile: Path) -> None:
    """Control of the tests above."""
    done = subprocess.run([sys.executable, "-c", "import broker_edge"], env=own_environment(), check=False)
    assert (done.returncode, hostile.read_text()) == (9, "broker_edge")


@pytest.mark.parametrize("is_on_path", [False, True])
def test_workers_of_spark_have_the_current_folder_only_if_the_driver_has_it(
    tmp_path: Path, hostile: Path, monkeypatch: pytest.MonkeyPatch, is_on_path: bool
) -> None:
    if is_on_path:
        monkeypatch.syspath_prepend(str(Path.cwd()))
    program = make_python(tmp_path, "")
    words = [str(program), "-c", "import broker_edge"]
    done = subprocess.run(words, env=own_environment() | {"PATH": os.environ["PATH"]}, check=False)
    assert (done.returncode, hostile.exists()) == ((9, True) if is_on_path else (0, False))


def test_every_process_of_our_own_starts_this_way() -> None:
    """A call with its own new folder is the exception."""
    found = []
    for path in sorted(path for name in SHIPPED for path in (ROOT / name).rglob("*.py")):
        for match in re.finditer(r"\[\s*sys\.executable(?:, \"(.+?)\")?", path.read_text()):
            if match[1] != "-P":
                found.append(str(path.relative_to(ROOT)))
    assert found == ["headwater_cli/devices.py", "pipelines/spark/jars.py"]
