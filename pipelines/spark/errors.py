"""Extracts an error of this project from an error of Spark, which shows it at the end of a Python traceback, and says
what is missing where a machine of the cluster cannot run our Python."""

from __future__ import annotations

import re

_OWN_ERROR = re.compile(r"(?:broker_edge|sources|sinks|pipelines)\.errors\.(\w+): (.+)")
_WHERE = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor \S+\)")
_NO_PYTHON = re.compile(r"headwater: (no \S+ on \S+: .+)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"[^\n]*error=(?:2|13),')
_NO_PACKAGE = re.compile(r"No module named '((?:actions|broker_edge|pipelines|sinks|sources)(?:\.\w+)*)'")
_THROWN = re.compile(r"(?:[a-z_]\w*\.)+([A-Z]\w*): (.+)")
"""An exception of the JVM with its message, as in `java.io.IOException: no space left`."""

_NEW_COLUMNS = "[DELTA_SCHEMA_CHANGED"
"""Delta ends a stream once when the table that it reads gets columns. The checkpoint stays as it is."""

_REMEDY = "give spark-submit the archive of `headwater spark pack`, with the options that it prints"


def own_error(error: BaseException) -> tuple[str, str] | None:
    """Class name and message of our own error inside one of Spark's, or None if Spark itself failed."""
    text = str(error)
    found = _OWN_ERROR.findall(text)
    if found:
        name, sentence = found[-1]
        return name, sentence.strip()
    if has_new_columns(error):
        return "JobFailedError", "the table that it reads has new columns: start the job again, it goes on with them"
    missing = _missing(text)
    return None if missing is None else ("SetupError", missing)


def has_new_columns(error: BaseException) -> bool:
    """Whether a stream ended because the table that it reads got columns: a restart goes on at the same offset."""
    return _NEW_COLUMNS in str(error)


def spark_sentence(error: BaseException) -> str:
    """The first thing that an error of Spark says, in one line. The text of an exception of the JVM begins with the
    call that failed, a number of py4j's, and says what happened in the line after it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if not lines[0].startswith("An error occurred while calling"):
        return lines[0]
    at = next((number for number, line in enumerate(lines) if line.startswith(": ")), 0)
    thrown = lines[at].removeprefix(": ")
    for line in lines[at + 1 :]:
        # What a worker of Python says stands in the lines below.
        if not thrown.endswith(":") or line.startswith("at "):
            break
        thrown = f"{thrown} {line}"
    found = _THROWN.match(thrown)
    return thrown if found is None else f"{found[2]} ({found[1]})"


def _missing(text: str) -> str | None:
    """What a machine lacks to run Python workers, in one sentence. A host is named if Spark says which."""
    if found := _NO_PYTHON.search(text):
        return found[1].strip()
    where = _WHERE.search(text)
    place = "the driver or an executor" if where is None else where[1]
    if found := _NO_PROGRAM.search(text):
        return f"{place} cannot start {found[1]}: {_REMEDY}"
    if found := _NO_PACKAGE.search(text):
        return f"the Python of {place} has no {found[1].partition('.')[0]}, so headwater is not there: {_REMEDY}"
    return None
