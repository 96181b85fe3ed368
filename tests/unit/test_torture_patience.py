"""A deadline that a starved machine does not use up."""

from __future__ import annotations

import pytest

from broker_edge.torture.cluster import patience
from broker_edge.torture.cluster.patience import Patience


def test_time_in_which_nobody_looked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    waits = Patience(2.0)
    looks = []
    for step in (0.4, 0.4, 300.0, 0.4, 0.4):
        now += step
        looks.append(waits.is_over())
    assert looks == [False, False, False, False, True]
