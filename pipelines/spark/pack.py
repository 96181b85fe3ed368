"""Makes the archive with which executors run Python: headwater, what it depends on, and a starter for the interpreter.

The folder that `pack` writes is also where the job is started, because the driver plans batches with the interpreter of
the executors: `headwater/` is the unpacked archive, `headwater.tar.gz` the archive, `headwater_job.py` the program for
`spark-submit`. The packages are those of this environment, in its versions. The interpreter is not included: each
machine needs this version of Python. docs/adr/0020-fleet.md says why neither venv-pack nor pex makes the archive.
"""

from __future__ import annotations

import compileall
import importlib
import os
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from broker_edge.errors import SetupError
from pipelines.spark.jars import DELTA_PACKAGE
from pipelines.spark.needs import CATALOG, CATALOG_CONF, EXTENSION, EXTENSION_CONF
from pipelines.spark.worker_python import exports

NAME = "headwater"
ARCHIVE = f"{NAME}.tar.gz"
JOB = f"{NAME}_job.py"
PYTHON = f"./{NAME}/bin/python"
PYTHON_ENV = "HEADWATER_PYTHON"
"""Names the interpreter of a machine, if it is not on the PATH under its usual name."""

OURS = ("actions", "broker_edge", "headwater_cli", "pipelines", "sinks", "sources")
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests?)/|^pyspark/(jars|examples|data|licenses|sbin|R)/|^pyarrow/include/|^\.\.|/core/target/"
    r"|^broker_edge/core/|\.(pyc|pxd|pyx|a|h)$"
)
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_CHECK_S = 120.0
_CHECK = "import pipelines.spark.worker_daemon as d, pyarrow.flight, sources, sinks; d.prepare()"

_JOB = '''"""Runs a job of headwater: `spark-submit … headwater_job.py telemetry --config pipelines.yaml`."""

from pipelines.entry import main

main()
'''


@dataclass(frozen=True, slots=True)
class Packed:
    """What `pack` has made, and the command that uses it."""

    folder: Path
    packages: int
    size_bytes: int

    def submit_line(self, *, master: str = "MASTER", job: str = "telemetry --config pipelines.yaml") -> str:
        """The `spark-submit` command, to be run in `folder`."""
        words = ["spark-submit", "--master", master, *submit_options(), JOB]
        return f"cd {shlex.quote(str(self.folder))} && {shlex.join(words)} {job}"


def submit_options() -> list[str]:
    """What `spark-submit` needs in addition to the master: the archive, its interpreter, and Delta."""
    conf = {
        "spark.pyspark.python": PYTHON,
        EXTENSION_CONF: EXTENSION,
        CATALOG_CONF: CATALOG,
        "spark.driver.extraJavaOptions": "-Xss16m",
    }
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return ["--archives", f"{ARCHIVE}#{NAME}", "--packages", DELTA_PACKAGE, *settings]


