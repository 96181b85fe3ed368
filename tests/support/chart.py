"""The Helm chart as a test sees it: rendered documents, and the files that a pod of it would find in its folders."""

from __future__ import annotations

import base64
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from broker_edge.authority import new_authority, new_certificate
from broker_edge.node_certificates import write_certificates
from support.broker_process import BrokerProcess, binary
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
    """A pod of the StatefulSet, on this machine: the folders of its container are below a folder of the test."""

    name: str
    settings: Path
    environment: Mapping[str, str]
    passwords: Mapping[str, str]

    @property
    def overrides(self) -> dict[str, str]:
        """The environment as settings by their names."""
        named = {key.removeprefix("HEADWATER_"): value for key, value in self.environment.items()}
        return {key.lower().replace("__", "."): value for key, value in named.items() if key != "POD_NAME"}


def pod(documents: Sequence[Document], root: Path, number: int = 0) -> Pod:
    """Writes the files that the Secrets have, as docs/howto/kubernetes.md says, and the settings of one pod."""
    stateful = one(documents, "StatefulSet")
    full = stateful["metadata"]["name"]
    name = f"{full}-{number}"
    passwords = _write_secrets(root / "etc", [f"{full}-{node}" for node in range(3)])
    (root / name).mkdir(exist_ok=True)
    settings = root / f"{name}.yaml"
    settings.write_text(_here(one(documents, "ConfigMap", full)["data"]["broker.yaml"], root, name))
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    own = {"POD_NAME": name}
    told = {v["name"]: v["value"].replace("$(POD_NAME)", name) for v in container["env"] if "value" in v}
    environment = {key: _here(value, root, name) for key, value in {**own, **told}.items()}
    return Pod(name, settings, environment, passwords)


def _here(text: str, root: Path, name: str) -> str:
    """By `subPathExpr` a container has the files of its own node as node.pem and node.key."""
    text = text.replace("/etc/headwater/mesh/node.", f"{root}/etc/mesh/{name}.")
    return text.replace("/etc/headwater/", f"{root}/etc/").replace("/var/lib/headwater/", f"{root}/{name}/")


def _write_secrets(etc: Path, nodes: Sequence[str]) -> dict[str, str]:
    """Writes the Secrets, if they are not there, and returns the passwords of the users in them."""
    passwords = etc / "passwords"
    if not etc.exists():
        authority = new_authority("devices")
        server = new_certificate(authority, "broker", hosts=["localhost", "127.0.0.1"])
        client = new_certificate(authority, "headwater")
        etc.mkdir()
        passwords.write_text(_users(etc / "users"))
        _mount(etc / "auth", {"users": (etc / "users").read_bytes(), "acl": b"user scraper\ntopic readwrite #\n"})
        _mount(etc / "tls", {"tls.crt": server.cert, "tls.key": server.key, "ca.crt": authority.cert})
        _mount(etc / "cluster", {"cluster.secret": b"0123456789abcdef\n"})
        pems = {"ca.pem": authority.cert, "client.pem": client.cert, "client.key": client.key, "password": b"p\n"}
        _mount(etc / "etcd", pems)
        write_certificates(etc / "mesh", nodes)
    return dict(line.split(":", 1) for line in passwords.read_text().splitlines())


def _users(file: Path) -> str:
    """The passwords, as `headwaterd users generate` prints them."""
    command = [str(binary()), "users", "generate", str(file)]
    done = subprocess.run(command, input="scraper\n", capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def _mount(folder: Path, files: Mapping[str, bytes]) -> None:
    """As the kubelet mounts a Secret: names are links over `..data`, so that all change at once."""
    (folder / "..1").mkdir(parents=True)
    (folder / "..data").symlink_to("..1")
    for name, content in files.items():
        (folder / "..1" / name).write_bytes(content)
        (folder / "..1" / name).chmod(0o440)
        (folder / name).symlink_to(f"..data/{name}")


def ask(broker: BrokerProcess, get: Document, *, user: str = "", password: str = "") -> int:
    """The status of an answer of admin HTTP. As the kubelet, it does not check the certificate."""
    host, port = broker.admin
    request = urllib.request.Request(f"{get['scheme'].lower()}://{host}:{port}{get['path']}")
    if user:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
    context = None
    if get["scheme"] == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
