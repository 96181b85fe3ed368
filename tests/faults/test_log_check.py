"""The checker finds each kind of fault that it knows, and nothing in a sound log."""

from __future__ import annotations

import dataclasses
import socket
import threading

import pytest
from support.flight_server import FlightServer
from support.mosquitto import Mosquitto

from broker_edge.torture.check import LogCheck
from broker_edge.torture.load import LoadResult, MqttLoad, Place, Published
from broker_edge.torture.outbox import Outbox
from broker_edge.torture.reader import Bounds, LogReader, LostOffsetsError, Row
from broker_edge.torture.records import Publisher, Recipe, RecordName, resending_publishers
from broker_edge.torture.report import Finding
from broker_edge.torture.witness import witnesses

RECIPE = Recipe(1)
PUBLISHER = Publisher(connection=0, protocol=5, topic="devices/fault-0/telemetry", client_id="fault-0")
NAME = "telemetry-0"
SENT, ACKED = 10, 8


def _row(offset: int, sequence: int, *, epoch: int = 1) -> Row:
    return Row(
        offset=offset,
        epoch=epoch,
        timestamp_us=1_000 + offset,
        topic=PUBLISHER.topic,
        key=b"fault-0",
        client_id=PUBLISHER.client_id,
        qos=1,
        retain=False,
        value=RECIPE.payload(RecordName(1, 0, sequence)),
        log_id="log",
    )


class _Log:
    """A log with one partition, as a reader sees it."""

    def __init__(self) -> None:
        self.rows_held = [_row(offset, offset) for offset in range(ACKED)]
        self.high_watermark = ACKED
        self.log_start = 0
        self.epoch = 1

    def bounds(self, *, partitions: list[int] | None = None) -> dict[str, Bounds]:
        if partitions is not None:
            return {"internal-0": Bounds(0, "internal-0", 0, 0, self.epoch)}
        return {NAME: Bounds(3, NAME, self.log_start, self.high_watermark, self.epoch)}

    def rows(self, bounds: Bounds, start: int, end: int) -> list[Row]:
        return [row for row in self.rows_held if bounds.number == 3 and start <= row.offset < end]

    def drop_from(self, offset: int) -> None:
        self.rows_held = self.rows_held[:offset]
        self.high_watermark = offset


def _published() -> LoadResult:
    acked = {sequence: Place(NAME, sequence) for sequence in range(ACKED)}
    return LoadResult(1, RECIPE, (Published(PUBLISHER, sent=SENT, acked=acked),))


def _edit(log: _Log, offset: int, **fields: object) -> None:
    log.rows_held[offset] = dataclasses.replace(log.rows_held[offset], **fields)


def _lose_tail(log: _Log) -> None:
    log.drop_from(6)


def _lose_tail_and_reuse_offsets(log: _Log) -> None:
    log.drop_from(6)
    log.rows_held += [_row(6, 8, epoch=2), _row(7, 9, epoch=2)]
    log.high_watermark = 8


def _duplicate(log: _Log) -> None:
    log.rows_held.append(_row(8, 3, epoch=2))
    log.high_watermark = 9


def _swap(log: _Log) -> None:
    log.rows_held[2], log.rows_held[3] = _row(2, 3), _row(3, 2)


def _unsent(log: _Log) -> None:
    log.rows_held.append(_row(8, 10, epoch=2))
    log.high_watermark = 9


def _foreign(log: _Log) -> None:
    log.rows_held.append(dataclasses.replace(_row(8, 8, epoch=2), value=b"who is this"))
    log.high_watermark = 9


def _flip_bit(log: _Log) -> None:
    value = bytearray(log.rows_held[4].value)
    value[-1] ^= 1
    _edit(log, 4, value=bytes(value))


def _retopic(log: _Log) -> None:
    _edit(log, 4, topic="devices/other/telemetry")


def _hole(log: _Log) -> None:
    del log.rows_held[4]


def _short_read(log: _Log) -> None:
    log.high_watermark = 9


def _head_gone(log: _Log) -> None:
    log.rows_held = log.rows_held[2:]
    log.log_start = 2


