"""The interpreter of Spark's workers: the installed pyspark, the rest of the path unchanged, its variables, and the
process that forks the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from pipelines.spark import worker_daemon
from pipelines.spark.worker_python import make_python

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


def test_a_worker_keeps_its_memory_unless_the_caller_says_otherwise(tmp_path: Path) -> None:
    program = make_python(tmp_path, "")
    look = "import os; print(os.environ['MALLOC_TRIM_THRESHOLD_'], os.environ['MALLOC_MMAP_THRESHOLD_'])"

    def said(own: dict[str, str]) -> list[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        done = subprocess.run(
            [program, "-c", look], env=inherited | own, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.split()

    assert said({}) == [str(64 << 20), str(32 << 20)]
    assert said({"MALLOC_TRIM_THRESHOLD_": "131072"}) == ["131072", str(32 << 20)]


PREPARE = """
import gc, os, sys
from pipelines.spark import worker_daemon
worker_daemon.prepare()
threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
# A generator that was seeded before the fork would give all workers the same numbers.
print(threads, gc.get_freeze_count() > 10_000, "numpy.random" in sys.modules)
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_what_workers_share_is_imported_before_the_fork_by_one_thread(tmp_path: Path) -> None:
    program = make_python(tmp_path, os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run(
        [program, "-c", PREPARE, *worker_daemon.SHARED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1", "True", "False", *worker_daemon.SHARED]
