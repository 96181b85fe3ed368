"""No record ends the status job: each hostile one is quarantined with a reason, and valid ones beside it are stored."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.poison import SEED, junk, mutated

from actions import event_log, status_batch
from actions.engine.json_fields import WrongField, whole_number
from actions.event_log import EventLog
from actions.halving import CONTENT_ERRORS, fitting
from actions.status_batch import StatusBatches
from actions.status_rows import Parsed, parse
from actions.uplink_status import TOPIC, UplinkTopic
from sinks.rows import arrow_of
from sinks.tables import ACTION_EVENTS, QUARANTINE, create_by_path

UPLINK = UplinkTopic(TOPIC)
ON_UPLINK = "/tenants/t/devices/x/action/status"
ON_STATUS = "devices/x/status"
THE_POISON = b'{"action_id":"a","attempt":1,"state":"SUCCEEDED","result":"\\ud800"}'


def status(**fields: Any) -> bytes:
    return json.dumps({"action_id": "a", "attempt": 1, "state": "SUCCEEDED", **fields}).encode()


def response(**fields: Any) -> bytes:
    return json.dumps([{"id": "a", "state": "Completed", **fields}]).encode()


def receipt(**fields: Any) -> bytes:
    body = {"client_id": "x", "idempotency_key": "a/x/1", "partition": 0, "offset": 1}
    return json.dumps({**body, **fields}).encode()


def nested(depth: int, *, inside: str = '{"action_id":"a","attempt":1,"state":"FAILED","result":%s}') -> bytes:
    return (inside % ("[" * depth + "]" * depth)).encode()


REFUSED = [
    (ON_STATUS, THE_POISON, "result contains characters that are not Unicode"),
    (ON_STATUS, status(result={"\ud800": 1}), "result contains characters that are not Unicode"),
    (ON_STATUS, status(result=[{"x": ["ok", "\udfff"]}]), "result contains characters that are not Unicode"),
    (ON_STATUS, b'{"action_id":"a\xed\xa0\x80","attempt":1,"state":"FAILED"}', "action_id contains characters"),
    (ON_STATUS, status(boot="\udc00"), "boot contains characters that are not Unicode"),
    (ON_STATUS, status(version="\udc00"), "version contains characters that are not Unicode"),
    (ON_STATUS, status(state="\udc00"), "state contains characters that are not Unicode"),
    (ON_STATUS, b'{"attempt":' + b"1" * 5_000 + b"}", "the payload has a number of 5000 digits; the limit is 1000"),
    (ON_STATUS, b'{"result":-' + b"1" * 1_000 + b"}", "the payload has a number of 1001 digits"),
    (ON_STATUS, status(attempt=10**999), "attempt must be a whole number from 1 to 2147483647"),
    (ON_STATUS, status(seq=2**64), "seq must be a whole number"),
    (ON_STATUS, status(ts=10**18), "ts must be a whole number"),
    (ON_STATUS, b'{"action_id":"a","attempt":1e999,"state":"FAILED"}', "attempt must be a whole number"),
    (ON_STATUS, nested(900), "the payload is nested deeper than 100"),
    (ON_STATUS, nested(100), "the payload is nested deeper than 100"),
    (ON_STATUS, nested(900, inside='{"action_id":%s}'), "the payload is nested deeper than 100"),
    (ON_STATUS, status(action_id="a" * 257), "action_id has 257 characters; the limit is 256"),
    (ON_STATUS, status(version="9" * 5_000), "version has 5000 characters; the limit is 256"),
    (ON_STATUS, status(state="ONLINE", version="1" * 257), "version has 257 characters; the limit is 256"),
    (ON_UPLINK, response(version="9" * 5_000), "response 1 of 1: version has 5000 characters; the limit is 256"),
    ("devices/" + "x" * 2_000 + "/status", status(), "the device's id has 2000 bytes; the limit is 1024"),
    ("devices//status/\x1b[2J", status(), "the topic 'devices//status/\\x1b[2J' is not devices/<id>/status"),
    (ON_UPLINK, response(id="a/" + "9" * 20), "response 1 of 1: id must be <action_id> or <action_id>/<attempt>"),
    (ON_UPLINK, response(id="a/00000000001" + "9" * 9), "response 1 of 1: id must be <action_id>"),
    (ON_UPLINK, response(id="a/00000000001" + "9" * 4_989), "response 1 of 1: id must be <action_id>"),
    (ON_UPLINK, response(id="a/" + "1" * 5_000), "response 1 of 1: id must be <action_id>"),
    (ON_UPLINK, response(id="a/²"), "response 1 of 1: id must be"),
    (ON_UPLINK, response(id="a" * 300 + "/1"), "response 1 of 1: the action's id has 300 characters"),
    (ON_UPLINK, response(state="Failed", errors=["\ud800"]), "response 1 of 1: errors contains characters"),
    (ON_UPLINK, nested(900, inside="[%s]"), "the payload is nested deeper than 100"),
    (ON_UPLINK, nested(900, inside='[{"state":%s}]'), "the payload is nested deeper than 100"),
    ("$receipts", receipt(client_id="\ud800"), "client_id contains characters that are not Unicode"),
    ("$receipts", receipt(idempotency_key="\ud800/x/1"), "idempotency_key contains characters that are not Unicode"),
    ("$receipts", receipt(offset=2**63), "offset must be a whole number"),
]  # fmt: skip
FOREIGN = [
    receipt(idempotency_key="a/x/" + "9" * 5_000),
    receipt(idempotency_key="a/x/" + "9" * 20),
    receipt(idempotency_key="a/x/" + "0" * 5_000 + "1"),
    receipt(idempotency_key="a" * 257 + "/x/1"),
    receipt(idempotency_key="x" * 70_000),
]


def record(topic: str, value: bytes, offset: int = 0) -> dict[str, Any]:
    place = {"log_id": "log", "partition": 0, "offset": offset, "epoch": 1, "timestamp": 99}
    return {**place, "topic": topic, "key": b"x", "value": value}


def parsed(records: Sequence[dict[str, Any]]) -> Parsed:
    found = parse(records, tenant="default", recorded_us=100, uplink=UPLINK)
    arrow_of(found.events, ACTION_EVENTS)
    arrow_of(found.quarantine, QUARANTINE)
    return found


@pytest.mark.parametrize(("topic", "value", "said"), REFUSED, ids=[f"{t[:9]} {s[:60]}" for t, _, s in REFUSED])
def test_poison_is_quarantined_in_words_beside_an_honest_report(topic: str, value: bytes, said: str) -> None:
    found = parsed([record(ON_STATUS, status(), 0), record(topic, value, 1), record(ON_STATUS, status(seq=2), 2)])
    assert [row["offset"] for row in found.events] == [0, 2]
    (bad,) = found.quarantine
    assert bad["reason"].startswith(said)
    assert bad["reason"].isprintable()
    assert len(bad["reason"]) < 500
    assert bad["value"] == value


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: f"{len(value)} bytes")
def test_a_receipt_under_a_key_that_no_engine_gives_is_left_alone(value: bytes) -> None:
    found = parsed([record("$receipts", value), record("$receipts", receipt(), 1)])
    assert (len(found.events), found.quarantine, found.foreign) == (1, (), 1)


@pytest.mark.parametrize("value", [b'{"x":[1e999,-1e999,NaN]}', b'{"x":[Infinity,-Infinity,null]}'])
def test_numbers_that_json_cannot_say_become_null_in_the_result(value: bytes) -> None:
    whole = b'{"action_id":"a","attempt":1,"state":"SUCCEEDED","result":%s}' % value
    (row,) = parsed([record(ON_STATUS, whole)]).events
    assert json.loads(row["result"], parse_constant=pytest.fail) == {"x": [None, None, None]}


@pytest.mark.parametrize("depth", [1, 50, 98])
def test_a_result_may_be_nested_within_the_limit(depth: int) -> None:
    assert len(parsed([record(ON_STATUS, nested(depth))]).events) == 1


def test_digits_are_bounded_before_they_are_a_number() -> None:
    found = [whole_number(text, 1, 2**31 - 1) for text in ("1", "2147483647", "2147483648", "0", "9" * 10**6, "²", "")]
    assert found == [1, 2**31 - 1, None, None, None, None, None]


def test_whatever_comes_the_parsers_end_in_rows_that_fit_the_tables() -> None:
    """Junk and modified valid payloads; any result other than a row is a bug."""
    chance = random.Random(SEED)
    honest = {
        ON_STATUS: status(boot="b", seq=1, progress=3, message="m", result={"x": [1, "y"]}, version="2", ts=5),
        ON_UPLINK: response(sequence=1, timestamp=5, progress=3, errors=["e"], version="2"),
        "$receipts": receipt(topic="devices/x/actions", key="x", name="c-0", time_us=1),
    }
    for turn in range(4_000):
        topic, value = chance.choice(list(honest.items()))
        hostile = mutated(chance, value) if turn % 2 else json.dumps(junk(chance), default=str).encode()
        try:
            found = parsed([record(topic, hostile)])
        except Exception as error:
            pytest.fail(f"seed {SEED}, turn {turn}: {hostile[:300]!r} on {topic}: {error!r}")
        assert len(found.events) + len(found.quarantine) + found.foreign >= 1


# -- what no parser foresees ------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create_by_path(tmp_path)
    return tmp_path


def rows(root: Path, name: str) -> list[dict[str, Any]]:
    return DeltaTable(root / name).to_pyarrow_table().sort_by("offset").to_pylist()


def write(root: Path, records: Sequence[dict[str, Any]], *, batch_id: int = 0) -> None:
    batches = StatusBatches(EventLog(root), tenant="default", uplink=UPLINK)
    batches.write(records, recorded_us=100, query_id="q", batch_id=batch_id)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that accepts values that tables cannot store, as that of 583ec94 did with results."""

    def careless(body: Any, name: str) -> str | None:
        return None if body.get(name) is None else json.dumps(body[name], ensure_ascii=False)

    monkeypatch.setattr("actions.status_rows.json_text", careless)


