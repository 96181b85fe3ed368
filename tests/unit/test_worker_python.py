"""The interpreter of Spark's workers: pyspark as it is installed, and the rest of the path as it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from zipfile import ZipFile

from pipelines.worker_python import make_python

LOOK = "import pyspark.version, first, last; print(pyspark.version.__file__, first.__file__, last.__file__, sep='\\n')"


def test_a_worker_takes_the_installed_pyspark_and_not_the_zip_that_comes_first(tmp_path: Path) -> None:
    program = make_python(tmp_path, str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "first.py").touch()
    with ZipFile(tmp_path / "spark.zip", "w") as zipped:
        for name in ("pyspark/__init__.py", "pyspark/version.py", "first.py", "last.py"):
            zipped.writestr(name, "")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "spark.zip")}
    done = subprocess.run(
        [program, "-c", LOOK], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    version, first, last = map(Path, done.stdout.splitlines())
    assert version == tmp_path / "installed" / "pyspark" / "version.py"
    assert first == tmp_path / "mine" / "first.py"
    assert last == tmp_path / "spark.zip" / "last.py"
