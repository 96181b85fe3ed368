"""Fixtures for tests of the console in a real browser against the real broker.

A module shares one Chromium and one broker, since starting them is most of the time of a short test; each test has a
context of its own, without cookies of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.browser import Browser, Page, Visit, Watch, chromium, watched
from support.ports import free_port
from support.programs import StartBroker, headwaterd

from broker_edge.torture.process import BrokerProcess


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBroker]:
    """Starts brokers on ports that they keep when they start again; none outlives the module."""
    headwaterd()
    folder: Path = tmp_path_factory.mktemp("brokers")
    with ExitStack() as stack:

        def start(name: str = "broker", settings: Mapping[str, str] | None = None) -> BrokerProcess:
            binds = {f"listeners.{one}.bind": f"127.0.0.1:{free_port()}" for one in ("mqtt", "flight", "admin")}
            process = BrokerProcess(
                data_dir=folder / name, settings=binds | dict(settings or {}), log_file=folder / f"{name}.stderr.txt"
            )
            stack.enter_context(process)
            process.start()
            return process

        yield start


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker without users."""
    return start_broker()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    with ExitStack() as stack:

        def open_page(broker: BrokerProcess, path: str = "/", **options: Any) -> tuple[Page, Watch]:
            one: AbstractContextManager[tuple[Page, Watch]] = watched(browser, origin(broker), **options)
            page, watch = stack.enter_context(one)
            page.goto(path)
            return page, watch

        yield open_page


def origin(broker: BrokerProcess) -> str:
    return f"http://127.0.0.1:{broker.admin[1]}"
