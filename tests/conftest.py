"""Fixtures that every suite shares. `tests` itself is on the path, so that suites say `from support.… import …`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from support.flight_server import FlightServer

# Machines that run the tests are shared: the first call of anything may take a second.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


@pytest.fixture
def flight_server() -> Iterator[FlightServer]:
    """The Flight service in memory, on a port of its own."""
    with FlightServer() as server:
        yield server
