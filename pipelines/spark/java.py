"""Finds Java before pyspark looks for it, so that a missing Java is reported in one sentence, not in a gateway stack
trace.

It never installs or downloads anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from broker_edge.errors import SetupError

JAVA_VERSION_MIN = 17
"""Spark 4 needs Java 17 or newer."""


def require_java() -> Path:
    """Returns the `java` that Spark will start. Raises `SetupError` if there is none or it is too old."""
    java = _find_java()
    version = _major_version(java)
    if version < JAVA_VERSION_MIN:
        raise SetupError(
            f"{java} is Java {version}, but Spark needs Java {JAVA_VERSION_MIN} or newer: install it "
            f"(Debian: apt install openjdk-17-jre-headless) and point JAVA_HOME at it"
        )
    return java


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise SetupError(f"JAVA_HOME is {home}, but there is no {java}: point JAVA_HOME at a Java 17, or unset it")
        return java
    found = shutil.which("java")
    if found is None:
        raise SetupError(
            "Spark needs Java 17 and there is no `java` on PATH: install it "
            "(Debian: apt install openjdk-17-jre-headless)"
        )
    return Path(found)


def _major_version(java: Path) -> int:
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{java} does not start ({error}): install Java 17 and point JAVA_HOME at it") from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if match is None:
        raise SetupError(f"{java} does not report its version: install Java 17 and point JAVA_HOME at it")
    major = int(match.group(1))
    # Java 8 and older report their version as 1.8.
    return int(match.group(2) or 0) if major == 1 else major
