"""The Kubernetes example: valid by the published schemas, its parts fit together, its entry point starts executors."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pipelines.settings import load_settings
from pipelines.spark.needs import CATALOG, CATALOG_CONF, EXTENSION, EXTENSION_CONF

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "spark" / "kubernetes"
NATIVE = ("rbac.yaml", "settings.yaml", "telemetry.yaml")
VERSIONS = ("1.31", "1.34")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def one(name: str, kind: str) -> dict[str, Any]:
    (found,) = (document for document in documents(name) if document["kind"] == kind)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NATIVE)
def test_a_file_is_valid_by_the_schemas_of_kubernetes(name: str, version: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, version, strict=True)


def test_control_a_wrong_field_is_refused() -> None:
    wrong = one("telemetry.yaml", "Deployment")
    wrong["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_settings_are_settings_and_hold_no_secret(tmp_path: Path) -> None:
    text = one("settings.yaml", "ConfigMap")["data"]["pipelines.yaml"]
    (tmp_path / "pipelines.yaml").write_text(text)
    settings = load_settings(tmp_path / "pipelines.yaml")
    assert settings.access.password == "file:/etc/headwater/broker/password"
    assert not [name for name in NATIVE for document in documents(name) if document["kind"] == "Secret"]


def test_executors_and_driver_find_the_secret_where_the_settings_name_it() -> None:
    pod = one("telemetry.yaml", "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    conf = conf_of(container["args"])
    place = "/etc/headwater/broker"
    assert conf["spark.kubernetes.executor.secrets.headwater-broker"] == place
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["broker"] == place
    assert place in one("settings.yaml", "ConfigMap")["data"]["pipelines.yaml"]
    secrets = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
    assert secrets["broker"] == "headwater-broker"


def test_the_driver_is_reached_at_its_service_and_runs_as_an_account_that_has_rights() -> None:
    pod = one("telemetry.yaml", "Deployment")["spec"]["template"]
    conf = conf_of(pod["spec"]["containers"][0]["args"])
    service = one("telemetry.yaml", "Service")
    assert conf["spark.driver.host"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"]: str(port["port"]) for port in service["spec"]["ports"]}
    assert ports == {"driver": conf["spark.driver.port"], "blocks": conf["spark.driver.blockManager.port"]}
    accounts = {document["metadata"]["name"] for document in documents("rbac.yaml") if "Account" in document["kind"]}
    bound = one("rbac.yaml", "RoleBinding")
    assert bound["subjects"][0]["name"] == pod["spec"]["serviceAccountName"]
    assert accounts == {pod["spec"]["serviceAccountName"], conf[EXECUTORS]}


EXECUTORS = "spark.kubernetes.authenticate.executor.serviceAccountName"


def test_both_forms_start_the_same_job_with_delta() -> None:
    container = one("telemetry.yaml", "Deployment")["spec"]["template"]["spec"]["containers"][0]
    application = one("sparkapplication.yaml", "SparkApplication")["spec"]
    conf = conf_of(container["args"])
    for known in (conf, application["sparkConf"]):
        assert known[EXTENSION_CONF] == EXTENSION
        assert known[CATALOG_CONF] == CATALOG
    assert application["image"] == container["image"] == conf["spark.kubernetes.container.image"]
    job = container["args"].index("headwater_job.py")
    assert container["args"][job + 1 :] == application["arguments"]
    assert application["mainApplicationFile"].endswith("/headwater_job.py")
    assert application["driver"]["serviceAccount"] == "headwater-driver"
    assert application["executor"]["volumeMounts"] == application["driver"]["volumeMounts"]
    assert [f"--packages={','.join(application['deps']['packages'])}"] == [
        word for word in container["args"] if word.startswith("--packages")
    ]


def conf_of(arguments: list[str]) -> dict[str, str]:
    def pairs() -> Iterator[tuple[str, str]]:
        for word in arguments:
            if word.startswith("--conf="):
                key, _, value = word.removeprefix("--conf=").partition("=")
                yield key, value

    return dict(pairs())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Programs that print their arguments, one a line."""
    for name in ("bin/java", "bin/spark-submit"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
        program.chmod(0o755)
    return tmp_path


def run(home: Path, *arguments: str, **more: str) -> list[str]:
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": str(home), "SPARK_HOME": str(home), **more}
    command = ["sh", str(FOLDER / "entrypoint.sh"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else [done.stderr]


def test_the_entry_point_starts_an_executor_with_what_spark_says(home: Path) -> None:
    said = {
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Da=b c",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }
    program, *words = run(home, "executor", **said)
    assert program == str(home / "bin" / "java")
    assert words[:2] == ["-Dspark.driver.port=7078", "-Da=b c"]
    assert "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend" in words
    assert words[words.index("--executor-id") + 1] == "7"
    del said["SPARK_DRIVER_URL"]
    assert "SPARK_DRIVER_URL" in run(home, "executor", **said)[0]


def test_the_entry_point_starts_a_driver_and_other_programs(home: Path) -> None:
    program, *words = run(home, "driver", "--class", "x", SPARK_DRIVER_BIND_ADDRESS="10.0.0.8")
    assert program == str(home / "bin" / "spark-submit")
    assert words == ["--conf", "spark.driver.bindAddress=10.0.0.8", "--deploy-mode", "client", "--class", "x"]
    assert run(home, "echo", "a b") == ["a b"]
