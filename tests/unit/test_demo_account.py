"""The demo's account finds missing and duplicate records, and reports zero only if there are none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from broker_edge.device.fleet import Acked, payload_hash
from pipelines.demo.account import read_acked, take_account

DEVICES = ("device-0001", "device-0002")


def payload(seq: int, *, ts: int | None = None) -> bytes:
    stamp = time.time_ns() // 1_000 if ts is None else ts
    return json.dumps({"ts": stamp, "seq": seq, "temperature_c": 4.1}, separators=(",", ":")).encode()


def row(offset: int, value: bytes, *, device: str = DEVICES[0], partition: int = 3) -> dict[str, Any]:
    return {
        "log_id": "11111111-2222-3333-4444-555555555555",
        "partition": partition,
        "offset": offset,
        "client_id": device,
        "value": value,
        "ingest_date": "2026-11-21",
    }


def append(table: Path, *rows: dict[str, Any]) -> None:
    write_deltalake(table, pa.Table.from_pylist(list(rows)), mode="append", partition_by=["ingest_date"])


def acked(*messages: tuple[str, bytes]) -> pa.Table:
    list_ = Acked()
    for seq, (device, value) in enumerate(messages, start=1):
        list_.add(device, seq, payload_hash(value))
    return list_.to_table()


def test_every_acknowledged_payload_in_bronze_once_is_a_clean_account(tmp_path: Path) -> None:
    first, second = payload(1), payload(2)
    append(tmp_path / "bronze", row(0, first))
    append(tmp_path / "bronze", row(1, second, device=DEVICES[1]))
    account = take_account(tmp_path / "bronze", acked((DEVICES[0], first), (DEVICES[1], second)), devices=DEVICES)
    assert (account.bronze_rows, account.missing, account.duplicates) == (2, 0, 0)


def test_an_acknowledged_payload_that_bronze_lacks_is_missing(tmp_path: Path) -> None:
    first, second = payload(1), payload(2)
    append(tmp_path / "bronze", row(0, first))
    account = take_account(tmp_path / "bronze", acked((DEVICES[0], first), (DEVICES[0], second)), devices=DEVICES)
    assert (account.missing, account.duplicates) == (1, 0)


def test_a_payload_whose_bytes_changed_on_the_way_is_missing(tmp_path: Path) -> None:
    sent = payload(1, ts=1_700_000_000_000_000)
    append(tmp_path / "bronze", row(0, sent.replace(b"4.1", b"4.2")))
    assert take_account(tmp_path / "bronze", acked((DEVICES[0], sent)), devices=DEVICES).missing == 1


def test_the_payload_of_one_device_does_not_stand_in_for_that_of_another(tmp_path: Path) -> None:
    same = payload(1)
    append(tmp_path / "bronze", row(0, same, device=DEVICES[0]))
    assert take_account(tmp_path / "bronze", acked((DEVICES[1], same)), devices=DEVICES).missing == 1


def test_a_place_that_was_written_twice_is_a_duplicate(tmp_path: Path) -> None:
    value = payload(1)
    append(tmp_path / "bronze", row(0, value))
    append(tmp_path / "bronze", row(0, value))
    account = take_account(tmp_path / "bronze", acked((DEVICES[0], value)), devices=DEVICES)
    assert (account.bronze_rows, account.missing, account.duplicates) == (2, 0, 1)


def test_a_place_written_twice_counts_whoever_published_it(tmp_path: Path) -> None:
    append(tmp_path / "bronze", row(0, b"by hand", device="me"), row(0, b"by hand", device="me"))
    assert take_account(tmp_path / "bronze", acked(), devices=DEVICES).duplicates == 1


def test_one_payload_at_two_offsets_is_a_duplicate(tmp_path: Path) -> None:
    value = payload(1)
    append(tmp_path / "bronze", row(0, value), row(1, value))
    assert take_account(tmp_path / "bronze", acked((DEVICES[0], value)), devices=DEVICES).duplicates == 1


def test_the_same_offset_of_two_partitions_is_no_duplicate(tmp_path: Path) -> None:
    append(tmp_path / "bronze", row(0, payload(1)), row(0, payload(2), partition=4))
    assert take_account(tmp_path / "bronze", acked(), devices=DEVICES).duplicates == 0


def test_rows_of_others_and_of_earlier_runs_do_not_count(tmp_path: Path) -> None:
    since_us = 1_700_000_000_000_000
    value = payload(1)
    append(
        tmp_path / "bronze",
        row(0, payload(1, ts=since_us - 1)),
        row(1, b"not json"),
        row(2, b"[1]"),
        row(3, b'{"ts": "noon"}'),
        row(4, payload(1), device="me"),
        row(5, value),
    )
    account = take_account(tmp_path / "bronze", acked((DEVICES[0], value)), devices=DEVICES, since_us=since_us)
    assert (account.bronze_rows, account.missing, account.duplicates) == (1, 0, 0)


def test_latency_is_from_the_stamp_in_the_payload_to_the_commit(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1_000
    append(tmp_path / "bronze", *(row(n, payload(n, ts=now_us - n * 1_000_000)) for n in range(100)))
    late_ms = (time.time_ns() // 1_000 - now_us) / 1_000
    account = take_account(tmp_path / "bronze", acked(), devices=DEVICES)
    assert 49_000 <= account.p50_ms <= 49_000 + late_ms
    assert 98_000 <= account.p99_ms <= 98_000 + late_ms


def test_without_a_table_everything_acknowledged_is_missing(tmp_path: Path) -> None:
    account = take_account(tmp_path / "none", acked((DEVICES[0], payload(1))), devices=DEVICES)
    assert (account.bronze_rows, account.missing, account.duplicates, account.p99_ms) == (0, 1, 0, 0.0)


def test_the_list_that_a_killed_fleet_leaves_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "acked.csv"
    list_ = Acked(path)
    list_.add(DEVICES[0], 1, -5)
    list_.add(DEVICES[1], 1, 7)
    list_.close()
    with path.open("a") as file:
        file.write("device-0002,2,12")
    table = read_acked(path)
    assert table["device_id"].to_pylist() == list(DEVICES)
    assert table["payload_hash"].to_pylist() == [-5, 7]
    assert read_acked(tmp_path / "none").num_rows == 0


def test_a_repeated_message_at_a_restarted_broker_is_resent_and_a_repeated_record_is_not(tmp_path: Path) -> None:
    value = payload(1)
    append(tmp_path / "bronze", row(0, value), row(1, value))
    account = take_account(tmp_path / "bronze", acked(), devices=DEVICES, restarted=DEVICES[:1])
    assert (account.resent, account.duplicates) == (1, 0)
    account = take_account(tmp_path / "bronze", acked(), devices=DEVICES, restarted=DEVICES[1:])
    assert (account.resent, account.duplicates) == (0, 1)
