"""The error of ours inside an error of Spark, which shows it as the end of a Python traceback."""

from __future__ import annotations

import re

_OWN_ERROR = re.compile(r"(?:broker_edge|sources|sinks|pipelines)\.errors\.(\w+): (.+)")


def own_error(error: BaseException) -> tuple[str, str] | None:
    """Class name and sentence of the error of ours inside one of Spark's, or None when Spark itself failed."""
    found = _OWN_ERROR.findall(str(error))
    if not found:
        return None
    name, sentence = found[-1]
    return name, sentence.strip()
