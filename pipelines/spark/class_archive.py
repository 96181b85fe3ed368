"""The archive of loaded classes with which a local Spark session starts a quarter sooner, a short run a third.

Most of the start of a session is the JVM reading, checking and linking some 15,000 classes. A JVM can write those that
it has loaded into a file and map that file the next time (class data sharing, JEP 350). `record` makes the file once,
beside the Delta jars; `options` names it to the JVM of a session.

The JVM itself checks that the file was made by the same Java from the same jars. Where it was not, the session starts
without it and says nothing: an archive is never needed, and none is ever wrong.

    headwater setup spark [--to FOLDER]
    python -m pipelines.spark.class_archive --to .cache/jars      (what `make` runs)
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from broker_edge.errors import SetupError
from broker_edge.own_python import own_environment, own_python
from pipelines.spark import child
from pipelines.spark.java import SHORT_RUN_JVM, java_words, require_java

log = logging.getLogger(__name__)

RECORD_SECONDS_MAX = 600

_PREFIX = "classes-"
_FILE_OPTION = "-XX:SharedArchiveFile"
# What a JVM says of an archive that does not fit goes to stdout, among what a program prints.
_QUIET = "-Xlog:cds*=off -Xlog:cds=off"

# What a short job does, so that the classes of a table, of a stream and of MERGE are loaded.
_RECORD = """
import sys
from pathlib import Path
from pipelines.spark.session import spark_session
folder = Path(sys.argv[1])
spark = spark_session(
    "class-archive",
    warehouse=folder / "warehouse",
    jars_folder=Path(sys.argv[2]),
    config={"spark.driver.extraJavaOptions": sys.argv[3]},
)
table = str(folder / "table")
spark.range(3).selectExpr("id", "cast(id as string) as word").write.format("delta").save(table)
stream = spark.readStream.format("delta").load(table).selectExpr("id", "word").writeStream.format("delta")
stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start(
    str(folder / "copy")
).awaitTermination()
spark.sql(
    f"MERGE INTO delta.`{table}` AS t USING delta.`{folder / 'copy'}` AS s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET word = s.word WHEN NOT MATCHED THEN INSERT *"
)
spark.read.format("delta").load(table).where("id > 0").orderBy("id").collect()
spark.stop()
"""


def archive_path(folder: Path) -> Path:
    """Where the archive in `folder` is, or would be, of the Java and the Spark of this process.

    An update of either gives another name. Raises the `SetupError` of `require_java`.
    """
    import pyspark

    spark = Path(pyspark.__file__)
    # Not the line of the virtual machine: it also says how options such as JAVA_TOOL_OPTIONS let it compile.
    build = "\n".join(line for line in java_words(require_java()).splitlines() if " VM " not in line)
    of_java = _digest(build, str(spark.stat().st_mtime_ns), str(folder.absolute()))
    return folder / f"{_PREFIX}{_digest(str(spark))}-{of_java}.jsa"


def options(folder: Path) -> str:
    """The options with which a JVM starts from the archive in `folder`; empty where none was recorded."""
    path = archive_path(folder)
    return f"{_FILE_OPTION}={path} {_QUIET}" if path.is_file() and " " not in str(path) else ""


def record(folder: Path) -> bool:
    """Makes the archive in `folder`, which has the Delta jars, unless it is there. It takes half a minute and 250 MB.

    Returns whether it is there now. Where it cannot be made, one line in the log says why, and sessions start as they
    did. The archives of earlier versions in the same environment are removed.
    """
    path = archive_path(folder)
    if path.is_file():
        return True
    if " " in str(path):
        log.warning("%s has a space, so Spark cannot be told of an archive of classes there", folder)
        return False
    with tempfile.TemporaryDirectory(prefix=".record-", dir=folder) as scratch:
        written = Path(scratch) / path.name
        said = _run(
            Path(scratch), folder, f"-Xss16m -Duser.timezone=UTC {SHORT_RUN_JVM} -XX:ArchiveClassesAtExit={written}"
        )
        if not written.is_file():
            log.warning("no archive of classes, so Spark starts more slowly: %s", said)
            return False
        for old in folder.glob(f"{path.name[: path.name.rindex('-')]}-*.jsa"):
            old.unlink()
        written.replace(path)
    return True


def _run(scratch: Path, folder: Path, jvm_options: str) -> str:
    """What the recording session says of the archive, or else its last line."""
    # The JVM writes the archive after Python has ended.
    command = own_python("-c", _RECORD, str(scratch), str(folder), jvm_options)
    try:
        _, said = child.run(command, cwd=scratch, env=own_environment(), seconds_max=RECORD_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"recording took over {RECORD_SECONDS_MAX} s"
    lines = [line for line in said if "Skipping" not in line]
    last = lines[-1] if lines else "the session said nothing"
    return next((line for line in lines if "ArchiveClassesAtExit" in line), last)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def main(arguments: list[str] | None = None) -> int:
    """The command line: always 0 but for what keeps Spark from starting at all."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.spark.class_archive", description="Let local Spark sessions start faster."
    )
    parser.add_argument("--to", type=Path, required=True, help="folder of the Delta jars")
    folder: Path = parser.parse_args(arguments).to.absolute()
    try:
        made = record(folder)
    except SetupError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if made:
        sys.stderr.write(f"Spark's classes are in {archive_path(folder)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
