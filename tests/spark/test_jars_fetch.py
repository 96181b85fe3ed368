"""Delta's jars come from any Maven repository, and only those whose sha256 is in `jars.sha256` are kept."""

from __future__ import annotations

import functools
import http.server
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_edge.errors import SetupError
from pipelines.spark import jars
from pipelines.spark.jars import JAR_NAMES, default_folder, fetch

ROOT = Path(__file__).parents[2]
_POM = """<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId><artifactId>{artifact}</artifactId>
<version>{version}</version><dependencies>{dependencies}</dependencies></project>"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address and the folder of a Maven repository with the real jars."""
    root = tmp_path / "repository"
    coordinates = []
    for name in JAR_NAMES:
        group, _, rest = name.removesuffix(".jar").partition("_")
        artifact, _, version = rest.rpartition("-")
        coordinates.append((group, artifact, version))
    first, *others = coordinates
    for one in coordinates:
        group, artifact, version = one
        folder = root / group.replace(".", "/") / artifact / version
        folder.mkdir(parents=True)
        shutil.copyfile(default_folder() / f"{group}_{artifact}-{version}.jar", folder / f"{artifact}-{version}.jar")
        wanted = "".join(
            f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version></dependency>"
            for g, a, v in (others if one == first else [])
        )
        pom = _POM.format(group=group, artifact=artifact, version=version, dependencies=wanted)
        (folder / f"{artifact}-{version}.pom").write_text(pom)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", root
    server.shutdown()
    thread.join()
    server.server_close()


def test_jars_are_fetched_from_a_repository_and_a_tampered_one_is_refused_by_name(
    repository: tuple[str, Path], tmp_path: Path
) -> None:
    address, root = repository
    assert fetch(tmp_path / "good", repository=address)
    assert sorted(path.name for path in (tmp_path / "good").iterdir()) == sorted(JAR_NAMES)
    (storage,) = root.rglob("delta-storage-*.jar")
    with storage.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(
        SetupError, match=r"^io.delta_delta-storage-\S+ has sha256 [0-9a-f]{64}, not [0-9a-f]{64}: it was"
    ):
        fetch(tmp_path / "bad", repository=address)
    assert list((tmp_path / "bad").iterdir()) == [], "nothing of it is kept"


def test_a_jar_that_somebody_changed_later_is_removed(tmp_path: Path) -> None:
    for name in JAR_NAMES:
        shutil.copyfile(default_folder() / name, tmp_path / name)
    assert not fetch(tmp_path), "all are there"
    changed = tmp_path / JAR_NAMES[1]
    changed.write_bytes(changed.read_bytes()[:-1])
    with pytest.raises(SetupError, match=JAR_NAMES[1]):
        fetch(tmp_path)
    assert not changed.exists()
    assert all((tmp_path / name).exists() for name in JAR_NAMES if name != JAR_NAMES[1])


def test_a_jar_without_a_digest_is_refused(tmp_path: Path) -> None:
    stranger = tmp_path / "org.example_stranger-1.0.jar"
    stranger.write_bytes(b"PK")
    with pytest.raises(SetupError, match=r"org.example_stranger-1.0.jar has no sha256 in jars.sha256"):
        jars.check_digests([stranger])
    assert not stranger.exists()


def test_every_jar_of_the_list_has_a_digest() -> None:
    assert set(JAR_NAMES) <= set(jars.digests())


def test_an_interrupted_fetch_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    command = [str(Path(sys.executable).with_name("headwater")), "setup", "spark", "--to", str(folder), "--repository"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with subprocess.Popen([*command, address], cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
            asking, _ = silent.accept()
            with asking:
                running.send_signal(signal.SIGINT)
                _, said = running.communicate(timeout=60)
                asking.settimeout(60)
                while asking.recv(4096):
                    pass  # Its request; the connection ends with the JVM.
    assert running.returncode == 130
    assert "Traceback" not in said
    assert list(folder.iterdir()) == []
