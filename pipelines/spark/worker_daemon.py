"""The process from which Spark forks the Python workers of a local session, with common modules already imported.

Spark's own process imports nothing, so each worker takes a third of a second to import the same modules. Modules that
start threads (such as pyarrow) must not be imported here: a fork has only the thread that created it.
"""

from __future__ import annotations

import gc
import importlib
import sys

SHARED = (
    "numpy",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.session",
    "pyspark.sql.streaming.datasource",
    "pyspark.worker",
)
"""Modules that most workers import before their first record, and that start no thread."""


def prepare() -> None:
    """Imports `SHARED`. Freezes the objects, so that a worker's garbage collection after each task skips them."""
    for name in SHARED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    # On other systems a process with these imports is not safe to fork.
    if sys.platform == "linux":
        prepare()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
