"""The interpreter that Spark's Python workers of a local session are started with: this one, with pyspark compiled.

Spark puts its own `pyspark.zip` first on a worker's path. Python keeps nothing compiled for a zip, so each worker would
compile all that it imports of pyspark anew: most of a second of CPU for each worker and each query that starts, and on
a busy machine more than the ten seconds that Spark waits. What is made here starts the interpreter with the installed
pyspark before the zip. It starts nothing itself; what else it sets is `_ENVIRONMENT`, under the caller's own.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import py4j
import pyspark

_ZIPPED = (pyspark, py4j)

_ENVIRONMENT = {
    # What a record batch took comes again with the next one. By default the C library gives it back in between, and
    # each first touch of new memory is a fault: a third of what receiving costs. This is the most that a thread keeps.
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    # The largest that the C library takes: blocks below it come from what is kept.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    # Spark says so for tasks itself (as OMP_NUM_THREADS); threads that nobody uses spin a while before they sleep.
    "OPENBLAS_NUM_THREADS": "1",
}


@cache
def worker_python() -> str:
    """The path of the program, for `PYSPARK_PYTHON`. It is there until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(make_python(folder, os.environ.get("PYTHONPATH", "")))


def make_python(folder: Path, python_path: str) -> Path:
    """The program, in `folder`: `python_path` comes first, then what Spark has zipped as it is installed here, then the
    path that Spark gives."""
    # Not the folder that they are installed in: with it first, others there could stand before the standard library.
    links = folder / "installed"
    links.mkdir()
    for package in _ZIPPED:
        (links / package.__name__).symlink_to(Path(package.__path__[0]).resolve())
    first = os.pathsep.join([*filter(None, python_path.split(os.pathsep)), str(links)])
    program = folder / "python"
    settings = "".join(f'export {name}="${{{name}:-{value}}}"\n' for name, value in _ENVIRONMENT.items())
    program.write_text(
        f"#!/bin/sh\n{settings}"
        f'PYTHONPATH={shlex.quote(first)}"${{PYTHONPATH:+:$PYTHONPATH}}" exec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o700)
    return program
