"""A session that somebody else configured without Delta ends with the option to add. Each kind of Spark in a process of
its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from support.programs import clean_environment

from broker_edge.errors import SetupError
from pipelines.spark import needs
from pipelines.spark.jars import delta_jars

PROGRAM = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
if sys.argv[1:]:
    builder = builder.config("spark.jars", ",".join(sys.argv[1:]))
spark = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()

from pipelines.jobs.process import run_job
from pipelines.settings import SparkSettings
from pipelines.spark.session import open_session

code = run_job(lambda: open_session("job", SparkSettings()).close())
print("runs", spark.range(3).count())
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("has_jars", "says"),
    [
        (False, "Spark has no Delta: give spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0"),
        (True, f"Spark runs without Delta's extension: give spark-submit --conf {needs.EXTENSION_CONF}="),
    ],
)
def test_a_spark_without_delta_is_one_sentence_and_a_session_of_others_goes_on(
    tmp_path: Path, has_jars: bool, says: str
) -> None:
    jars = delta_jars() if has_jars else []
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, jars)],
        env=clean_environment({"SPARK_LOCAL_IP": "127.0.0.1"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith(f"error: {says}")
    assert "is decided by a session that is active in this process" in done.stderr
    assert done.stdout.splitlines()[-1] == "runs 3"


class Session:
    """A session with Delta's jars and these settings."""

    def __init__(self, conf: dict[str, str]) -> None:
        self.conf = conf
        self.read = self

    def format(self, name: str) -> Session:
        return self

    def load(self, path: str) -> Session:
        raise AnalysisException("[DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG] …")


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({}, f"without Delta's extension: give spark-submit --conf spark.sql.extensions={needs.EXTENSION}"),
        ({needs.EXTENSION_CONF: "a.B"}, f"--conf spark.sql.extensions=a.B,{needs.EXTENSION}"),
        ({needs.EXTENSION_CONF: f"a.B,{needs.EXTENSION}"}, f"spark_catalog={needs.CATALOG}"),
    ],
)
def test_a_missing_setting_is_named_with_its_value(conf: dict[str, str], says: str) -> None:
    with pytest.raises(SetupError) as error:
        needs.require_delta(Session(conf))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_control_a_session_with_everything_passes() -> None:
    needs.require_delta(Session({needs.EXTENSION_CONF: needs.EXTENSION, needs.CATALOG_CONF: needs.CATALOG}))
