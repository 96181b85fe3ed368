"""The process from which Spark's Python workers of a local session are forked, with what they import imported once.

Spark's own imports nothing, and so each worker takes a third of a second for the same modules. Modules that start
threads cannot be among them (pyarrow does): a fork has only the thread that made it.
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
"""What most workers import before their first record, and what starts no thread."""


def prepare() -> None:
    """Imports `SHARED`. A worker collects garbage after each task, and what is imported here is kept out of that."""
    for name in SHARED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    # On other systems a process that has imported that much is not safe to fork.
    if sys.platform == "linux":
        prepare()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
