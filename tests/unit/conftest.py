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


@pytest.fixture
def without_idle_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of the source asks again with each plan, and tells its group of each batch at once."""
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("sources.group.SHOWN_EVERY_S", 0.0)
