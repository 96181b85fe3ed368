"""Where the status pipeline resumes with an empty checkpoint, according to `action_events`. No Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from deltalake import DeltaTable

from actions.event_log import EventLog
from sinks.store import StoreAccess
from sinks.tables import create_by_path


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    create_by_path(tmp_path)
    return EventLog(tmp_path)


def event(
    offset: int, epoch: int, *, partition: int = 3, log_id: str = "log-a", source: str = "status"
) -> dict[str, object]:
    place = {"log_id": log_id, "partition": partition, "offset": offset, "epoch": epoch}
    return {"event_id": f"{log_id}:{partition}:{offset}:{epoch}", "source": source, **place}


def test_an_empty_table_names_no_place(log: EventLog) -> None:
    assert log.places() == {}


def test_a_copy_that_was_sent_elsewhere_continues(log: EventLog, tmp_path: Path) -> None:
    """As over Spark Connect, where the batches are written at the server. A table itself cannot be sent."""
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(DeltaTable(str(tmp_path / "action_events")))
    log.append([event(7, 2)], [], query_id="q", batch_id=0)
    copy: EventLog = pickle.loads(pickle.dumps(log))
    copy.append([event(7, 2)], [], query_id="q", batch_id=0)
    copy.append([event(8, 2)], [], query_id="q", batch_id=1)
    assert log.places() == copy.places() == {"log-a": {"3": [9, 2]}}


def test_a_copy_has_the_reference_of_a_secret_and_not_the_secret(tmp_path: Path) -> None:
    create_by_path(tmp_path)
    (tmp_path / "key").write_text("a-secret-that-must-not-leak\n")
    options = {"aws_access_key_id": "ann", "aws_secret_access_key": f"file:{tmp_path}/key"}
    sent = pickle.dumps(EventLog(tmp_path, access=StoreAccess.of(options)))
    assert b"a-secret-that-must-not-leak" not in sent
    assert f"file:{tmp_path}/key".encode() in sent


def test_each_log_and_partition_goes_on_behind_its_newest_record(log: EventLog) -> None:
    events = [event(7, 2), event(4, 1), event(11, 5, partition=4), event(0, 9, log_id="log-b", source="receipt")]
    by_others = [{**event(50, 50), name: None} for name in ("log_id", "partition", "offset")]
    log.append([*events, event(99, 99, source="engine"), *by_others], [], query_id="q", batch_id=0)
    assert log.places() == {"log-a": {"3": [8, 2], "4": [12, 5]}, "log-b": {"3": [1, 9]}}


def test_a_log_that_was_cut_goes_on_behind_the_record_of_the_newest_epoch(log: EventLog) -> None:
    """Offsets 5 to 9 were truncated, and 5 and 6 rewritten: 9 is the highest offset, but its record is gone."""
    log.append([event(offset, 1) for offset in range(10)], [], query_id="q", batch_id=0)
    log.append([event(6, 2), event(5, 2)], [], query_id="q", batch_id=1)
    assert log.places() == {"log-a": {"3": [7, 2]}}