def _old_epoch(log: _Log) -> None:
    log.epoch = 1


def _epoch_falls(log: _Log) -> None:
    log.rows_held.append(_row(8, 8, epoch=0))
    log.high_watermark = 9


FAULTS = [
    (_lose_tail, Finding.LOST),
    (_lose_tail_and_reuse_offsets, Finding.LOST),
    (_lose_tail_and_reuse_offsets, Finding.CHANGED),
    (_duplicate, Finding.DUPLICATED),
    (_swap, Finding.REORDERED),
    (_unsent, Finding.UNEXPECTED),
    (_foreign, Finding.UNEXPECTED),
    (_flip_bit, Finding.CHANGED),
    (_retopic, Finding.CHANGED),
    (_hole, Finding.HOLE),
    (_short_read, Finding.HOLE),
    (_head_gone, Finding.HOLE),
    (_old_epoch, Finding.EPOCH),
    (_epoch_falls, Finding.EPOCH),
]


def _checked(log: _Log, damage, *, seen_before: bool) -> LogCheck:
    check = LogCheck(RECIPE, (PUBLISHER,))
    if seen_before:
        check.observe(log)
    check.add(_published())
    log.epoch = 2
    damage(log)
    check.after_restart(log)
    check.everything(log)
    return check


def test_nothing_is_found_in_a_sound_log():
    for seen_before in (True, False):
        check = _checked(_Log(), lambda log: None, seen_before=seen_before)
        assert check.report.clean, check.report.details()
        assert check.report.readable == ACKED


@pytest.mark.parametrize(("damage", "fault"), FAULTS, ids=lambda one: getattr(one, "__name__", one))
def test_fault_is_found_when_the_record_was_read_before(damage, fault):
    check = _checked(_Log(), damage, seen_before=True)
    assert check.report.counts[fault] > 0, check.report.details()


# A checker that reads a log for the first time cannot know which records or epochs it had before.
FROM_ACKS_ALONE = [
    one for one in FAULTS if one not in [(_old_epoch, Finding.EPOCH), (_lose_tail_and_reuse_offsets, Finding.CHANGED)]
]


@pytest.mark.parametrize(("damage", "fault"), FROM_ACKS_ALONE, ids=lambda one: getattr(one, "__name__", one))
def test_fault_is_found_from_acknowledgements_alone(damage, fault):
    check = _checked(_Log(), damage, seen_before=False)
    assert check.report.counts[fault] > 0, check.report.details()


def test_record_that_was_delivered_and_is_nowhere_was_early():
    check = _checked(_Log(), lambda log: None, seen_before=True)
    first = RecordName(1, 0, 0)
    check.delivered({first}, {Place(NAME, 0): first}, "somebody")
    assert check.report.clean
    check.delivered({RecordName(1, 0, 9)}, {}, "somebody")
    assert check.report.counts[Finding.EARLY] == 1


def test_record_that_was_delivered_at_another_offset_was_early():
    check = _checked(_Log(), lambda log: None, seen_before=True)
    first = RecordName(1, 0, 0)
    check.delivered({first}, {Place(NAME, 1): first}, "somebody")
    assert check.report.counts[Finding.EARLY] == 1


def test_publish_that_was_sent_again_at_qos_1_may_be_there_again_and_no_other():
    log = _Log()
    _duplicate(log)
    for resends, clean in ((True, True), (False, False)):
        check = LogCheck(RECIPE, (dataclasses.replace(PUBLISHER, resends=resends),))
        check.add(_published())
        check.everything(log)
        assert check.report.clean == clean, check.report.details()


def test_what_the_broker_says_is_lost_is_a_hole():
    class Losing(_Log):
        def rows(self, bounds: Bounds, start: int, end: int) -> list[Row]:
            if start <= 4 < end:
                raise LostOffsetsError(4, 5)
            return super().rows(bounds, start, end)

    check = LogCheck(RECIPE, (PUBLISHER,))
    check.everything(Losing())
    assert check.report.counts[Finding.HOLE] == 1