def pack(to: Path, *, wheel: Path | None = None, extras: Sequence[str] = ("spark",)) -> Packed:
    """Makes the folder `to`. `wheel` gives our own packages and the requirements; default: those that run now.

    Raises SetupError if a requirement is not installed, or if what was packed does not start.
    """
    target = to / NAME
    lib = target / "lib"
    if target.exists():
        shutil.rmtree(target)
    lib.mkdir(parents=True)
    if wheel is None:
        requirements = list(_installed_requirements())
        _copy_ours(lib)
    else:
        requirements = _unpack_wheel(wheel, lib)
    names = closure(requirements, extras)
    for name in names:
        _copy(distribution(name), lib)
    _refuse_hidden_modules(lib)
    # Valid whatever the time of a file becomes where the archive is unpacked.
    compileall.compile_dir(
        lib, quiet=2, workers=os.cpu_count() or 1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    _write_starter(target / "bin" / "python")
    (to / JOB).write_text(_JOB, encoding="utf-8")
    _check(target / "bin" / "python")
    with tarfile.open(to / ARCHIVE, "w:gz", compresslevel=1) as archive:
        archive.add(target, arcname=".", filter=_of_nobody)
    return Packed(to.absolute(), len(names), (to / ARCHIVE).stat().st_size)


def closure(requirements: Iterable[str], extras: Sequence[str]) -> list[str]:
    """The installed distributions that the requirements need, with what those need in turn. Sorted names.

    Raises SetupError for one that is not installed.
    """
    found: set[str] = set()
    waiting = [(text, frozenset(extras)) for text in requirements]
    while waiting:
        text, wanted = waiting.pop()
        body, _, marker = text.partition(";")
        of_extra = _EXTRA.search(marker)
        if (of_extra is not None and of_extra[1] not in wanted) or (of_extra is None and not _holds(marker)):
            continue
        match = _REQUIREMENT.match(body)
        assert match is not None, f"a requirement begins with a name: {text}"
        name, more = match[1], frozenset(filter(None, re.split(r"[,\s]+", match[2] or "")))
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key == NAME:
            continue
        try:
            there = distribution(name)
        except PackageNotFoundError as error:
            raise SetupError(
                f"{body.strip()} is not installed here, and the archive needs it: install headwater with the extras "
                f"{', '.join(extras)}"
            ) from error
        if key not in found or more:
            found.add(key)
            waiting += [(one, more) for one in there.requires or ()]
    return sorted(found)


def _holds(marker: str) -> bool:
    """Whether a marker without an extra may apply here; what only other systems need is not installed."""
    if not marker.strip():
        return True
    if re.search(
        r"python_(full_)?version\s*<|(sys_platform|platform_system|os_name)\s*==\s*['\"](win|Windows|nt)", marker
    ):
        return False
    return "implementation" not in marker or "CPython" in marker


def _installed_requirements() -> Iterator[str]:
    try:
        yield from distribution(NAME).requires or ()
    except PackageNotFoundError as error:
        raise SetupError(f"{NAME} is not installed here: give its wheel with --wheel") from error


def _copy_ours(lib: Path) -> None:
    """The packages as this process imports them, also from a checkout."""
    for name in OURS:
        (folder,) = importlib.import_module(name).__path__
        root = Path(folder).parent
        for path in sorted(Path(folder).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if path.is_file() and not _LEFT_OUT.search(relative):
                _copy_file(path, lib / relative)


def _unpack_wheel(wheel: Path, lib: Path) -> list[str]:
    """Puts the wheel into `lib`; returns its requirements."""
    machine = sysconfig.get_platform().rpartition("-")[2]
    if wheel.suffix != ".whl" or not wheel.is_file():
        raise SetupError(f"{wheel} is not a wheel: make one with `make wheel`")
    if not wheel.stem.endswith((machine, "-any")):
        raise SetupError(f"{wheel.name} is for another machine than this one ({machine}): pack it on such a machine")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(lib)
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist") or []


def _copy(there: Distribution, lib: Path) -> None:
    for file in there.files or ():
        if not _LEFT_OUT.search(file.as_posix()):
            source = Path(str(there.locate_file(file)))
            if source.is_file():
                _copy_file(source, lib / file)


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _refuse_hidden_modules(lib: Path) -> None:
    """The folder comes before the standard library, so nothing in it may have a name of that."""
    hidden = {path.name.partition(".")[0] for path in lib.iterdir()} & sys.stdlib_module_names
    if hidden:
        raise SetupError(
            f"the archive would hide {', '.join(sorted(hidden))} of Python: remove the package that has it"
        )


def _write_starter(program: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"{exports()}"
        'here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1\n'
        f"python=${{{PYTHON_ENV}:-python{version}}}\n"
        'command -v "$python" >/dev/null || {\n'
        f'  echo "headwater: no $python on $(hostname): install Python {version}, or name it in {PYTHON_ENV}" >&2\n'
        "  exit 127\n"
        "}\n"
        'PYTHONNOUSERSITE=1 PYTHONPATH="$here/lib${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)


def _check(program: Path) -> None:
    """What was packed must start without this environment."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", PYTHON_ENV) if name in os.environ}
    done = subprocess.run(
        [str(program.absolute()), "-c", _CHECK],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=_CHECK_S,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SetupError(
            f"what was packed does not start ({last}): pack in an environment that `headwater jobs` runs in"
        )


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Readable for the user of every worker."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry
