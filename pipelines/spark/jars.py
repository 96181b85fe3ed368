"""The Delta jars: fetched once into a folder, then used without a network.

    headwater setup spark [--to FOLDER] [--repository https://mirror.example/maven2]
    python -m pipelines.spark.jars [--to .cache/jars]      (what `make` runs)

In a checkout the folder is `.cache/jars`, otherwise one of the user's cache; HEADWATER_JARS names another one. A jar
counts only if its sha256 is the one in `jars.sha256`, whatever served it. Ivy runs inside a short Spark start in its
own process, with a private cache and home folder, so the contents of `~/.ivy2` and `~/.m2` neither help nor interfere.
A session itself only uses `spark.jars` and never resolves anything.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from broker_edge.errors import SetupError
from broker_edge.extras import require
from pipelines.spark import child
from pipelines.spark.java import require_java

DELTA_VERSION = "4.4.0"
DELTA_PACKAGE = f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}"
JAR_NAMES = (
    f"io.delta_delta-spark_4.2_2.13-{DELTA_VERSION}.jar",
    f"io.delta_delta-storage-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-api-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-defaults-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-unitycatalog-{DELTA_VERSION}.jar",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar",
)
"""The jars that Delta needs at run time in addition to Spark's own."""

S3A_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.awssdk:s3:2.35.4",
    "software.amazon.awssdk:s3-transfer-manager:2.35.4",
    "software.amazon.awssdk:sts:2.35.4",
)
"""What Spark 4.2 needs for S3, 13 MB in all: the modules that Hadoop uses, of the version that it was built with."""

S3A_EXCLUDES = ("software.amazon.awssdk:bundle", "io.netty:*", "org.slf4j:*", "org.apache.httpcomponents:*")
"""The SDK in one jar of 600 MB, and what Spark has in newer versions."""

LOCK = Path(__file__).with_name("jars.sha256")
"""The sha256 of every jar that this module fetches for itself, in the format of `sha256sum`."""

_SETTINGS = """<ivysettings>
  <settings defaultResolver="repository"/>
  <resolvers><ibiblio name="repository" m2compatible="true" root={root}/></resolvers>
</ivysettings>
"""

JARS_ENV = "HEADWATER_JARS"
FETCH_TIMEOUT_SECONDS = 900

_FETCH = """
import os
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").appName("fetch-jars")
for key, value in {
    "spark.jars.packages": os.environ["HEADWATER_FETCH_PACKAGES"],
    "spark.jars.excludes": os.environ["HEADWATER_FETCH_EXCLUDES"],
    "spark.jars.ivy": os.environ["HEADWATER_FETCH_IVY"],
    "spark.driver.extraJavaOptions": "-Duser.home=" + os.environ["HEADWATER_FETCH_HOME"],
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.jars.ivySettings": os.environ["HEADWATER_FETCH_SETTINGS"],
}.items():
    builder = builder.config(key, value) if value else builder
builder.getOrCreate().stop()
"""


def default_folder() -> Path:
    """`$HEADWATER_JARS`; otherwise `.cache/jars` of a checkout, or a folder of the user's cache for this version."""
    named = os.environ.get(JARS_ENV)
    if named:
        return Path(named)
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():
        return root / ".cache" / "jars"
    # The specification of XDG has a relative path ignored.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "headwater" / "jars" / DELTA_VERSION


def s3a_folder(folder: Path) -> Path:
    """The folder of the jars of S3A: beside that of the Delta jars."""
    return folder.with_name(f"{folder.name}-s3a")


def delta_jars(folder: Path | None = None) -> list[Path]:
    """The paths of the Delta jars; `SetupError` names a missing one and how to fetch it."""
    folder = folder or default_folder()
    missing = _missing(folder)
    if missing:
        raise SetupError(
            f"the Delta jars are not in {folder} ({missing[0]} is missing): run `headwater setup spark --to {folder}`, "
            f"or name their folder in {JARS_ENV}"
        )
    return [folder / name for name in JAR_NAMES]


def digests() -> dict[str, str]:
    """The sha256 by the name of the jar."""
    lines = (line.split() for line in LOCK.read_text("ascii").splitlines() if line and not line.startswith("#"))
    return {name: digest for digest, name in lines}


def check_digests(jars: Iterable[Path]) -> None:
    """Removes the jars whose sha256 is not that of `jars.sha256`. Raises SetupError with the name of the first one."""
    known = digests()
    wrong: list[tuple[Path, str]] = []
    for jar in jars:
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if known.get(jar.name) != found:
            wrong.append((jar, found))
    for jar, _ in wrong:
        jar.unlink()
    if wrong:
        jar, found = wrong[0]
        expected = known.get(jar.name)
        said = f"sha256 {found}, not {expected}" if expected else f"no sha256 in {LOCK.name}"
        raise SetupError(f"{jar.name} has {said}: it was removed; try again, or find out who changed it on the way")


