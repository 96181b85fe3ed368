"""The Helm chart: valid for Helm and for Kubernetes, its settings valid for the programs that read them, wrong values
refused with a sentence, and its probes answered by a real broker with the rendered settings.

Each test runs with the Helm of the lock and with the one on the path, where there is one.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from support.broker_process import BrokerProcess, binary
from support.chart import Pod, ask, cases, helm, one, pod, pods, refused, render
from support.helm import CHART, MISSING, ROOT, main, programs

from pipelines.catalogue import JOB_NAMES, JOBS
from pipelines.settings import load_settings

VERSIONS = ("1.31", "1.34")
CI = CHART / "ci"
BROKERS = ("brokers", "cluster", "one")
LOSSY = ["broker.persistence.enabled=false", "broker.persistence.acceptLoss=true"]
ANYBODY = ["broker.auth.existingSecret=", "broker.auth.allowAnonymous=true"]


@pytest.fixture(params=programs() or [None], ids=lambda program: str(program and program.parent.name))
def program(request: pytest.FixtureRequest) -> Path:
    assert request.param is not None, MISSING
    return Path(request.param)


def case(name: str) -> Path:
    return CI / f"{name}.yaml"


@pytest.mark.parametrize("values", cases(), ids=lambda path: path.stem)
def test_helm_finds_nothing_to_complain_about(program: Path, values: Path) -> None:
    done = helm(program, "lint", "--strict", str(CHART), f"--values={values}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", cases(), ids=lambda path: path.stem)
def test_every_object_is_valid_by_the_schemas_of_kubernetes(program: Path, values: Path) -> None:
    for document in render(program, values):
        if document["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def test_control_a_wrong_field_is_refused(program: Path) -> None:
    wrong = one(render(program, case("one")), "StatefulSet")
    wrong["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", BROKERS)
def test_the_settings_of_a_broker_are_valid_for_it(program: Path, tmp_path: Path, name: str) -> None:
    done = check(pod(render(program, case(name)), tmp_path, 0))
    # Behind it there may be lines about settings whose meaning has changed since an older version.
    assert done.stdout.startswith("the settings are valid\n"), done.stderr
    assert done.returncode == 0


def test_control_a_wrong_setting_is_refused_by_the_broker(program: Path, tmp_path: Path) -> None:
    done = check(pod(render(program, case("one"), "broker.settings.log.sync=sometimes"), tmp_path))
    assert done.returncode == 5
    assert "sometimes" in done.stderr


def check(of: Pod) -> subprocess.CompletedProcess[str]:
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("HEADWATER")}, **of.environment}
    command = [str(binary()), "--check", "--config", str(of.settings)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_nodes_of_a_cluster_have_the_names_of_their_pods(program: Path, tmp_path: Path) -> None:
    documents = render(program, case("cluster"))
    environment = pod(documents, tmp_path, 2).environment
    host = "hw-headwater-2.hw-headwater-nodes.plant.svc.cluster.local"
    assert environment["HEADWATER_CLUSTER__NODE"] == "hw-headwater-2"
    assert environment["HEADWATER_CLUSTER__ADVERTISE__MESH"] == f"{host}:7400"
    assert environment["HEADWATER_CLUSTER__ADVERTISE__FLIGHT"] == f"{host}:8815"
    assert environment["HEADWATER_CLUSTER__ADVERTISE__MQTT"] == "hw-headwater-2.example.com:8883"
    nodes = one(documents, "Service", "hw-headwater-nodes")["spec"]
    assert nodes["publishNotReadyAddresses"] is True
    assert nodes["clusterIP"] == "None"
    assert one(documents, "StatefulSet")["spec"]["serviceName"] == "hw-headwater-nodes"


@pytest.mark.parametrize("name", ["cluster", "jobs"])
def test_the_settings_of_the_jobs_are_valid_for_them(program: Path, tmp_path: Path, name: str) -> None:
    documents = render(program, case(name))
    (found,) = (d for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["name"].endswith("-jobs"))
    (tmp_path / "pipelines.yaml").write_text(found["data"]["pipelines.yaml"])
    settings = load_settings(tmp_path / "pipelines.yaml")
    assert settings.access.password == "file:/etc/headwater/broker/password"
    addresses = [str(server) for server in settings.servers]
    assert len(addresses) == {"cluster": 1, "jobs": 2}[name]


def test_the_jobs_of_a_group_are_arguments_that_the_program_knows(program: Path) -> None:
    schema = (CHART / "values.schema.json").read_text()
    assert set(JOB_NAMES) == set(JOBS)
    for name in JOB_NAMES:
        assert f'"{name}"' in schema, f"values.schema.json does not know the job {name}"
    deployment = one(render(program, case("jobs")), "Deployment", "hw-headwater-jobs-control")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = ["python3", "headwater_job.py", "jobs", "status", "actions"]
    assert container["args"] == [*words, "--config=/etc/headwater/settings/pipelines.yaml"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_a_driver_with_executors_has_the_words_of_the_example(program: Path) -> None:
    """deploy/spark/kubernetes/telemetry.yaml is tested by itself; what both say is the same."""
    example = list(yaml.safe_load_all((ROOT / "deploy/spark/kubernetes/telemetry.yaml").read_text()))
    said = one(example, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    options = [word for word in said if word.startswith("--") and "--config" not in word]
    named_otherwise = re.compile(r"--conf=[^=]*\.(image|serviceAccountName|driver\.host)=")
    deployment = one(render(program, case("cluster")), "Deployment", "hw-headwater-jobs-telemetry")
    words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert len(options) > 15
    assert [word for word in options if word not in words and not named_otherwise.match(word)] == []
    service = one(render(program, case("cluster")), "Service", "hw-headwater-jobs-telemetry")
    assert f"--conf=spark.driver.host={service['metadata']['name']}" in words
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("values", cases(), ids=lambda path: path.stem)
def test_pods_may_do_little_and_have_no_secret_of_the_chart(program: Path, values: Path) -> None:
    documents = render(program, values)
    assert not [document for document in documents if document["kind"] == "Secret"]
    for spec in pods(documents):
        assert spec["enableServiceLinks"] is False
        assert spec["terminationGracePeriodSeconds"] >= 30
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]


@pytest.mark.parametrize("values", cases(), ids=lambda path: path.stem)
def test_data_is_on_claims_and_only_scratch_is_not(program: Path, values: Path) -> None:
    documents = render(program, values)
    scratch = {v["name"] for spec in pods(documents) for v in spec["volumes"] if "emptyDir" in v}
    assert scratch <= {"tmp"}
    for document in documents:
        if document["kind"] == "StatefulSet":
            (claim,) = document["spec"]["volumeClaimTemplates"]
            assert claim["metadata"]["name"] == "data"
            kept = document["spec"]["persistentVolumeClaimRetentionPolicy"]
            assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}
            (container,) = document["spec"]["template"]["spec"]["containers"]
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts["data"] == "/var/lib/headwater"


@pytest.mark.parametrize("name", BROKERS)
def test_services_lead_to_ports_and_admin_stays_inside(program: Path, name: str) -> None:
    documents = render(program, case(name))
    (container,) = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    for document in documents:
        if document["kind"] != "Service" or "jobs" in document["metadata"]["name"]:
            continue
        spec = document["spec"]
        assert {port["targetPort"] for port in spec["ports"]} <= ports
        if "admin" in {port["targetPort"] for port in spec["ports"]}:
            assert spec["type"] == "ClusterIP"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "admin"


def test_each_broker_alone_has_services_of_its_own(program: Path) -> None:
    """A session and an offset are of one broker: nothing may spread clients over several."""
    documents = render(program, case("brokers"))
    clients = [
        d for d in documents if d["kind"] == "Service" and not d["metadata"]["name"].endswith(("-nodes", "-admin"))
    ]
    selected = {d["metadata"]["name"]: d["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] for d in clients}
    names = [f"hw-headwater-{number}" for number in range(3)]
    assert selected == {**{n: n for n in names}, **{f"{n}-flight": n for n in names}}


def test_a_cluster_is_restarted_by_hand_and_its_leader_is_not_evicted(program: Path) -> None:
    documents = render(program, case("cluster"))
    spec = one(documents, "StatefulSet")["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["podManagementPolicy"] == "Parallel"
    assert one(documents, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    spread = spec["template"]["spec"]["topologySpreadConstraints"][0]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")


FILES = {
    "headwater.rules.yml": "deploy/prometheus/headwater.rules.yml",
    "broker.schema.json": "conf/broker.schema.json",
    "pipelines.yaml": "conf/pipelines.yaml",
}


def test_files_of_the_chart_are_those_of_the_repository_also_in_the_package(program: Path, tmp_path: Path) -> None:
    assert {path.name for path in (CHART / "files").iterdir()} == set(FILES)
    source = (ROOT / FILES["headwater.rules.yml"]).read_text()
    rule = one(render(program, case("brokers")), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(source)
    done = helm(program, "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("headwater-*.tgz"))) as archive:
        for name, origin in FILES.items():
            member = archive.extractfile(f"headwater/files/{name}")
            assert member is not None
            assert member.read() == (ROOT / origin).read_bytes()
        assert not [name for name in archive.getnames() if "/ci/" in name]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("broker.replicsa=2", "replicsa"),
        ("broker.replicas=two", "replicas"),
        ("brokers.replicas=2", "brokers"),
        ("broker.listeners.mqtt.port=0", "port"),
        ("broker.service.type=Loadbalancer", "service/type"),
        ("broker.persistence.size=20", "size"),
        ('broker.persistence.accessModes=["ReadWriteMany"]', "accessModes"),
        ("broker.terminationGracePeriodSeconds=5", "terminationGracePeriodSeconds"),
        ("broker.podSecurityContext.runAsUser=0", "runAsUser"),
        ('cluster.etcd.endpoints=["etcd:2379"]', "endpoints"),
        ("image.tag=a:b", "tag"),
        ("jobs.storage=tables", "storage"),
        ('jobs.groups={"a": {"run": ["telemtry"]}}', "run"),
        ("jobs.access.password=secret", "password"),
    ],
)
def test_a_value_that_the_chart_does_not_know_is_refused_by_name(program: Path, value: str, named: str) -> None:
    said = refused(program, case("one"), value)
    assert named in said.replace(".", "/"), said


@pytest.mark.parametrize(
    ("name", "sets", "sentence"),
    [
        ("one", ["broker.enabled=false"], "there is nothing to install"),
        ("one", ["image.repository="], "image.repository is empty: build the image of the broker"),
        ("one", ["broker.auth.existingSecret="], "broker.auth: the listeners are reachable from other pods"),
        ("one", ["broker.persistence.enabled=false"], "write broker.persistence.acceptLoss: true if"),
        ("one", ["broker.settings.data_dir=/tmp"], "broker.settings.data_dir is set: the chart decides it"),
        ("one", ["broker.settings.log.snyc=always"], "broker.settings.log.snyc is not a setting of the broker"),
        ("one", ["broker.settings.listeners.ws.bind=0.0.0.0:80"], "use broker.address and broker.listeners.ws"),
        ("one", ["broker.settings.listeners.admin.tls.client_auth=required"], "probes show no certificate"),
        ("one", [*ANYBODY, "broker.auth.aclKey=acl"], "broker.auth.aclKey is set without broker.auth.existingSecret"),
        ("one", ["broker.listeners.mqtts.enabled=true"], "broker.listeners.mqtts is enabled without a certificate"),
        ("one", ["broker.listeners.mqtt.enabled=false"], "none of mqtt, mqtts, ws and wss is enabled"),
        ("one", ["broker.listeners.mqtt.port=8080"], "have one port, 8080"),
        ("one", ["metrics.serviceMonitor.enabled=true"], "/metrics needs a user"),
        ("brokers", ["metrics.serviceMonitor.tlsConfig=null"], "metrics.serviceMonitor.tlsConfig is empty"),
        ("cluster", ["broker.replicas=2"], "broker.replicas is 2: a cluster has 3 nodes"),
        ("cluster", ["broker.enabled=false"], "the nodes of a cluster are brokers"),
        ("cluster", LOSSY, "broker.persistence.enabled is false: a node answers for what is on its disk"),
        ("cluster", ["cluster.etcd.endpoints=[]"], "cluster.etcd.endpoints is empty"),
        ("cluster", ["cluster.existingSecret="], "cluster.existingSecret is empty"),
        ("cluster", ["cluster.tls.existingSecret="], "cluster.tls.existingSecret is empty"),
        ("cluster", ['cluster.etcd.endpoints=["http://etcd:2379"]'], "http://etcd:2379 without TLS: write https"),
        ("cluster", ["cluster.etcd.existingSecret="], "needs the authority of its certificate"),
        ("cluster", ["cluster.etcd.passwordKey="], "cluster.etcd.user is set without cluster.etcd.passwordKey"),
        ("cluster", ["jobs.access.existingSecret="], "the brokers have users: name the Secret"),
        ("jobs", ["jobs.image.repository="], "jobs.image.repository is empty"),
        ("jobs", ["jobs.storage="], "jobs.storage is empty: tables and checkpoints would go with their pod"),
        ("jobs", ["jobs.claim.existingClaim="], "jobs.claim.existingClaim is empty"),
        ("jobs", ["jobs.storage=/tmp/tables"], "not below jobs.claim.mountPath"),
        ("jobs", ["jobs.settings.servers=null"], "jobs.settings.servers is empty"),
        ("jobs", ["jobs.settings.telemetry.triger=1s"], "jobs.settings.telemetry.triger is not a setting of the jobs"),
        ("jobs", ["jobs.access.user="], "jobs.access.user is empty"),
        ("jobs", ['jobs.groups.more={"run": ["actions"]}'], "actions is in control and in more"),
        ("jobs", [f"jobs.groups.{group}.enabled=false" for group in ("telemetry", "control", "tables")], "no group"),
    ],
)  # fmt: skip
def test_a_wrong_combination_is_refused_with_a_sentence(
    program: Path, name: str, sets: list[str], sentence: str
) -> None:
    assert sentence in refused(program, case(name), *sets)


def test_every_sentence_of_the_chart_has_a_test() -> None:
    sentences = (CHART / "templates" / "_checks.tpl").read_text().count("fail ")
    (mark,) = test_a_wrong_combination_is_refused_with_a_sentence.pytestmark  # type: ignore[attr-defined]
    assert len(mark.args[1]) == sentences


def test_a_machine_without_helm_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.helm.programs", list)
    monkeypatch.setattr("sys.argv", ["helm.py", "package"])
    assert main() == f"make: {MISSING}"


def test_what_was_accepted_by_name_is_rendered(program: Path) -> None:
    documents = render(program, case("one"), *LOSSY, *ANYBODY)
    assert "allow_anonymous: true" in one(documents, "ConfigMap")["data"]["broker.yaml"]
    assert "volumeClaimTemplates" not in one(documents, "StatefulSet")["spec"]


@pytest.mark.parametrize("name", ["one", "brokers"])
def test_a_broker_with_these_settings_answers_the_probes(program: Path, tmp_path: Path, name: str) -> None:
    documents = render(program, case(name))
    (container,) = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    of = pod(documents, tmp_path)
    others = ("mqtts", "ws", "wss") if name == "brokers" else ()
    any_port = {f"listeners.{listener}.bind": "127.0.0.1:0" for listener in others}
    command = [str(binary()), "--config", str(of.settings)]
    log = tmp_path / "log"
    with BrokerProcess(
        data_dir=tmp_path / of.name / "data", settings=any_port, log_file=log, command=command
    ) as broker:
        broker.start()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert ask(broker, container[probe]["httpGet"]) == 200
        scrape = {"path": "/metrics", "scheme": container["livenessProbe"]["httpGet"]["scheme"]}
        assert ask(broker, scrape) == 401
        assert ask(broker, scrape, user="scraper", password=of.passwords["scraper"]) == 200
