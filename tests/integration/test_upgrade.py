"""The files of a broker of 583ec94, used by the broker of this checkout with the old configuration.

The programs of 583ec94 made the fixture (tests/fixtures/upgrade/make.py). docs/upgrade.md lists intended differences;
everything else must be unchanged.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.programs import headwaterd, run
from support.raw_mqtt import PUBCOMP, PUBLISH, PUBREC, PUBREL, RawMqtt
from support.upgrade import WAIT_S, Folder, UpgradeBroker, ask_acl, unpack

from broker_edge import Client, Commit, Credentials, RefusedError
from broker_edge.artifacts import ArtifactStore

REFUSED_ID = 0x85

# docs/upgrade.md, `client-ids`: what a client id alone allowed, and no longer allows.
CLIENT_IDS_ALONE = {
    ("line", "line-c", "subscribe", "devices/line-c/#"),
    ("pump-7", "pump-99", "publish", "devices/pump-99/status"),
    ("pump-7", "pump-99", "subscribe", "devices/pump-99/actions"),
    ("gateway", "gw-1", "publish", "devices/gw-1/telemetry"),
    ("gateway", "gw-1", "subscribe", "devices/gw-1/actions"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return unpack(tmp_path)


@pytest.fixture
def broker(folder: Folder) -> Iterator[UpgradeBroker]:
    with UpgradeBroker(headwaterd(), folder) as started:
        yield started


@pytest.fixture
def clients(broker: UpgradeBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Client]]:
    """A Flight client for each of three users, with their old passwords."""
    users = ("root", "ann", "bob")
    for user in users:
        monkeypatch.setenv(f"UPGRADE_{user.upper()}", broker.folder.passwords[user])
    made = {
        user: Client(broker.server, credentials=Credentials(user=user, password=f"env:UPGRADE_{user.upper()}"))
        for user in users
    }
    yield made
    for client in made.values():
        client.close()


def payloads(client: RawMqtt, count: int) -> list[bytes]:
    return [packet.payload for packet in client.deliveries(count)]


def all_rows(client: Client, filters: str) -> list[dict[str, Any]]:
    """The rows in the log that match the filter."""
    rows: list[dict[str, Any]] = []
    for number, one in client.offsets(filters=filters).partitions.items():
        for batch in client.fetch(number, one.log_start, one.high_watermark, filters=filters):
            rows += batch.to_pylist()
    return rows


def acknowledged(member: RawMqtt) -> list[bytes]:
    """Acknowledges the messages for a member of a shared group until no more arrive."""
    got: list[bytes] = []
    while not member.nothing_waits():
        got += payloads(member, 1)
    return got


def test_the_log_goes_on_where_it_ended(broker: UpgradeBroker, clients: dict[str, Client]) -> None:
    root, expected = clients["root"], broker.folder.expected
    assert root.version().log_id == expected["log_id"]
    there = {one.name: [one.log_start, one.high_watermark] for one in root.offsets().partitions.values()}
    # The will that has become due, and records of the start itself, may follow it.
    for name, (log_start, end) in expected["partitions"].items():
        assert there[name][0] == log_start, name
        assert there[name][1] >= end, name
    read = Counter(row["topic"] for row in all_rows(root, "plants/1/#"))
    assert {topic: count for topic, count in read.items() if "qos" in topic} == {
        f"plants/1/qos{n}": 20 for n in (0, 1, 2)
    }
    artifact = ArtifactStore(root).list()
    assert [(one.name, one.version, one.problem) for one in artifact] == [("pump-fw", "1.0", None)]


def test_users_come_in_with_the_passwords_of_then(broker: UpgradeBroker) -> None:
    for user, password in broker.folder.passwords.items():
        with broker.connect(f"{user}-asks", user, passing=True) as client:
            assert client.code == 0, user
        with broker.connect(f"{user}-asks", user, password=f"{password}x", passing=True) as client:
            assert client.code == 0x86, user


def test_the_acl_gives_what_it_gave_but_for_client_ids_alone(broker: UpgradeBroker) -> None:
    before = {tuple(question): may for *question, may in broker.folder.expected["acl"]}
    now = dict(zip(before, ask_acl(broker), strict=True))
    assert {question for question in before if before[question] != now[question]} == CLIENT_IDS_ALONE
    assert not any(now[question] for question in CLIENT_IDS_ALONE)


def test_client_ids_any_gives_all_that_the_acl_gave(folder: Folder) -> None:
    with UpgradeBroker(headwaterd(), folder, settings={"auth.client_ids": "any"}) as broker:
        assert ask_acl(broker) == [row[-1] for row in folder.expected["acl"]]


def test_all_sessions_are_there_and_each_user_gets_its_own_back(broker: UpgradeBroker) -> None:
    status, clients = broker.get("/api/v1/clients?limit=1000", "root")
    assert status == 200
    assert sorted(one["client_id"] for one in clients["clients"]) == broker.folder.expected["sessions"]
    with broker.connect("pump-7", "pump-7") as pump:
        assert pump.connack.session_present
        got = [(packet.topic, packet.payload, packet.qos) for packet in pump.deliveries(6)]
        orders = [("devices/pump-7/orders", b"order-%d" % number, 1) for number in range(3)]
        exact = [("devices/pump-7/exact", b"exact-%d" % number, 2) for number in range(2)]
        assert [one for one in got if one[0] != "devices/pump-7/actions"] == [*orders, *exact]
        assert sum(one[0] == "devices/pump-7/actions" for one in got) == 1
        assert pump.nothing_waits()
    with broker.connect("gw-1", "gateway") as gateway:
        assert gateway.connack.session_present
        # Under the old ACL this user no longer has any permission below devices/gw-1 (docs/upgrade.md, `client-ids`).
        assert payloads(gateway, 1) == [b"for the gateway"]
        assert gateway.nothing_waits()
    with broker.connect("lobby", None) as lobby:
        assert lobby.connack.session_present
        assert payloads(lobby, 1) == [b"news"]


def test_client_id_lines_give_a_gateway_what_waits_for_it(folder: Folder) -> None:
    with folder.acl.open("a") as acl:
        acl.write("user gateway\nclient-id gw-*\n")
    with UpgradeBroker(headwaterd(), folder) as broker, broker.connect("gw-1", "gateway") as gateway:
        assert sorted(payloads(gateway, 2)) == [b"for gw-1", b"for the gateway"]


def test_a_session_from_before_belongs_to_the_first_that_connects(broker: UpgradeBroker) -> None:
    with broker.connect("pump-7", "gateway") as first:
        assert first.code == 0
        assert first.connack.session_present
        assert first.nothing_waits(), "it owns the session, but not what the ACL reserves for pump-7"
        with broker.connect("pump-7", "line") as second:
            assert second.code == REFUSED_ID
        first.ping()
    # The id is pump-7's name: pump-7 is not locked out, and gets a new session.
    with broker.connect("pump-7", "pump-7") as owner:
        assert owner.code == 0
        assert not owner.connack.session_present
    with broker.connect("pump-8", "pump-8") as owner:
        assert owner.connack.session_present
        owner.leave()
    broker.wait_away("pump-8")
    with broker.connect("pump-8", "gateway") as other:
        assert other.code == REFUSED_ID
    # This does not change after a restart.
    assert broker.stop() == 0
    broker.start()
    with broker.connect("pump-8", "gateway") as other:
        assert other.code == REFUSED_ID
    with broker.connect("pump-8", "pump-8") as owner:
        assert owner.connack.session_present


def test_half_finished_handshakes_of_qos_2_end_once(broker: UpgradeBroker, clients: dict[str, Client]) -> None:
    half = broker.folder.expected["half"]
    with broker.connect("pump-8", "pump-8") as pump:
        assert pump.take(PUBREL).packet_id == half["released"]
        pump.send(PUBCOMP, half["released"])
        again = pump.take(PUBLISH)
        assert (again.packet_id, again.payload, again.again) == (half["sent"], b"half-1", True)
        pump.acknowledge(again)
        pump.publish("devices/pump-8/done", b"once", qos=2, packet_id=half["received"], again=True)
        assert pump.take(PUBREC).packet_id == half["received"]
        pump.send(PUBREL, half["received"])
        assert pump.take(PUBCOMP).packet_id == half["received"]
        assert pump.nothing_waits()
    assert [row["value"] for row in all_rows(clients["root"], "devices/pump-8/done")] == [b"once"]


def test_a_shared_group_goes_on_with_what_its_members_left(broker: UpgradeBroker) -> None:
    with broker.connect("line-a", "line") as first, broker.connect("line-b", "line") as second:
        assert first.connack.session_present
        assert second.connack.session_present
        # The first member may have received all waiting messages.
        got: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while len(got) < 6 and time.monotonic() < deadline:
            got += acknowledged(first) + acknowledged(second)
        assert sorted(got) == [b"job-%d" % number for number in range(6)]


def test_retained_messages_are_there(broker: UpgradeBroker) -> None:
    with broker.connect("asks", "root", passing=True) as root:
        assert root.subscribe(("public/#", 1), ("plants/#", 1), ("devices/pump-7/config", 1)) == (1, 1, 1)
        got = {packet.topic: packet.payload for packet in root.deliveries(3)}
        assert got == {"public/motd": b"hello", "plants/1/mode": b"auto", "devices/pump-7/config": b'{"rate":5}'}
        assert root.nothing_waits()


def test_a_will_that_came_due_is_published_and_another_waits(broker: UpgradeBroker) -> None:
    with broker.connect("watcher", "root") as watcher:
        assert [(packet.topic, packet.payload) for packet in watcher.deliveries(1)] == [
            ("devices/pump-9/lost", b"lost")
        ]
        with broker.connect("pump-10", "pump-10") as pump:
            assert pump.connack.session_present
            pump.leave()
        assert watcher.nothing_waits()


def test_groups_keep_what_was_committed_and_belong_to_the_first_that_commits(
    broker: UpgradeBroker, clients: dict[str, Client]
) -> None:
    root, ann, bob = (clients[user] for user in ("root", "ann", "bob"))
    there = {
        group.group: {
            "reader_epoch": group.reader_epoch,
            "partitions": {str(n): [at.initial, at.committed, at.scanned] for n, at in group.partitions.items()},
        }
        for group in root.groups()
    }
    assert there == broker.folder.expected["groups"]
    (number,) = there["plants"]["partitions"]
    # Both had committed to it; from now on it belongs to the first one that commits.
    assert bob.commit("both", reader_epoch=2, offsets={int(number): Commit(8)}).partitions[int(number)].committed == 8
    with pytest.raises(RefusedError):
        ann.commit("both", reader_epoch=3, offsets={int(number): Commit(0)})
    assert ann.commit("plants", reader_epoch=3, offsets={int(number): Commit(6)}).partitions[int(number)].committed == 6
    with pytest.raises(RefusedError):
        bob.commit("plants", reader_epoch=9, offsets={int(number): Commit(0)})
    root.remove_group("plants")


def test_check_names_each_line_whose_meaning_changes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.broker)
    checked = run(headwaterd(), "--check", "--config", "broker.yaml")
    assert checked.code == 0, checked.err
    assert checked.lines[0] == "the settings are valid"
    places = [line.partition(": [")[0] for line in checked.lines[2:]]
    # Every pattern with %c, and every replay permission except the operator's, who is refused nothing.
    of_the_operator = "topic replay #"
    assert {place for place in places if place.startswith("acl:")} == {
        f"acl:{number}"
        for number, line in enumerate(folder.acl.read_text().splitlines(), 1)
        if not line.startswith("#") and ("%c" in line or "replay" in line) and line != of_the_operator
    }
    assert set(places) >= {"auth.password_file", "mqtt.max_sessions", "flight.max_reads", "listeners.admin.bind"}


def test_what_the_broker_keeps_of_itself_has_all_that_the_old_one_reads(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/upgrade.md, "Going back": the old broker ignores unknown fields, and needs the known ones."""
    with folder.acl.open("a") as acl:
        acl.write("user root\ntopic replay $state/#\n")
    monkeypatch.setenv("UPGRADE_ROOT", folder.passwords["root"])
    with UpgradeBroker(headwaterd(), folder) as broker:
        before = own_state(broker)
        with broker.connect("pump-7", "pump-7") as pump:
            assert pump.connack.session_present
            pump.leave()
        broker.wait_away("pump-7")
        after = own_state(broker)
    assert before
    for topic, fields in before.items():
        assert fields <= after[topic], topic


def own_state(broker: UpgradeBroker) -> dict[str, set[str]]:
    """The fields of sessions and groups in the internal partition."""
    with Client(broker.server, credentials=Credentials(user="root", password="env:UPGRADE_ROOT")) as root:
        rows = all_rows(root, "$state/#")
    kept = {row["topic"]: row["value"] for row in rows}
    kinds = ("$state/session/", "$state/group/")
    return {topic: set(json.loads(value)) for topic, value in kept.items() if value and topic.startswith(kinds)}
