"""Who decides about the Spark session, and what is added to a session on a cluster: never a path of this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_edge.errors import SettingsError, SetupError
from pipelines.settings import SparkSettings
from pipelines.spark import session
from pipelines.spark.decision import Decider, Surroundings, decide, read_defaults
from pipelines.spark.worker_python import is_local_python, worker_python

CLUSTER = "spark://head:7077"
CONNECT = "sc://head:15002"
EVERYTHING = {
    "DATABRICKS_RUNTIME_VERSION": "19.0",
    "PYSPARK_GATEWAY_PORT": "4040",
    "SPARK_REMOTE": CONNECT,
    "SPARK_MASTER": CLUSTER,
}
ORDER = (
    ("DATABRICKS_RUNTIME_VERSION", Decider.DATABRICKS),
    ("PYSPARK_GATEWAY_PORT", Decider.SUBMIT),
    ("SPARK_REMOTE", Decider.REMOTE),
    (None, Decider.SETTINGS),
    ("SPARK_MASTER", Decider.DEFAULTS),
    (None, Decider.NOBODY),
)


def test_the_first_that_says_something_decides() -> None:
    environment = dict(EVERYTHING)
    settings = SparkSettings(master="yarn")
    active = Surroundings(environment, {"spark.master": "k8s://x"}, has_active_session=True)
    assert decide(active, settings).by is Decider.ACTIVE
    for name, decider in ORDER:
        found = decide(Surroundings(environment, {}), settings)
        assert found.by is decider
        assert decider.value in found.sentence
        if name is not None:
            del environment[name]
        else:
            settings = SparkSettings()


@pytest.mark.parametrize(
    ("settings", "defaults", "by", "master", "remote"),
    [
        (SparkSettings(), {}, Decider.NOBODY, "local[2,4]", None),
        (SparkSettings(cores="local[8]"), {}, Decider.NOBODY, "local[8]", None),
        (SparkSettings(master="local[*]"), {"spark.master": "yarn"}, Decider.NOBODY, "local[*]", None),
        (SparkSettings(cores=CLUSTER), {}, Decider.SETTINGS, CLUSTER, None),
        (SparkSettings(master="local-cluster[2,1,1024]"), {}, Decider.SETTINGS, "local-cluster[2,1,1024]", None),
        (SparkSettings(master=CONNECT), {}, Decider.SETTINGS, None, CONNECT),
        (SparkSettings(), {"spark.master": "yarn"}, Decider.DEFAULTS, "yarn", None),
        (SparkSettings(), {"spark.remote": CONNECT, "spark.master": "yarn"}, Decider.DEFAULTS, None, CONNECT),
    ],
)
def test_settings_and_defaults_name_the_master(
    settings: SparkSettings, defaults: dict[str, str], by: Decider, master: str | None, remote: str | None
) -> None:
    found = decide(Surroundings({}, defaults), settings)
    assert (found.by, found.master, found.remote) == (by, master, remote)
    assert (remote or master or "") in found.sentence
    assert found.is_local == (by is Decider.NOBODY)


def test_cores_and_master_that_name_two_clusters_are_one_sentence() -> None:
    with pytest.raises(SettingsError, match=r"name the cluster in spark\.master"):
        decide(Surroundings({}, {}), SparkSettings(cores=CLUSTER, master="yarn"))


def test_only_sessions_of_others_are_left_running() -> None:
    shared = {by for by in Decider if decision_of(by).is_shared}
    assert shared == {Decider.ACTIVE, Decider.DATABRICKS}


def decision_of(by: Decider) -> session.Decision:
    return session.Decision(by)


def test_the_defaults_file_is_read_as_spark_reads_it(tmp_path: Path) -> None:
    text = "# spark.master no\n\nspark.master   spark://a:7077\nspark.sql.extensions=a,b\nspark.x: y z \n"
    (tmp_path / "spark-defaults.conf").write_text(text)
    found = {"spark.master": "spark://a:7077", "spark.sql.extensions": "a,b", "spark.x": "y z"}
    assert read_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == found
    home = tmp_path / "home"
    home.mkdir()
    (home / "conf").symlink_to(tmp_path)
    assert read_defaults({"SPARK_HOME": str(home)}) == found
    assert read_defaults({}) == read_defaults({"SPARK_CONF_DIR": str(home)}) == {}


def test_unreadable_defaults_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").mkdir()
    with pytest.raises(SettingsError, match=r"cannot read .*spark-defaults"):
        read_defaults({"SPARK_CONF_DIR": str(tmp_path)})


def test_nothing_that_is_sent_to_a_cluster_names_a_path_or_an_address_of_this_machine() -> None:
    settings = SparkSettings(packages=["io.delta:delta-spark_4.2_2.13:4.4.0"])
    added = session.cluster_conf(settings, {}, {}, starts_jvm=True)
    assert added["spark.python.daemon.module"] == "pipelines.spark.worker_daemon"
    assert added["spark.jars.packages"] == settings.packages[0]
    assert not [value for value in added.values() if re.search(r"/|127\.0\.0\.1|localhost", value)]
    assert "spark.driver.host" not in added


def test_control_a_local_session_has_paths_and_the_loopback_address() -> None:
    found = session._local_conf([Path("a.jar")], SparkSettings())
    assert "/" in found["spark.jars"]
    assert found["spark.driver.host"] == "127.0.0.1"


def test_what_the_cluster_has_set_is_not_changed() -> None:
    said = {"spark.sql.extensions": "mine", "spark.scheduler.mode": "FIFO", "spark.x": "theirs"}
    added = session.cluster_conf(SparkSettings(), {"spark.x": "ours", "spark.y": "ours"}, said, starts_jvm=False)
    assert not set(said) & set(added)
    assert added["spark.y"] == "ours"
    # The JVM of spark-submit runs already.
    assert "spark.driver.memory" not in added


def test_the_interpreter_of_a_local_session_is_forgotten_before_a_cluster_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert is_local_python(worker_python())
    monkeypatch.setenv("PYSPARK_PYTHON", worker_python())
    session._forget_local_python()
    assert session._PYTHON_ENV not in session.os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "./headwater/bin/python")
    session._forget_local_python()
    assert session.os.environ["PYSPARK_PYTHON"] == "./headwater/bin/python"


def test_an_interpreter_that_the_driver_lacks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match="unpack the archive of `headwater spark pack` there"):
        session._require_python_here("./headwater/bin/python")
    program = tmp_path / "headwater" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    session._require_python_here("./headwater/bin/python")
    session._require_python_here("python3")
