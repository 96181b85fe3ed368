"""Reported gaps reach `ingest_gaps` once, however often the job runs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.flight_server import FlightServer
from support.memory_log import MemoryLog
from support.poison import SEED, junk, mutated

from broker_edge import Client
from broker_edge.access import BrokerAccess
from broker_edge.errors import OptionError, SettingsError, UnavailableError
from pipelines.gaps import GapCopier, main
from pipelines.jobs.process import EXIT_UNREACHABLE
from pipelines.settings.places import TablePlace
from sinks.rows import arrow_of
from sinks.tables import INGEST_GAPS, create_by_path
from sources import gaps
from sources.gaps import reported_gaps
from sources.log_server import LogServer


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
    # Another run knows it from the table.
    assert GapCopier([flight_server.location], place, tenant="t1").copy() == 0
    found = rows(tmp_path)
    assert [(row["partition"], row["start"], row["end"]) for row in found] == [(3, 0, 5), (3, 7, 9), (3, 11, 12)]
    assert {(row["log_id"], row["reason"], row["consumer_group"], row["tenant"]) for row in found} == {
        (flight_server.log.log_id, "damage", "g", "t1")
    }


def test_reports_that_were_copied_are_not_read_again_and_many_are_read_in_parts(
    flight_server: FlightServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    get = LogServer.get

    def noted(self: LogServer, partition: int, start: int, end: int, **more: Any) -> Any:
        asked.append((start, end))
        return get(self, partition, start, end, **more)

    monkeypatch.setattr(LogServer, "get", noted)
    monkeypatch.setattr(gaps, "_READ_OFFSETS", 2)
    for n in range(5):
        report(flight_server, n, n + 1)
    copier = GapCopier([flight_server.location], TablePlace(root=str(tmp_path)), tenant="t1")
    assert [copier.copy(), copier.copy()] == [5, 0]
    assert asked == [(0, 2), (2, 4), (4, 5)]
    report(flight_server, 5, 6)
    assert copier.copy() == 1
    assert asked[3:] == [(5, 6)]
    monkeypatch.setattr(gaps, "_READINGS_MAX", 2)
    again = GapCopier([flight_server.location], TablePlace(root=str(tmp_path)), tenant="t1")
    del asked[:]
    again.copy()
    assert asked == [(0, 2), (2, 4)], "an end that a broker claims is not trusted at once"


def test_a_report_tells_whose_reader_it_was(flight_server: FlightServer) -> None:
    flight_server.log.append("$gaps", b'{"partition":3,"start":0,"end":5,"reason":"damage","user":"rival"}')
    assert [gap.reason for gap in reported_gaps([flight_server.location])] == ["damage (reported by rival)"]


def test_a_broker_that_is_away_keeps_no_other_waiting(flight_server: FlightServer, tmp_path: Path) -> None:
    report(flight_server, 0, 5)
    with FlightServer() as away:
        servers = [away.location, flight_server.location]
        away.down()
        assert GapCopier(servers, TablePlace(root=str(tmp_path)), tenant="t1").copy() == 1
        with pytest.raises(UnavailableError):
            GapCopier([away.location], TablePlace(root=str(tmp_path)), tenant="t1").copy()
        assert main(["--once", "--root", str(tmp_path), "--server", away.location]) == EXIT_UNREACHABLE


def test_a_table_of_an_older_version_gets_the_broker(flight_server: FlightServer, tmp_path: Path) -> None:
    old = replace(INGEST_GAPS, fields=tuple(field for field in INGEST_GAPS.fields if field.name != "broker"))
    create_by_path(tmp_path, tables=(old,))
    report(flight_server, 0, 5)
    copier = GapCopier([flight_server.location], TablePlace(root=str(tmp_path)), tenant="t1")
    assert copier.copy() == 1
    assert [row["broker"] for row in rows(tmp_path)] == [flight_server.location]


def test_a_broker_tells_no_gaps_in_the_place_of_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FlightServer() as north, FlightServer() as south:
        for server in (north, south):
            report(server, 0, 5)
        copier = GapCopier([south.location, north.location], TablePlace(root=str(tmp_path)), tenant="t1")
        assert copier.copy() == 2
        for server in (north, south):
            server.down()
        south.log = MemoryLog(log_id=north.log.log_id)
        south.up()
        for start in range(10):
            report(south, start, start + 1)
        with pytest.raises(UnavailableError):
            copier.copy()
        assert f"{south.location} says that it holds log {north.log.log_id}, which belongs to" in caplog.text
        north.up()
        report(north, 7, 9)
        assert copier.copy() == 1
        assert len(rows(tmp_path)) == 3
        assert {row["broker"] for row in rows(tmp_path) if row["report_log_id"] == north.log.log_id} == {north.location}
        again = GapCopier([south.location, north.location], TablePlace(root=str(tmp_path)), tenant="t1")
        assert again.copy() == 0, "another run knows from the table whose log it is"
        new = GapCopier([south.location, north.location], TablePlace(root=str(tmp_path / "new")), tenant="t1")
        with pytest.raises(OptionError, match="say that they hold the same log"):
            new.copy()
        named = [BrokerAccess(south.location), BrokerAccess(north.location, log_id=north.log.log_id)]
        assert GapCopier(named, TablePlace(root=str(tmp_path)), tenant="t1").copy() == 0
        north.down()
        with pytest.raises(UnavailableError):
            GapCopier(named, TablePlace(root=str(tmp_path)), tenant="t1").copy()
        assert len(rows(tmp_path)) == 3


NO_REPORTS = [
    b"not json",
    b"\xff\xfe",
    b"",
    b"[]",
    b"[" * 60_000,
    b'"' + b"x" * 70_000 + b'"',
    b'{"partition":3,"start":0,"end":5}',
    b'{"partition":3,"start":0,"end":5,"reason":"\\ud800"}',
    b'{"partition":3,"start":0,"end":5,"reason":"r","group":"\\udfff"}',
    b'{"partition":3,"start":0,"end":5,"reason":["r"]}',
    b'{"partition":3,"start":-1,"end":5,"reason":"r"}',
    b'{"partition":3,"start":0,"end":9223372036854775808,"reason":"r"}',
    b'{"partition":3,"start":18446744073709551615,"end":null,"reason":"r"}',
    b'{"partition":2147483648,"start":0,"end":5,"reason":"r"}',
    b'{"partition":3,"start":0,"end":5,"reason":"r","time_us":9223372036854775807}',
    b'{"partition":3,"start":0,"end":5,"reason":"r","time_us":-1}',
    b'{"partition":3,"start":0,"end":5,"reason":"r","time_us":1e999}',
    b'{"partition":3,"start":' + b"1" * 5_000 + b',"end":5,"reason":"r"}',
    b'{"partition":true,"start":0,"end":5,"reason":"r"}',
]


def test_what_is_no_report_is_quarantined_once_and_holds_up_no_other(
    flight_server: FlightServer, tmp_path: Path
) -> None:
    place = TablePlace(root=str(tmp_path))
    report(flight_server, 0, 5)
    for value in NO_REPORTS:
        flight_server.log.append("$gaps", value)
    report(flight_server, 7, 9)
    for _ in range(2):
        copier = GapCopier([flight_server.location], place, tenant="t1")
        copier.copy()
        copier.copy()
    assert [(row["start"], row["end"]) for row in rows(tmp_path)] == [(0, 5), (7, 9)]
    bad = DeltaTable(tmp_path / "quarantine").to_pyarrow_table().sort_by("offset").to_pylist()
    assert [row["value"] for row in bad] == NO_REPORTS
    assert {(row["pipeline"], row["topic"], row["tenant"]) for row in bad} == {("gaps", "$gaps", "t1")}
    assert all("report" in row["reason"] for row in bad)
    assert len(reported_gaps([flight_server.location])) == 2


def test_whatever_stands_in_gaps_is_a_report_that_fits_the_table_or_none() -> None:
    chance = random.Random(SEED)
    honest = b'{"log_id":null,"partition":3,"name":"n","start":0,"end":5,"reason":"r","group":"g","time_us":5}'
    for turn in range(3_000):
        value = mutated(chance, honest) if turn % 2 else json.dumps(junk(chance)).encode()
        try:
            gap = gaps._gap(value, "log", 1)
        except gaps._ReportError:
            continue
        except Exception as error:
            pytest.fail(f"seed {SEED}, turn {turn}: {value[:200]!r}: {error!r}")
        names = {"partition": gap.partition, "start": gap.start, "end": gap.end, "reason": gap.reason}
        more = {"log_id": gap.log_id, "partition_name": gap.name, "consumer_group": gap.group}
        arrow_of([{**names, **more, "reported_at": gap.reported_at}], INGEST_GAPS)


def test_tables_with_names_need_a_session(flight_server: FlightServer) -> None:
    with pytest.raises(SettingsError, match="only a Spark session can write them"):
        GapCopier([flight_server.location], TablePlace(catalog_schema="a.b"), tenant="t1")
