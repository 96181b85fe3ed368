"""Extracts an error of this project from an error of Spark, which shows it at the end of a Python traceback."""

from __future__ import annotations

import re

_OWN_ERROR = re.compile(r"(?:broker_edge|sources|sinks|pipelines)\.errors\.(\w+): (.+)")


def own_error(error: BaseException) -> tuple[str, str] | None:
    """Class name and message of our own error inside one of Spark's, or None if Spark itself failed."""
    found = _OWN_ERROR.findall(str(error))
    if not found:
        return None
    name, sentence = found[-1]
    return name, sentence.strip()
