"""Starts this interpreter again, with our packages and with nothing of the current folder.

Python puts the current folder first on the path of `-c` and `-m`: a file `json.py` in a folder of somebody else would
be imported by a `headwater` command that runs there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def own_python(*words: str) -> list[str]:
    """The command for `words`, such as `-m` and a module. Run it with `own_environment`."""
    return [sys.executable, "-P", *words]


def own_environment() -> dict[str, str]:
    """The environment of this process, with our packages on the path."""
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
