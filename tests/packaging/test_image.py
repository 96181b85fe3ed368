"""The OCI image of the broker, unpacked by umoci and run as its configuration says, without a container engine."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.overlay import Machine, environment, machine
from support.programs import headwaterd, program, run

from supply.image import CONF, UID, build, libraries
from supply.packages import ROOT, PackageError, project_version

EPOCH = "1795000000"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", EPOCH)
        return build(Path(headwaterd()), tmp_path_factory.mktemp("image") / "image.tar")


@pytest.fixture
def unpacked(image: Path, tmp_path: Path) -> Path:
    """The bundle that a runtime gets: `config.json` and `rootfs`. umoci checks every digest on the way."""
    layout = tmp_path / "layout"
    with tarfile.open(image) as archive:
        archive.extractall(layout, filter="data")
    name = f"{layout}:{project_version()}"
    done = run(program("umoci", "umoci"), "unpack", "--image", name, str(tmp_path / "bundle"))
    assert done.code == 0, done.err
    return tmp_path / "bundle"


@pytest.fixture
def box() -> Iterator[Machine]:
    with machine() as box:
        yield box


def test_it_runs_as_its_user_and_its_probe_says_ready(unpacked: Path, box: Machine, image: Path) -> None:
    process: dict[str, Any] = json.loads((unpacked / "config.json").read_text())["process"]
    assert process["user"]["uid"] == process["user"]["gid"] == UID
    # The file system of the image is all that the program sees.
    subprocess.run(["cp", "-a", unpacked / "rootfs", box.lent], check=True)
    box.shell("mount --bind /run/lent/rootfs /mnt && mkdir -p /mnt/dev && mount --rbind /dev /mnt/dev")
    inside = ["chroot", f"--userspec={UID}:{UID}", "/mnt"]
    there = dict(pair.split("=", 1) for pair in process["env"])
    assert there["HEADWATER_DATA_DIR"] == "/var/lib/headwater/data"
    variables = [f"{name}={value}" for name, value in there.items()]
    with subprocess.Popen(
        box.command("env", "-i", *variables, "/usr/sbin/chroot", *inside[1:], *process["args"]),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("ready mqtt=")
            probe = health(image)
            assert box.run(*inside, *probe).out == "ready\n"
            program("mosquitto_pub", "mosquitto-clients")
            box.do("mosquitto_pub", "-q", "1", "-t", "a", "-m", "1")
            box.do("pkill", "-TERM", "-x", "headwaterd")
            _, err = broker.communicate(timeout=60)
            assert broker.returncode == 0, err
            ended = box.run(*inside, *probe)
            assert ended.code == 1, "a broker that is gone is not ready"
            assert "no answer" in ended.err
        finally:
            broker.kill()


def documents(image: Path) -> dict[str, Any]:
    """Every JSON document of the layout, by its path."""
    found: dict[str, Any] = {}
    with tarfile.open(image) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content is not None and (data := content.read()).startswith(b"{"):
                found[member.name] = json.loads(data)
    return found


def health(image: Path) -> list[str]:
    (config,) = (document for document in documents(image).values() if "rootfs" in document)
    kind, *command = config["config"]["Healthcheck"]["Test"]
    assert kind == "CMD", "there is no shell"
    return [str(word) for word in command]


def test_the_image_has_the_broker_and_nothing_else(unpacked: Path) -> None:
    root = unpacked / "rootfs"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    linked = {path.lstrip("/") for path in libraries(Path(headwaterd()))}
    assert files == {"etc/group", "etc/passwd", CONF[1:], "usr/bin/headwaterd"} | linked
    assert (root / "var/lib/headwater").stat().st_mode & 0o777 == 0o700
    assert (root / "var/lib/headwater").stat().st_uid == UID


def test_a_static_binary_is_taken_alone(tmp_path: Path) -> None:
    """A program in C, as a static build of the broker takes minutes."""
    (tmp_path / "c.c").write_text("int main(void) { return 0; }\n")
    cc = program("cc", "build-essential")
    subprocess.run([cc, "-static", "-o", tmp_path / "static", tmp_path / "c.c"], check=True)
    with tarfile.open(build(tmp_path / "static", tmp_path / "image.tar")) as archive:
        (blob,) = (m for m in archive.getmembers() if m.name.startswith("blobs/") and m.size > 100_000)
        with tarfile.open(fileobj=archive.extractfile(blob)) as layer:
            names = layer.getnames()
    assert "usr/bin/headwaterd" in names
    assert not [name for name in names if ".so" in name]


def test_the_same_binary_makes_the_same_image(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    assert build(Path(headwaterd()), tmp_path / "again.tar").read_bytes() == image.read_bytes()


def test_every_image_and_the_chart_have_the_same_user() -> None:
    deploy = ROOT / "deploy"
    assert f"\nUSER {UID}\n" in (deploy / "Dockerfile").read_text()
    users = re.findall(r"runAsUser: (\d+)", (deploy / "helm" / "headwater" / "values.yaml").read_text())
    assert set(users) == {str(UID)}


def test_a_program_whose_libraries_are_not_here_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "headwaterd"
    path.write_bytes(b"\x7fELF\x02\x01")
    with pytest.raises(PackageError, match="build it static"):
        libraries(path)
