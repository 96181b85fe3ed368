"""Three real brokers with the settings that the chart renders for the nodes of a cluster, and a real etcd."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import yaml
from support.broker_process import BrokerProcess, binary
from support.chart import Pod, ask, one, pod, render
from support.following import until
from support.helm import CHART, MISSING, programs
from support.ports import free_port

from broker_edge.local_cluster.etcd import EtcdProcess


def test_one_node_of_a_cluster_is_ready_and_all_of_them_are_alive(tmp_path: Path) -> None:
    """So Services lead to the leader, and the kubelet leaves the followers alone."""
    assert programs(), MISSING
    documents = render(programs()[0], CHART / "ci" / "cluster.yaml")
    (container,) = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    alive, ready = (container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe"))
    nodes = [pod(documents, tmp_path, number) for number in range(3)]
    etcd = EtcdProcess(
        data_dir=tmp_path / "etcd", log_file=tmp_path / "etcd.log", client_port=free_port(), peer_port=free_port()
    )
    with ExitStack() as stack:
        stack.enter_context(etcd).start()
        for node in nodes:
            use(node, etcd.endpoint)
        names = ",".join(node.name for node in nodes)
        make = [str(binary()), "cluster", "init", f"--nodes={names}", f"--config={nodes[0].settings}"]
        environment = {"PATH": os.environ["PATH"], **nodes[0].environment}
        made = subprocess.run(make, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert made.returncode == 0, made.stderr
        brokers = [stack.enter_context(broker(node, tmp_path)) for node in nodes]
        for each in brokers:
            each.spawn()
        for each in brokers:
            each.wait_ready()
        until("one node is ready", lambda: [ask(each, ready) for each in brokers].count(200) == 1 or None)
        assert sorted(ask(each, ready) for each in brokers) == [200, 503, 503]
        assert [ask(each, alive) for each in brokers] == [200, 200, 200]


def use(node: Pod, endpoint: str) -> None:
    """This etcd, which speaks no TLS; all else stays as rendered, TLS between the nodes too."""
    settings = yaml.safe_load(node.settings.read_text())
    settings["cluster"]["etcd"] = {"endpoints": [endpoint]}
    node.settings.write_text(yaml.safe_dump(settings))


def broker(node: Pod, folder: Path) -> BrokerProcess:
    """At addresses of this machine instead of the names of pods."""
    mesh = f"127.0.0.1:{free_port()}"
    here = {"cluster.listen": mesh, "cluster.advertise.mesh": mesh, "listeners.mqtts.bind": "127.0.0.1:0"}
    settings = {**node.overrides, **here}
    return BrokerProcess(
        data_dir=Path(settings.pop("data_dir")),
        settings=settings,
        log_file=folder / f"{node.name}.log",
        command=[str(binary()), "--config", str(node.settings)],
    )
