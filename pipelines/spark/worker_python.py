"""The interpreter that runs Spark's Python workers of a local session: this one, with a compiled pyspark.

Spark puts its own `pyspark.zip` first on a worker's path. Python caches no compiled code for a zip, so each worker
would compile its pyspark imports again: most of a second of CPU for each worker and each query that starts, and on a
busy machine more than the ten seconds that Spark waits. The program made here starts the interpreter with the installed
pyspark before the zip. It sets the variables of `_ENVIRONMENT` unless the caller has set them, and starts nothing else.
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
    # The next record batch needs the memory of the previous one again. By default the C library returns it to the
    # system in between, and each first use of new memory is a page fault: a third of the cost of receiving. This is the
    # maximum that a thread keeps.
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    # The largest value that the C library accepts: smaller blocks come from the kept memory.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    # Spark sets the same for tasks itself (as OMP_NUM_THREADS). Unused threads spin for a while before they sleep.
    "OPENBLAS_NUM_THREADS": "1",
}


_PREFIX = "headwater-python-"


@cache
def worker_python() -> str:
    """The path of the program, for `PYSPARK_PYTHON`. It exists until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(make_python(folder, os.environ.get("PYTHONPATH", "")))


def is_local_python(path: str) -> bool:
    """Whether it is such a program, which no other machine has."""
    return Path(path).parent.name.startswith(_PREFIX)


def exports() -> str:
    """Lines of a shell program that set the variables of a worker, unless the caller has set them."""
    return "".join(f'export {name}="${{{name}:-{value}}}"\n' for name, value in _ENVIRONMENT.items())


def make_python(folder: Path, python_path: str) -> Path:
    """Writes the program into `folder`. Its path is: `python_path`, then the installed versions of the packages that
    Spark has zipped, then the path that Spark sets. The current folder is on it only if it is on the path of this
    process, as in a notebook: a job that is started in a folder of somebody else imports nothing from there."""
    # Not their installation folder itself: if it came first, other packages in it could hide the standard library.
    links = folder / "installed"
    links.mkdir()
    for package in _ZIPPED:
        (links / package.__name__).symlink_to(Path(package.__path__[0]).resolve())
    first = os.pathsep.join([*filter(None, python_path.split(os.pathsep)), str(links)])
    safe = "" if {"", str(Path.cwd())} & set(sys.path) else "-P "
    path = f'{shlex.quote(first)}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    program = folder / "python"
    program.write_text(f'#!/bin/sh\n{exports()}PYTHONPATH={path} exec {shlex.quote(sys.executable)} {safe}"$@"\n')
    program.chmod(0o700)
    return program