def test_qos_2_is_sent_again_until_it_is_complete_and_arrives_once(tmp_path, need_program, seed):
    """Runs against a broker that implements QoS 2, so that a fault cannot be in the load itself."""
    need_program("mosquitto")
    recipe = Recipe(seed)
    sources = tuple(one for one in resending_publishers(qos2=True) if one.qos == 2)
    outboxes = {one.connection: Outbox() for one in sources}
    (witness, _) = witnesses()
    with Mosquitto(tmp_path, "max_queued_messages 0", "max_inflight_messages 0") as broker:
        address = ("127.0.0.1", broker.port)
        witness.connect(address)
        told: set[RecordName] = set()
        for run in range(4):
            last = run == 3
            load = MqttLoad(
                address=address,
                run=run,
                recipe=recipe,
                publishers=sources,
                want_offsets=False,
                records_each=200 if last else None,
                outboxes=outboxes,
            )
            with load:  # Ends in the middle of flows, except for the last one.
                load.wait(lambda one: one.acked >= 600, seconds=120, what="600 acknowledgements")
                if last:
                    load.wait(lambda one: one.over, seconds=120, what="all flows to end")
            result = load.stop()
            for one in result.connections:
                assert not one.violations
                told |= {result.name(one, sequence) for sequence in one.acked} | one.late.keys()
        assert not witness.wait(told, seconds=30)
        witness.close()
    assert sum(one.resent.total() for one in outboxes.values()) > 0
    assert not any(one.unfinished for one in outboxes.values())
    assert not witness.violations


@pytest.mark.parametrize("may_be_refused", [True, False])
def test_refused_witness_is_a_violation_unless_the_broker_was_made_to_fail(may_be_refused):
    witness = witnesses()[1]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(bytes((0x20, 3, 0, 0x88, 0)))

        broker = threading.Thread(target=refuse)
        broker.start()
        witness.connect(listener.getsockname(), may_be_refused=may_be_refused)
        broker.join()
    witness.join()
    assert witness.violations == ([] if may_be_refused else ["witness-5: CONNACK 0x88 "])


def test_record_that_retention_removed_is_not_lost():
    log = _Log()
    check = LogCheck(RECIPE, (PUBLISHER,), has_retention=True)
    check.add(_published())
    log.epoch = 2
    _head_gone(log)
    check.after_restart(log)
    check.everything(log)
    assert check.report.clean, check.report.details()


@pytest.mark.parametrize("is_changed", [False, True])
def test_records_that_another_leader_has_not_removed_yet_may_come_back_as_they_were(is_changed):
    log = _Log()
    check = LogCheck(RECIPE, (PUBLISHER,), has_retention=True)
    check.add(_published())
    log.log_start = 5
    check.after_restart(log)
    log.epoch, log.log_start = 2, 2
    if is_changed:
        _flip_bit(log)
    check.everything(log)
    assert {finding for finding, count in check.report.counts.items() if count} == (
        {Finding.CHANGED} if is_changed else set()
    ), check.report.details()


def test_broker_that_keeps_nothing_loses_every_acknowledged_record(tmp_path, need_program, seed, note):
    need_program("mosquitto")
    sources = tuple(
        Publisher(connection=n, protocol=(4, 5)[n % 2], topic=f"devices/fault-{n}/telemetry", client_id=f"fault-{n}")
        for n in range(4)
    )
    recipe = Recipe(seed)
    check = LogCheck(recipe, sources)
    with Mosquitto(tmp_path) as broker:
        address = ("127.0.0.1", broker.port)
        with MqttLoad(address=address, run=1, recipe=recipe, publishers=sources, want_offsets=False) as load:
            load.wait(lambda one: one.acked > 2_000, seconds=120, what="2,000 acknowledgements")
            broker.kill()
            load.wait(lambda one: one.over, seconds=60, what="the connections to end with the broker")
        check.add(load.stop())
    with FlightServer() as empty, LogReader(("127.0.0.1", empty.port)) as reader:
        check.everything(reader)
    note(check.report)
    assert check.report.counts[Finding.LOST] == check.report.acked > 2_000
    assert not check.report.violations
