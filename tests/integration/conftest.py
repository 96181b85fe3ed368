"""Fixtures for tests against the real broker. Nothing is skipped here: a missing program fails a test and is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.programs import StartBroker, headwaterd

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts brokers on free ports, each with its own folder; none outlives the test."""
    headwaterd()
    with ExitStack() as stack:

        def start(name: str = "broker", settings: Mapping[str, str] | None = None) -> BrokerProcess:
            process = BrokerProcess(
                data_dir=tmp_path / name, settings=settings, log_file=tmp_path / f"{name}.stderr.txt"
            )
            stack.enter_context(process)
            process.start()
            return process

        yield start


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """The real broker with an empty log. A test may kill and restart it."""
    return start_broker()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    """A Flight client of the running broker."""
    with Client("grpc://{}:{}".format(*broker.flight), timeout_s=60) as client:
        yield client
