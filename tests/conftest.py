"""Fixtures that every suite shares. `tests` itself is on the path, so that suites say `from support.… import …`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support.flight_server import FlightServer


@pytest.fixture
def flight_server() -> Iterator[FlightServer]:
    """The Flight service in memory, on a port of its own."""
    with FlightServer() as server:
        yield server
