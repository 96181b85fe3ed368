"""The archive for executors: what goes in, what is refused, and the sentences for a machine that cannot use it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from broker_edge.errors import SetupError
from pipelines.spark import pack
from pipelines.spark.errors import own_error

LOST = "Job aborted: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): "
DAEMON = "Error while finding module specification for 'pipelines.spark.worker_daemon' (ModuleNotFoundError: "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            LOST + 'java.io.IOException: Cannot run program "./headwater/bin/python": error=2, No such file',
            "10.0.0.7 cannot start ./headwater/bin/python: give spark-submit the archive of `headwater spark pack`",
        ),
        (
            LOST + DAEMON + "No module named 'pipelines')",
            "the Python of 10.0.0.7 has no pipelines, so headwater is not",
        ),
        ("ModuleNotFoundError: No module named 'sources'\n", "the Python of the driver or an executor has no sources"),
        (
            "Error from python worker:\n  headwater: no python3.11 on edge: install Python 3.11, or name it in X\nP",
            "no python3.11 on edge: install Python 3.11, or name it in X",
        ),
    ],
)
def test_a_machine_that_cannot_run_our_python_is_one_sentence(text: str, says: str) -> None:
    found = own_error(RuntimeError(text))
    assert found is not None
    assert found[0] == "SetupError"
    assert found[1].startswith(says)
    assert "\n" not in found[1]


@pytest.mark.parametrize("text", ["No module named 'their_udf'", 'Cannot run program "ls": error=7, Argument list'])
def test_control_other_errors_of_workers_are_not_ours(text: str) -> None:
    assert own_error(RuntimeError(LOST + text)) is None


def test_the_closure_follows_extras_and_leaves_out_what_does_not_apply() -> None:
    base = pack.closure(["rich>=15,<16", 'grpcio>=1 ; extra == "connect"', 'colorama ; sys_platform == "win32"'], [])
    assert "rich" in base
    assert "pygments" in base, "requirements of requirements are followed"
    assert not {"grpcio", "colorama"} & set(base)
    assert "grpcio" in pack.closure(['grpcio>=1 ; extra == "connect"'], ["connect"])


def test_a_requirement_that_is_not_installed_is_one_sentence() -> None:
    with pytest.raises(SetupError, match=r"no-such-thing>=1 is not installed here.* extras spark"):
        pack.closure(["no-such-thing>=1"], ["spark"])


def test_a_package_that_would_hide_the_standard_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "typing.py").touch()
    with pytest.raises(SetupError, match="would hide typing of Python"):
        pack._refuse_hidden_modules(tmp_path)


def test_our_packages_come_from_where_they_are_imported_without_the_core(tmp_path: Path) -> None:
    pack._copy_ours(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(pack.OURS)
    assert list((tmp_path / "broker_edge").glob("_core*.so"))
    assert not (tmp_path / "broker_edge" / "core").exists()
    assert not list(tmp_path.rglob("*.pyc"))


def a_wheel(folder: Path, platform: str) -> Path:
    path = folder / f"headwater-0.1.0-cp311-abi3-{platform}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sources/__init__.py", "")
        archive.writestr("headwater-0.1.0.dist-info/METADATA", "Name: headwater\nRequires-Dist: rich>=15\n\ntext")
    return path


def test_a_wheel_gives_our_packages_and_the_requirements(tmp_path: Path) -> None:
    wheel = a_wheel(tmp_path, f"manylinux_2_34_{os.uname().machine}")
    assert pack._unpack_wheel(wheel, tmp_path / "lib") == ["rich>=15"]
    assert (tmp_path / "lib" / "sources" / "__init__.py").is_file()


def test_a_wheel_for_another_machine_and_a_missing_wheel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is for another machine than this one"):
        pack._unpack_wheel(a_wheel(tmp_path, "manylinux_2_34_riscv64"), tmp_path / "lib")
    with pytest.raises(SetupError, match="is not a wheel"):
        pack._unpack_wheel(tmp_path / "none.whl", tmp_path / "lib")


def test_the_starter_finds_its_packages_from_any_folder_and_names_a_missing_python(tmp_path: Path) -> None:
    (tmp_path / "a b" / "lib").mkdir(parents=True)
    (tmp_path / "a b" / "lib" / "only_here.py").write_text("print('found')")
    program = tmp_path / "a b" / "bin" / "python"
    pack._write_starter(program)
    environment = {"PATH": os.environ["PATH"], pack.PYTHON_ENV: sys.executable}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [program, "-c", "import only_here"]
        return subprocess.run(
            command, env=environment | more, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    assert run().stdout == "found\n", run().stderr
    missing = run(HEADWATER_PYTHON="python9")
    assert missing.returncode == 127
    found = own_error(RuntimeError("Error from python worker:\n  " + missing.stderr))
    assert found is not None
    assert found[1].startswith("no python9 on ")


def test_what_does_not_start_is_not_packed(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no module here' >&2; exit 1\n")
    program.chmod(0o755)
    with pytest.raises(SetupError, match=r"does not start \(no module here\)"):
        pack._check(program)


def test_the_printed_command_ships_the_archive_and_names_its_interpreter(tmp_path: Path) -> None:
    line = pack.Packed(tmp_path, 1, 1).submit_line(master="spark://head:7077")
    assert line.startswith(f"cd {tmp_path} && spark-submit --master spark://head:7077 ")
    assert "--archives 'headwater.tar.gz#headwater'" in line
    assert "spark.pyspark.python=./headwater/bin/python" in line
    assert line.endswith("headwater_job.py telemetry --config pipelines.yaml")