def fetch(folder: Path, *, repository: str | None = None) -> bool:
    """Puts the jars into `folder`. Returns false, without using the network, if all of them are already there.

    A jar appears under its name only when it is complete and has its digest, so an interrupted fetch can simply be run
    again. Raises SetupError if a jar has another digest, also if it was there before; that jar is gone then.
    """
    if not _missing(folder):
        check_digests(folder / name for name in JAR_NAMES)
        return False
    _require_spark()
    folder.mkdir(parents=True, exist_ok=True)
    # In the target folder, because the renames below must stay within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        resolved = _resolve(scratch, [DELTA_PACKAGE], [], repository)
        for name in JAR_NAMES:
            if not (resolved / name).is_file():
                raise SetupError(f"{DELTA_PACKAGE} was resolved without {name}: remove {folder} and try again")
        check_digests(resolved / name for name in JAR_NAMES)
        for name in JAR_NAMES:
            whole = scratch / name
            shutil.copyfile(resolved / name, whole)
            os.replace(whole, folder / name)
    return True


def fetch_packages(
    folder: Path,
    packages: Sequence[str],
    *,
    excludes: Sequence[str] = (),
    is_locked: bool = False,
    repository: str | None = None,
) -> list[Path]:
    """The jars of Maven packages (`group:artifact:version`) and of their dependencies, in their own folder.

    The folder appears only when all jars are in it, so an existing folder is complete and nothing is fetched. Spark's
    own jars are not included; `excludes` are packages (`group:artifact`) to leave out. With `is_locked` each jar must
    have its digest in `jars.sha256`.
    """
    if not folder.is_dir():
        _require_spark()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
            resolved = _resolve(Path(scratch), packages, excludes, repository)
            if is_locked:
                check_digests(sorted(resolved.glob("*.jar")))
            os.replace(resolved, folder)
    return sorted(folder.glob("*.jar"))


def s3a_jars(folder: Path | None = None, *, repository: str | None = None) -> list[Path]:
    """The jars of S3A beside those of Delta in `folder`, fetched if necessary."""
    place = s3a_folder(folder or default_folder())
    return fetch_packages(place, S3A_PACKAGES, excludes=S3A_EXCLUDES, is_locked=True, repository=repository)


def _require_spark() -> None:
    """What fetching takes: Ivy, which is in Spark, and Java."""
    require("fetching jars", "pyspark")
    require_java()


def are_there(folder: Path) -> bool:
    """Whether the folder has all Delta jars; their digests are not looked at."""
    return not _missing(folder)


def _missing(folder: Path) -> list[str]:
    return [name for name in JAR_NAMES if not (folder / name).is_file()]


def _resolve(scratch: Path, packages: Sequence[str], excludes: Sequence[str], repository: str | None) -> Path:
    """The folder below `scratch` with the jars that Ivy found: in `repository`, or in Maven Central."""
    wanted = ",".join(packages)
    home = scratch / "home"
    home.mkdir()
    settings = scratch / "ivysettings.xml"
    if repository is not None:
        settings.write_text(_SETTINGS.format(root=quoteattr(repository.rstrip("/") + "/")))
    environment = dict(
        os.environ,
        HEADWATER_FETCH_PACKAGES=wanted,
        HEADWATER_FETCH_EXCLUDES=",".join(excludes),
        HEADWATER_FETCH_IVY=str(scratch / "ivy"),
        HEADWATER_FETCH_HOME=str(home),
        HEADWATER_FETCH_SETTINGS=str(settings) if repository is not None else "",
    )
    try:
        code, said = child.run(
            [sys.executable, "-c", _FETCH], cwd=scratch, env=environment, seconds_max=FETCH_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"fetching {wanted} took over {FETCH_TIMEOUT_SECONDS} s: check the network and try again"
        ) from error
    if code != 0:
        raise SetupError(f"cannot fetch {wanted} from {repository or 'Maven Central'}: {_reason(said)}")
    return scratch / "ivy" / "jars"


def _reason(lines: Sequence[str]) -> str:
    """The line of Ivy's output that names the problem, or its last line."""
    for marker in ("unresolved dependency", "FAILED DOWNLOADS", "Connection refused", "UnknownHost", "Server access"):
        for line in lines:
            if marker in line:
                return line.strip(": ")
    return lines[-1] if lines else "Spark ended without any output"


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if the jars are there, 1 with a one-sentence error on stderr if they cannot be fetched."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.spark.jars", description="Fetch the Delta jars once.")
    parser.add_argument("--s3a", action="store_true", help="also the jars for S3, into jars-s3a beside them")
    parser.add_argument("--repository", metavar="URL", help="Maven repository in place of Maven Central")
    parser.add_argument("--to", type=Path, default=None, help=f"folder for the jars (default {default_folder()})")
    options = parser.parse_args(arguments)
    folder: Path = (options.to or default_folder()).absolute()
    try:
        if _missing(folder):
            _say(f"fetching {len(JAR_NAMES)} Delta jars into {folder} …")
        fetched = fetch(folder, repository=options.repository)
        if options.s3a:
            s3a_jars(folder, repository=options.repository)
    except SetupError as error:
        _say(f"error: {error}")
        return 1
    _say(f"{len(JAR_NAMES)} Delta jars {'fetched into' if fetched else 'are in'} {folder}")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
