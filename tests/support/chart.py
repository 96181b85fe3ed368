"""The Helm chart as a test sees it: rendered documents, and the files that a pod of it would find in its folders."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from broker_edge.authority import new_authority, new_certificate
from broker_edge.node_certificates import write_certificates
from support.broker_process import binary
from support.helm import CHART

RELEASE = "hw"
NAMESPACE = "plant"
Document = dict[str, Any]


def cases() -> list[Path]:
    return sorted((CHART / "ci").glob("*.yaml"))


def helm(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)


def render(program: Path, values: Path, *sets: str) -> list[Document]:
    done = helm(program, *_template(values, sets))
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def refused(program: Path, values: Path, *sets: str) -> str:
    done = helm(program, *_template(values, sets))
    assert done.returncode != 0, f"{sets} was rendered"
    return done.stderr


def _template(values: Path, sets: Sequence[str]) -> list[str]:
    more = [f"--set-json={pair}" if pair.endswith(("]", "}")) else f"--set={pair}" for pair in sets]
    return ["template", RELEASE, str(CHART), f"--namespace={NAMESPACE}", f"--values={values}", *more]


def one(documents: Sequence[Document], kind: str, name: str | None = None) -> Document:
    (found,) = (d for d in documents if d["kind"] == kind and name in (None, d["metadata"]["name"]))
    return found


def pods(documents: Sequence[Document]) -> Iterator[Document]:
    """The templates of the pods of all workloads."""
    for document in documents:
        if document["kind"] in ("StatefulSet", "Deployment"):
            yield document["spec"]["template"]["spec"]


@dataclass(frozen=True, slots=True)
class Pod:
    """Pod `number` of the StatefulSet, on this machine: the folders of the container are below `root`."""

    root: Path
    settings: Path
    environment: Mapping[str, str]
    passwords: Mapping[str, str]


def pod(documents: Sequence[Document], root: Path, number: int = 0) -> Pod:
    """Writes the files that the Secrets have, as docs/howto/kubernetes.md says."""
    stateful = one(documents, "StatefulSet")
    name = f"{stateful['metadata']['name']}-{number}"
    text = one(documents, "ConfigMap", stateful["metadata"]["name"])["data"]["broker.yaml"]
    passwords = _write_secrets(root / "etc", name)
    (root / "data").mkdir(exist_ok=True)
    settings = root / "etc" / "broker.yaml"
    settings.write_text(_here(text, root))
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    own = {"POD_NAME": name}
    told = {v["name"]: v["value"].replace("$(POD_NAME)", name) for v in container["env"] if "value" in v}
    environment = {key: _here(value, root) for key, value in {**own, **told}.items()}
    return Pod(root, settings, environment, passwords)


def _here(text: str, root: Path) -> str:
    return text.replace("/etc/headwater/", f"{root}/etc/").replace("/var/lib/headwater/", f"{root}/data/")


def _write_secrets(etc: Path, node: str) -> dict[str, str]:
    """The Secrets of docs/howto/kubernetes.md, and the passwords of the users in them."""
    authority = new_authority("devices")
    server = new_certificate(authority, "broker", hosts=["localhost", "127.0.0.1"])
    client = new_certificate(authority, "headwater")
    etc.mkdir()
    passwords = _users(etc / "users")
    _mount(etc / "auth", {"users": (etc / "users").read_bytes(), "acl": b"user scraper\ntopic readwrite #\n"})
    _mount(etc / "tls", {"tls.crt": server.cert, "tls.key": server.key, "ca.crt": authority.cert})
    _mount(etc / "cluster", {"cluster.secret": b"0123456789abcdef\n"})
    pems = {"ca.pem": authority.cert, "client.pem": client.cert, "client.key": client.key, "password": b"p\n"}
    _mount(etc / "etcd", pems)
    write_certificates(etc / "mesh", [node])
    # By `subPathExpr`, a container finds the files of its own node under these names.
    for end in ("pem", "key"):
        (etc / "mesh" / f"{node}.{end}").rename(etc / "mesh" / f"node.{end}")
    return passwords


def _users(file: Path) -> dict[str, str]:
    command = [str(binary()), "users", "generate", str(file)]
    done = subprocess.run(command, input="scraper\n", capture_output=True, text=True, timeout=60, check=True)
    return dict(line.split(":", 1) for line in done.stdout.splitlines())


def _mount(folder: Path, files: Mapping[str, bytes]) -> None:
    """As the kubelet mounts a Secret: names are links over `..data`, so that all change at once."""
    (folder / "..1").mkdir(parents=True)
    (folder / "..data").symlink_to("..1")
    for name, content in files.items():
        (folder / "..1" / name).write_bytes(content)
        (folder / "..1" / name).chmod(0o440)
        (folder / name).symlink_to(f"..data/{name}")
