"""The built wheel: its contents, its dependencies, and what works with the base dependencies and with an extra.

It is built with the profile of the checkout's own build, to reuse compiled code; a release differs only in speed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from broker_edge.default_files import FOLDER, default_files

ROOT = Path(__file__).resolve().parents[2]
BUILD_S = 1_200
BASE = ("paho-mqtt", "typer", "rich", "cryptography", "packaging", "semver")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as `make wheel` does, except for the profile."""
    out = tmp_path_factory.mktemp("wheel")
    profile = os.environ.get("PROFILE", "quick")
    command = [sys.executable, "-m", "maturin", "build", "--locked", "--profile", profile, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (built,) = out.glob("headwater-*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and its base dependencies, as on an edge box, without other installed packages."""
    return with_packages(wheel, tmp_path_factory.mktemp("unpacked"), BASE)


@pytest.fixture(scope="module")
def with_client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the extra `client`."""
    return with_packages(wheel, tmp_path_factory.mktemp("client"), (*BASE, "pyarrow"))


def with_packages(wheel: Path, folder: Path, names: Sequence[str]) -> Path:
    """The wheel and these distributions with what they need, as links into the virtual environment."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name in needed_by(names):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(str(distribution(name).locate_file(top)))
    return folder


def needed_by(names: Sequence[str]) -> set[str]:
    """The distributions and their transitive dependencies, without extras."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for one in map(Requirement, distribution(name).requires or ()):
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                waiting.append(one.name)
    return found


def run_in(folder: Path, code: str, *, expect: int = 0) -> str:
    """Runs code with only the standard library and `folder`; returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{code}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return (done.stdout + done.stderr).strip()


def test_it_holds_the_packages_and_no_sources_of_the_core(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    packages = {"broker_edge", "sources", "sinks", "actions", "pipelines", "fleet_console", "headwater_cli"}
    assert {top for top in tops if not top.endswith(".dist-info")} == packages
    assert [name for name in names if name.endswith((".rs", ".toml", ".lock")) or "/core/" in name] == []
    assert {"broker_edge/py.typed", "broker_edge/_core.pyi", "broker_edge/_core.abi3.so"} <= set(names)


def test_it_holds_the_files_that_jobs_and_people_start_from(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in default_files():
            assert archive.read(f"broker_edge/defaults/{name}") == (FOLDER / name).read_bytes(), name


def test_it_asks_for_the_base_dependencies_only(unpacked: Path) -> None:
    (info,) = unpacked.glob("headwater-*.dist-info")
    headers = HeaderParser().parsestr((info / "METADATA").read_text())
    needed = headers.get_all("Requires-Dist", [])
    base = {text.partition(">")[0].partition("=")[0].strip() for text in needed if "extra ==" not in text}
    assert base == set(BASE)
    assert {"client", "spark", "device", "notebooks", "dev"} <= set(headers.get_all("Provides-Extra", []))
    assert "headwater=headwater_cli:main" in (info / "entry_points.txt").read_text().replace(" ", "")


def test_a_broker_runs_from_the_base(unpacked: Path, tmp_path: Path) -> None:
    """It takes a message, and says over HTTP that it has it; a client of its log is one sentence away."""
    printed = run_in(
        unpacked,
        f"""
import broker_edge
from headwater_cli import main
from broker_edge import Broker
assert broker_edge.__file__.startswith({str(unpacked)!r}), broker_edge.__file__
with Broker({str(tmp_path / "data")!r}) as broker:
    assert main(["pub", "a", "1", "--mqtt", broker.mqtt]) == 0
    assert main(["top", "--admin", broker.admin, "--once", "--json"]) == 0
    assert main(["offsets", "--server", broker.server]) == 5
    try:
        broker.client()
    except ImportError as error:
        print(error)
""",
    )
    assert printed.count("pip install 'headwater[client]'") == 2
    assert "Traceback" not in printed


def test_the_command_that_runs_a_broker_is_small(unpacked: Path, tmp_path: Path) -> None:
    """As long as it only waits, and as the table of extras promises: a box of 512 MB has other things to do."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from headwater_cli import main; sys.exit(main())"
    words = [sys.executable, "-I", "-S", "-c", code, str(unpacked), "broker", "--set", f"data_dir={tmp_path}/data"]
    for listener in ("mqtt", "flight", "admin"):
        words += ["--set", f"listeners.{listener}.bind=127.0.0.1:0"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline().startswith("ready mqtt=")
            status = Path(f"/proc/{running.pid}/status").read_text()
        finally:
            running.terminate()
    assert running.returncode == 0
    memory = {name: int(kib) for name, kib in re.findall(r"(VmRSS|RssAnon):\s+(\d+) kB", status)}
    assert memory["VmRSS"] <= 50 * 1024, memory


def test_init_writes_a_folder_with_the_base_only(unpacked: Path, tmp_path: Path) -> None:
    run_in(unpacked, f"from headwater_cli import main; sys.exit(main(['init', {str(tmp_path / 'edge')!r}]))")
    schema = (tmp_path / "edge/schemas/telemetry.yaml").read_bytes()
    assert schema == (ROOT / "conf/schemas/telemetry.yaml").read_bytes()


def test_a_broker_and_a_client_run_with_the_extra(with_client: Path, tmp_path: Path) -> None:
    printed = run_in(
        with_client,
        f"""
from broker_edge import Broker, Row
with Broker({str(tmp_path / "data")!r}) as broker, broker.client() as client:
    (place,) = client.produce([Row("a", b"1")])
    print(client.fetch(place.partition, place.offset, place.offset + 1).to_table().column("value").to_pylist())
""",
    )
    assert printed == "[b'1']"


def test_the_command_runs_from_it(unpacked: Path) -> None:
    shown = run_in(unpacked, "from headwater_cli import main; sys.exit(main(['--help']))")
    for noun in ("broker", "demo", "pub", "sub", "tail", "topics", "offsets", "groups", "log", "config", "doctor"):
        assert f"  {noun} " in shown


def test_the_command_says_its_version(unpacked: Path) -> None:
    (info,) = unpacked.glob("headwater-*.dist-info")
    version = HeaderParser().parsestr((info / "METADATA").read_text())["Version"]
    said = run_in(unpacked, "from headwater_cli import main; sys.exit(main(['--version']))")
    assert said == f"headwater {version}"


def test_the_jobs_have_entry_points(unpacked: Path) -> None:
    (info,) = unpacked.glob("headwater-*.dist-info")
    scripts = (info / "entry_points.txt").read_text().replace(" ", "")
    for job in ("telemetry", "status", "actions"):
        assert f"headwater-{job}=pipelines.entry:{job}" in scripts


def test_the_demo_says_what_it_lacks(unpacked: Path) -> None:
    said = run_in(unpacked, "from headwater_cli import main; sys.exit(main(['demo']))", expect=5)
    assert "pyspark" in said
    assert said.endswith("pip install 'headwater[spark,device,notebooks]'")
    assert said.count("\n") == 0
