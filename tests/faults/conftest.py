"""What fault tests share: brokers and loop images that are gone afterwards, seeds, and the reports at the end.

HEADWATER_FAULT_CYCLES sets how many crashes (default 20), HEADWATER_FAULT_SEED repeats the random choices of a run.
Whatever a test needs and the machine lacks is named: as a failure where CI is set, as the reason of a skip elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from broker_edge.torture.check import Report
from broker_edge.torture.loop_image import LoopImage, missing_prerequisites
from broker_edge.torture.process import BrokerProcess, binary
from broker_edge.torture.records import chosen_seed

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
    """Fails or skips with what is lacking, if anything."""
    return _need


@pytest.fixture
def need_program() -> Callable[[str], str]:
    """Gives the path of a program, or says which package brings it."""

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
    return int(os.environ.get("HEADWATER_FAULT_CYCLES", "20"))


@pytest.fixture
def broker_on(tmp_path: Path) -> Iterator[StartsBrokers]:
    """Makes brokers on a data folder; none of them outlives the test. The caller starts them."""
    _need([] if binary().exists() else [f"{binary()} is missing: run `make build`, or set HEADWATERD"])
    with ExitStack() as stack:

        def make(data_dir: Path, settings: Mapping[str, str] | None = None) -> BrokerProcess:
            log_file = tmp_path / "headwaterd.log"
            return stack.enter_context(BrokerProcess(data_dir=data_dir, settings=settings, log_file=log_file))

        yield make


@pytest.fixture
def loop_image(tmp_path: Path) -> Iterator[Callable[[int], LoopImage]]:
    """Makes mounted file systems of a size in MiB. Name it before `broker_on`, so that brokers end before it goes."""
    _need(missing_prerequisites())
    with ExitStack() as stack:

        def make(size_mib: int) -> LoopImage:
            return stack.enter_context(LoopImage(tmp_path / "disk", size_bytes=size_mib << 20))

        yield make


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[Report], None]:
    """Puts a report's line at the end of the run, whether the test passes or not."""

    def keep(report: Report) -> None:
        request.config.stash.setdefault(_REPORTS, []).append(f"{request.node.name}: {report}")

    return keep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # By signal, not by thread: the fixtures must still unmount and kill.
            item.add_marker(pytest.mark.timeout(900, method="signal"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A worker's words reach the terminal through the process that started it.
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_FROM_WORKER] = session.config.stash.get(_REPORTS, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(_REPORTS, []).extend(getattr(node, "workeroutput", {}).get(_FROM_WORKER, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_REPORTS, []):
        terminalreporter.write_line(line)
