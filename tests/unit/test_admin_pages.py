"""Paging of the admin listener ends, whatever a broker answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker_edge.admin import Admin
from broker_edge.errors import BrokerError


def test_a_broker_that_gives_the_same_page_of_clients_again_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Mapping[str, str]] = []

    def ask(_: Admin, method: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        assert len(asked) < 10, "the paging does not end"
        asked.append(dict(query))
        return {"clients": [{"client_id": "b"}], "next": "b"}

    monkeypatch.setattr(Admin, "ask", ask)
    with pytest.raises(BrokerError, match="the same page of clients again"):
        list(Admin("127.0.0.1").clients())
    assert [query.get("after") for query in asked] == [None, "b"]
