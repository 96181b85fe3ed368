"""Reported gaps reach `ingest_gaps` once, whoever runs the job how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.flight_server import FlightServer

from broker_edge import Client
from pipelines.errors import SettingsError
from pipelines.gaps import GapCopier, main
from pipelines.ingest_tables import TablePlace
from pipelines.job import EXIT_UNREACHABLE
from sources.errors import UnavailableError


def rows(root: Path) -> list[dict[str, Any]]:
    return DeltaTable(root / "ingest_gaps").to_pyarrow_table().sort_by("report_offset").to_pylist()


def report(server: FlightServer, start: int, end: int) -> None:
    with Client(server.location) as client:
        client.gap(3, start, end, reason="damage", group="g")


def test_each_report_is_copied_once_across_runs(flight_server: FlightServer, tmp_path: Path) -> None:
    place = TablePlace(root=str(tmp_path))
    report(flight_server, 0, 5)
    copier = GapCopier([flight_server.location], place, tenant="t1")
    assert [copier.copy(), copier.copy()] == [1, 0]
    report(flight_server, 7, 9)
    report(flight_server, 11, 12)
    assert copier.copy() == 2
    # Another run knows by the table.
    assert GapCopier([flight_server.location], place, tenant="t1").copy() == 0
    found = rows(tmp_path)
    assert [(row["partition"], row["start"], row["end"]) for row in found] == [(3, 0, 5), (3, 7, 9), (3, 11, 12)]
    assert {(row["log_id"], row["reason"], row["consumer_group"], row["tenant"]) for row in found} == {
        (flight_server.log.log_id, "damage", "g", "t1")
    }


def test_a_broker_that_is_away_keeps_no_other_waiting(flight_server: FlightServer, tmp_path: Path) -> None:
    report(flight_server, 0, 5)
    with FlightServer() as away:
        servers = [away.location, flight_server.location]
        away.down()
        assert GapCopier(servers, TablePlace(root=str(tmp_path)), tenant="t1").copy() == 1
        with pytest.raises(UnavailableError):
            GapCopier([away.location], TablePlace(root=str(tmp_path)), tenant="t1").copy()
        assert main(["--once", "--root", str(tmp_path), "--server", away.location]) == EXIT_UNREACHABLE


def test_tables_with_names_need_a_session(flight_server: FlightServer) -> None:
    with pytest.raises(SettingsError, match="only a Spark session can write them"):
        GapCopier([flight_server.location], TablePlace(catalog_schema="a.b"), tenant="t1")