@pytest.mark.usefixtures("blind")
def test_a_batch_that_arrow_refuses_is_halved_down_to_the_record(root: Path) -> None:
    records = [record(ON_STATUS, status(seq=n), n) for n in range(100)]
    records[17]["value"] = records[63]["value"] = THE_POISON
    records[40]["value"] = b"not json"
    write(root, records)
    assert [row["offset"] for row in rows(root, "action_events")] == [n for n in range(100) if n not in (17, 40, 63)]
    bad = rows(root, "quarantine")
    assert [row["offset"] for row in bad] == [17, 40, 63]
    assert bad[0]["reason"].startswith("the record cannot be stored: ")
    write(root, records)
    assert len(rows(root, "action_events")) == 97, "a replay adds nothing"
    assert len(rows(root, "quarantine")) == 3


def test_a_batch_that_the_table_refuses_is_halved_down_to_the_record(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strict(table: Any, values: pa.Table, **options: Any) -> None:
        if "boot" in values.schema.names and "poison" in values.column("boot").to_pylist():
            raise pa.ArrowInvalid("this column cannot hold that")
        write_deltalake(table, values, **options)

    monkeypatch.setattr(event_log, "write_deltalake", strict)
    records = [record(ON_STATUS, status(boot="poison" if n == 5 else "b"), n) for n in range(9)]
    records[2]["value"] = b"not json"
    write(root, records)
    assert [row["offset"] for row in rows(root, "action_events")] == [0, 1, 3, 4, 6, 7, 8]
    assert [row["offset"] for row in rows(root, "quarantine")] == [2, 5], "existing rows are not duplicated"


def test_a_batch_whose_quarantine_an_older_version_wrote_keeps_what_this_one_finds(root: Path) -> None:
    """583ec94 wrote the quarantine of a batch and then failed on its events, at every start."""
    from deltalake import CommitProperties, Transaction

    records = [record(ON_STATUS, status(), 0), record(ON_STATUS, THE_POISON, 1), record(ON_STATUS, b"not json", 2)]
    there = parse(records[2:], tenant="default", recorded_us=5).quarantine
    marks = CommitProperties(app_transactions=[Transaction("q:quarantine", 0)])
    write_deltalake(root / "quarantine", arrow_of(there, QUARANTINE), mode="append", commit_properties=marks)
    write(root, records)
    assert [row["offset"] for row in rows(root, "action_events")] == [0]
    assert [row["offset"] for row in rows(root, "quarantine")] == [1, 2]


@pytest.mark.parametrize("error", [MemoryError("full"), OSError(28, "no space"), ImportError("gone"), KeyError("ours")])
def test_what_is_not_the_fault_of_a_record_ends_the_job_and_quarantines_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: Any, **__: Any) -> Parsed:
        raise error

    monkeypatch.setattr(status_batch, "parse", failing)
    with pytest.raises(type(error)):
        write(root, [record(ON_STATUS, status())])
    assert rows(root, "quarantine") == []


def test_content_errors_are_neither_of_memory_nor_of_files() -> None:
    others = (MemoryError, OSError, ImportError, pa.ArrowMemoryError, pa.ArrowCancelled, KeyError, RuntimeError)
    assert not any(issubclass(other, CONTENT_ERRORS) for other in others)
    assert not issubclass(WrongField, CONTENT_ERRORS)


def test_halving_finds_each_of_many_and_keeps_the_order() -> None:
    chance = random.Random(SEED)
    for _ in range(50):
        bad = {n for n in range(64) if chance.random() < 0.1}

        def check(some: Sequence[int], bad: set[int] = bad) -> None:
            if bad & set(some):
                raise OverflowError(f"{len(some)} items")

        kept, refused = fitting(range(64), check)
        assert (kept, {item for item, _ in refused}) == ([n for n in range(64) if n not in bad], bad)
