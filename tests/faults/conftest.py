"""Shared by fault tests: brokers and loop images that are removed afterwards, seeds, and the reports at the end.

HEADWATER_FAULT_CYCLES sets the number of crashes (default 10), HEADWATER_FAULT_SEED repeats the random choices of a
run. If the machine lacks something that a test needs, the test fails where CI is set and is skipped elsewhere, with the
reason.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from broker_edge.torture.check import Report
from broker_edge.torture.loop_image import LoopImage, missing_prerequisites
from broker_edge.torture.process import BrokerProcess, binary
from broker_edge.torture.records import chosen_seed
from sinks import torn_commits

# A test of minutes on a busy machine: `make test-long` collects it.
collect_ignore_glob = [] if os.environ.get("HEADWATER_POWER_CUTS") else ["test_power_cut_silver.py"]

_REPORTS = pytest.StashKey[list[str]]()
_FROM_WORKER = "fault_reports"


class StartsBrokers(Protocol):
    def __call__(self, data_dir: Path, settings: Mapping[str, str] | None = None) -> BrokerProcess: ...


def _need(lacks: list[str]) -> None:
    if not lacks:
        return
    text = "; ".join(lacks)
    if os.environ.get("CI"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@pytest.fixture
def need() -> Callable[[list[str]], None]:
    """Fails or skips the test if something is missing, and says what."""
    return _need


@pytest.fixture
def need_program() -> Callable[[str], str]:
    """Returns the path of a program, or says which package provides it."""

    def find(name: str, package: str | None = None) -> str:
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        _need([] if found else [f"{name} is missing (Debian: apt-get install {package or name})"])
        return found or ""

    return find


@pytest.fixture
def seed() -> int:
    return chosen_seed()


@pytest.fixture
def cycles() -> int:
    return int(os.environ.get("HEADWATER_FAULT_CYCLES", "10"))


@pytest.fixture
def broker_on(tmp_path: Path) -> Iterator[StartsBrokers]:
    """Creates brokers on a data folder; none of them outlives the test. The caller starts them."""
    _need([] if binary().exists() else [f"{binary()} is missing: run `make build`, or set HEADWATERD"])
    with ExitStack() as stack:

        def make(data_dir: Path, settings: Mapping[str, str] | None = None) -> BrokerProcess:
            log_file = tmp_path / "headwaterd.log"
            return stack.enter_context(BrokerProcess(data_dir=data_dir, settings=settings, log_file=log_file))

        yield make


@pytest.fixture
def loop_image(tmp_path: Path) -> Iterator[Callable[[int], LoopImage]]:
    """Creates mounted file systems of a size in MiB. Request it before `broker_on`, so that brokers end before the
    unmount."""
    _need(missing_prerequisites())
    with ExitStack() as stack:

        def make(size_mib: int) -> LoopImage:
            return stack.enter_context(LoopImage(tmp_path / "disk", size_bytes=size_mib << 20))

        yield make


@pytest.fixture
def machine_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For jobs, the machine has started after everything that is on the disk was written."""
    monkeypatch.setattr(torn_commits, "booted_s", lambda: time.time() + 1)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[Report], None]:
    """Prints a report's line at the end of the run, whether the test passes or not."""

    def keep(report: Report) -> None:
        request.config.stash.setdefault(_REPORTS, []).append(f"{request.node.name}: {report}")

    return keep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # By signal, not by thread, so that the fixtures can still unmount and kill.
            item.add_marker(pytest.mark.timeout(900, method="signal"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A worker's output reaches the terminal through the process that started it.
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_FROM_WORKER] = session.config.stash.get(_REPORTS, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(_REPORTS, []).extend(getattr(node, "workeroutput", {}).get(_FROM_WORKER, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_REPORTS, []):
        terminalreporter.write_line(line)
