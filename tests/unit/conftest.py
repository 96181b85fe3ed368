"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.memory_nodes import Nodes


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Three nodes of a cluster in memory; the first one leads."""
    made = Nodes()
    yield made
    for server in made.all:
        server.down()
