"""`make test-long` runs every target that `make help` offers."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _check(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / ".ci" / "targets", "--check"], capture_output=True, text=True, check=False)


def test_each_target_of_the_help_is_run() -> None:
    done = _check(ROOT)
    assert done.returncode == 0, done.stderr


def test_control_a_new_target_is_missed(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "targets").write_text((ROOT / ".ci" / "targets").read_text())
    (tmp_path / ".ci" / "targets").chmod(0o755)
    (tmp_path / "Makefile").write_text(
        (ROOT / "Makefile").read_text() + "\nnew-one: ## a target without a short run\n\ttrue\n"
    )
    done = _check(tmp_path)
    assert done.returncode == 1
    assert "new-one" in done.stderr
