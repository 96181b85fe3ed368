"""Artifacts in the logs of several brokers: copies from one to another, `push --all`, and what targets wait for."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine import Engine, action_of, devices_of
from support.engine_world import EngineWorld
from support.flight_server import FlightServer, refusal

from actions.engine import Artifact, Logs, Ota, Rollout, Selector, Served, TargetState
from actions.job import ActionJob
from actions.stock import AT_ONCE_MAX, BrokerDepot, Depot, Stock
from actions.store import DeltalakeStore
from broker_edge import Client, ConnectError, RefusedError
from broker_edge.artifacts import ArtifactError, ArtifactStore, SigningKey, Trust, copy, push
from broker_edge.torture.waiting import wait_until
from headwater_cli import main
from sinks import tables
from sinks.devices import Fleet

CHUNK = 1024
WAIT_S = 30.0


@pytest.fixture
def servers() -> Iterator[tuple[FlightServer, FlightServer]]:
    with FlightServer() as one, FlightServer() as other:
        yield one, other


@pytest.fixture
def clients(servers: tuple[FlightServer, FlightServer]) -> tuple[Client, Client]:
    one, other = (Client(server.location, timeout_s=WAIT_S) for server in servers)
    return one, other


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(20 * CHUNK + 7))
    return path


def test_a_copy_has_the_same_bytes_and_signature(clients: tuple[Client, Client], image: Path, tmp_path: Path) -> None:
    key = SigningKey.generate()
    key.save(tmp_path / "key")
    push(clients[0], image, "fw", "1", key=key, chunk_size=CHUNK)
    done = copy(*clients, "fw", "1")
    assert (done.stored, done.existed) == (21, False)
    checked = ArtifactStore(clients[1]).verify("fw", "1", trust=Trust.load([tmp_path / "key.pub"]))
    assert checked.key_id == key.key_id
    assert copy(*clients, "fw", "1").existed
    assert push(clients[1], image, "fw", "1", chunk_size=CHUNK).existed


def test_an_interrupted_copy_continues(
    clients: tuple[Client, Client], servers: tuple[FlightServer, FlightServer], image: Path
) -> None:
    push(clients[0], image, "fw", "1", chunk_size=CHUNK)
    calls = 0

    def second_fails(name: str) -> None:
        nonlocal calls
        calls += name == "DoPut"
        if name == "DoPut" and calls == 2:
            raise refusal("invalid_argument", "not now")

    servers[1].before = second_fails
    with pytest.raises(RefusedError):
        copy(*clients, "fw", "1")
    assert calls == 2, "the copy was interrupted in the middle"
    assert ArtifactStore(clients[1]).find("fw", "1") is None
    done = copy(*clients, "fw", "1")
    assert (done.stored, done.found) == (13, 8)
    assert ArtifactStore(clients[1]).verify("fw", "1").manifest.artifact.size == 20 * CHUNK + 7


def test_a_damaged_source_is_not_copied(
    clients: tuple[Client, Client], servers: tuple[FlightServer, FlightServer], image: Path
) -> None:
    push(clients[0], image, "fw", "1", chunk_size=CHUNK)
    for partition in servers[0].log.partitions.values():
        for number, record in enumerate(partition.records):
            if record.topic == "artifacts/fw/1/chunks" and record.offset == 3:
                partition.records[number] = replace(record, value=b"x" * CHUNK)
    with pytest.raises(ArtifactError, match="does not match the manifest"):
        copy(*clients, "fw", "1")
    assert ArtifactStore(clients[1]).find("fw", "1") is None


def test_push_all_says_for_each_broker_what_happened(
    servers: tuple[FlightServer, FlightServer], image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "pipelines.yaml"
    brokers = [
        {"server": server.location, "name": name} for server, name in zip(servers, ("roof", "yard"), strict=True)
    ]
    settings.write_text(json.dumps({"brokers": brokers}))
    command = ["artifacts", "push", str(image), "fw", "1", "--all", "--config", str(settings)]
    servers[0].down()
    assert main(command) == 3
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("roof: failed: ")
    assert said.out.splitlines()[1].startswith("yard: fw 1: 1 chunks stored; ")
    servers[0].up()
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["brokers"]
    assert [(row["broker"]["name"], row["existed"]) for row in rows] == [("roof", False), ("yard", True)]


def test_push_takes_several_servers_and_refuses_what_makes_no_sense(
    servers: tuple[FlightServer, FlightServer], image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [word for server in servers for word in ("--server", server.location)]
    assert main(["artifacts", "push", str(image), "fw", "1", *named]) == 0
    assert [line.split(": ", 1)[0] for line in capsys.readouterr().out.splitlines()] == [
        one.location for one in servers
    ]
    assert main(["artifacts", "push", str(image), "fw", "1", "--all", *named]) == 2
    assert "give --all or --server, not both; the variable HEADWATER_SERVER counts" in capsys.readouterr().err
    settings = tmp_path / "pipelines.yaml"
    settings.write_text("{}")
    assert main(["artifacts", "push", str(image), "fw", "1", "--config", str(settings)]) == 2
    assert "--config goes with --all or --offer" in capsys.readouterr().err


class Shelf:
    """The artifacts of a broker without the broker; `holds` keeps a copy from ending."""

    def __init__(self, **digests: str) -> None:
        self.digests, self.copied = dict(digests), 0
        self.holds: threading.Event | None = None

    def digest(self, name: str, version: str) -> str | None:
        return self.digests.get(name)

    def copy_to(self, other: Depot, name: str, version: str) -> None:
        assert isinstance(other, Shelf)
        if self.holds is not None:
            assert self.holds.wait(WAIT_S)
        self.copied += 1
        other.digests[name] = self.digests[name]


SHA256 = "a" * 64
BROKERS = (Served("roof", "log-roof"), Served("yard", "log-yard"))


def settled(stock: Stock, name: str, sha256: str = "abc", *, log_id: str = "log-yard") -> str | None:
    """What is known once nobody looks any more."""
    place = (log_id, name, "1", sha256)
    wait_until(lambda: not stock._busy and place in stock.known(), seconds=WAIT_S, what=f"an answer about {name}")
    return stock.known()[place]


def test_what_is_missing_is_copied_from_a_broker_that_has_the_same_bytes() -> None:
    woken = threading.Event()
    roof, yard = Shelf(fw="abc", odd="other"), Shelf()
    stock = Stock([roof, yard], wake=woken.set)
    stock.bring({("log-yard", "fw", "1", "abc")}, BROKERS)
    assert settled(stock, "fw") is None
    assert woken.is_set()
    stock.bring({("log-yard", "odd", "1", "abc")}, BROKERS)
    said = "other bytes have this version (sha256 other…, not abc… as in the table artifacts)"
    assert settled(stock, "odd") == said
    stock.bring({("log-yard", "none", "1", "abc")}, BROKERS)
    assert settled(stock, "none") == "no broker that answers has it; push it with `headwater artifacts push`"
    stock.bring({("log-yard", "fw", "1", "abc"), ("log-yard", "none", "1", "abc")}, BROKERS)
    assert not stock._busy, "nobody looks again so soon"
    assert roof.copied == 1


def test_an_answer_holds_for_the_bytes_that_were_wanted() -> None:
    """Somebody corrects the sha256 of a version in the table `artifacts`."""
    stock = Stock([Shelf(fw="abc"), Shelf(fw="abc")], wake=lambda: None)
    stock.bring({("log-yard", "fw", "1", "abc")}, BROKERS)
    assert settled(stock, "fw") is None
    both = {("log-yard", "fw", "1", "abc"), ("log-yard", "fw", "1", "new")}
    stock.bring(both, BROKERS)
    said = "other bytes have this version (sha256 abc…, not new… as in the table artifacts)"
    assert settled(stock, "fw", "new") == said
    stock.bring(both, BROKERS)
    assert not stock._busy, "nobody looks again so soon"
    assert settled(stock, "fw") is None, "the other tenant has its bytes"


def test_answers_are_bounded_and_those_that_are_wanted_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actions.stock.FOUND_MAX", 2)
    stock = Stock([Shelf(a="s", b="s", c="s"), Shelf(a="s", b="s", c="s")], wake=lambda: None)
    for name in ("a", "b", "c"):
        stock.bring({("log-yard", "a", "1", "s"), ("log-yard", name, "1", "s")}, BROKERS)
        settled(stock, "a", "s")
        stock.bring({("log-yard", "a", "1", "s"), ("log-yard", name, "1", "s")}, BROKERS)
        settled(stock, name, "s")
    stock.bring({("log-yard", "a", "1", "s")}, BROKERS)
    assert {name for _, name, *_ in stock.known()} == {"a", "c"}, "b is the oldest that nobody wants"
    assert len(stock._look_from) == 2


def test_copies_are_bounded_and_keep_no_other_log_waiting() -> None:
    brokers = [Served(f"b{number}", f"log-{number}") for number in range(AT_ONCE_MAX + 2)]
    source, *shelves = [Shelf(fw="abc"), *(Shelf() for _ in brokers[1:])]
    source.holds = threading.Event()
    stock = Stock([source, *shelves], wake=lambda: None)
    began = time.monotonic()
    stock.bring({(f"log-{number}", "fw", "1", "abc") for number in range(1, len(brokers))}, brokers)
    assert time.monotonic() - began < WAIT_S / 2, "it returns at once"
    assert len(stock._busy) == AT_ONCE_MAX
    source.holds.set()
    assert settled(stock, "fw", log_id="log-1") is None
    stock.bring({(f"log-{number}", "fw", "1", "abc") for number in range(1, len(brokers))}, brokers)
    assert settled(stock, "fw", log_id=f"log-{len(brokers) - 1}") is None


def test_copies_that_hang_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actions.stock.AT_ONCE_MAX", 1)
    brokers = (*BROKERS, Served("dock", "log-dock"))
    hangs, yard, dock = Shelf(fw="abc"), Shelf(), Shelf(other="abc")
    hangs.holds = threading.Event()
    stock = Stock([hangs, yard, dock], wake=lambda: None)
    wanted = {("log-yard", "fw", "1", "abc"), ("log-dock", "other", "1", "abc")}
    stock.bring({("log-yard", "fw", "1", "abc")}, brokers)
    stock.bring(wanted, brokers)
    assert len(stock._busy) == 1, "the only place is taken"
    monkeypatch.setattr("actions.stock.COPY_S", 0.0)
    stock.bring(wanted, brokers)
    answer = ("log-dock", "other", "1", "abc")
    wait_until(lambda: stock.known().get(answer, "") is None, seconds=WAIT_S, what="an answer of the other broker")
    assert stock.known()["log-yard", "fw", "1", "abc"] == "it has been looked for and copied for more than 0 s"
    stock.bring(wanted, brokers)
    assert list(stock._busy) == [1], "its own broker gets nothing else"
    hangs.holds.set()
    assert settled(stock, "fw") is None, "it still ends"


def test_a_copy_that_ends_while_it_is_called_slow_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Shelf(fw="abc")
    source.holds = threading.Event()
    stock = Stock([source, Shelf()], wake=lambda: None)
    wanted = ("log-yard", "fw", "1", "abc")
    stock.bring({wanted}, BROKERS)
    monkeypatch.setattr("actions.stock.COPY_S", 0.0)
    lock, here, released = stock._lock, threading.get_ident(), []

    class Lock:
        """Lets the copy end as soon as the thread of the job has looked which copies are slow."""

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            if threading.get_ident() == here and not released:
                released.append(True)
                source.holds.set()
                wait_until(lambda: stock.known().get(wanted, "") is None, seconds=WAIT_S, what="the copy")

    monkeypatch.setattr(stock, "_lock", Lock())
    stock._tell_slow()
    assert stock.known() == {wanted: None}


def test_a_broker_that_is_away_is_not_asked_and_an_error_becomes_the_reason() -> None:
    class Away(Shelf):
        def digest(self, name: str, version: str) -> str | None:
            raise ConnectError("nobody answers")

    stock = Stock([Shelf(fw="abc"), Away()], wake=lambda: None)
    stock.bring({("log-yard", "fw", "1", "abc")}, (BROKERS[0], replace(BROKERS[1], away=True)))
    assert not stock.known()
    stock.bring({("log-yard", "fw", "1", "abc")}, BROKERS)
    assert settled(stock, "fw") == "nobody answers"


def test_depots_of_real_servers_copy(clients: tuple[Client, Client], image: Path) -> None:
    push(clients[0], image, "fw", "1")
    depots = [BrokerDepot(client) for client in clients]
    sha256 = depots[0].digest("fw", "1")
    assert sha256 is not None
    stock = Stock(depots, wake=lambda: None)
    stock.bring({("log-yard", "fw", "1", sha256)}, BROKERS)
    assert settled(stock, "fw", sha256) is None
    assert depots[1].digest("fw", "1") == sha256


def update(**fields: object) -> Engine:
    """An update in two waves for d1 (roof) and d2 (yard), where only the roof has the artifact."""
    artifact = Artifact("fw", "1", "default", sha256=SHA256, size_bytes=10, signature="b" * 128, key_id="k1")
    action = action_of(
        type="ota",
        selector=Selector(device_ids=("d1", "d2")),
        ota=Ota(artifact_name="fw", artifact_version="1"),
        **fields,
    )
    devices = devices_of("d1", "d2")
    devices = {id_: replace(devices[id_], log=log) for id_, log in (("d1", "roof"), ("d2", "yard"))}
    engine = Engine(devices=devices, artifacts={artifact.key: artifact})
    engine.logs = Logs(BROKERS, {("log-roof", "fw", "1", SHA256): None})
    engine.actions.append(action)
    engine.tick()
    return engine


def test_a_target_whose_log_lacks_the_artifact_waits_and_the_others_go_on() -> None:
    engine = update()
    assert engine.last.wanted == {("log-roof", "fw", "1", SHA256), ("log-yard", "fw", "1", SHA256)}
    assert (engine.target("d1").state, engine.target("d2").state) == (TargetState.QUEUED, TargetState.PENDING)
    assert engine.target("d2").message == "its artifact fw 1 is not in the log log-yard: nobody has looked yet"
    engine.logs = Logs(
        BROKERS, {("log-roof", "fw", "1", SHA256): None, ("log-yard", "fw", "1", SHA256): "it is being copied there"}
    )
    engine.tick()
    assert engine.target("d2").message == "its artifact fw 1 is not in the log log-yard: it is being copied there"
    engine.logs = Logs(BROKERS, {("log-roof", "fw", "1", SHA256): None, ("log-yard", "fw", "1", SHA256): None})
    engine.tick()
    assert (engine.target("d2").state, engine.target("d2").message) == (TargetState.QUEUED, None)


def test_the_logs_of_the_next_wave_are_wanted_before_it_begins() -> None:
    waves = json.dumps([{"percentage": 50}, {"percentage": 100}])
    engine = update(rollout=Rollout(waves=waves))
    assert {target.wave for target in engine.state.targets["a1"].values()} == {0, 1}
    assert {log_id for log_id, *_ in engine.last.wanted} == {"log-roof", "log-yard"}


def test_with_one_broker_nobody_looks() -> None:
    engine = update()
    engine.logs = Logs((Served("yard", "log-yard"),))
    engine.tick()
    assert engine.last.wanted == frozenset()
    assert engine.target("d2").state is TargetState.QUEUED


def test_the_job_copies_the_artifact_and_then_sends_the_command(
    servers: tuple[FlightServer, FlightServer], clients: tuple[Client, Client], image: Path, tmp_path: Path
) -> None:
    key = SigningKey.generate()
    pushed = push(clients[0], image, "fw", "1", key=key).manifest
    assert pushed.signature is not None
    world = EngineWorld(tmp_path / "tables")
    rows = [{"device_id": id_, "log": server.log.log_id} for id_, server in zip(("d1", "d2"), servers, strict=True)]
    world.insert(tables.DEVICES, *rows)
    signature = {"signature": pushed.signature.value.hex(), "key_id": pushed.signature.key_id}
    artifact = {"name": "fw", "version": "1", "sha256": pushed.artifact.sha256, "size_bytes": pushed.artifact.size}
    world.insert(tables.ARTIFACTS, {**artifact, **signature})
    world.action(type="ota", artifact_name="fw", artifact_version="1", name=None)
    fleet = Fleet([server.location for server in servers])
    depots = [BrokerDepot(publisher.client) for publisher in fleet.publishers]
    job = ActionJob(DeltalakeStore(world.root), fleet.publishers, depots=depots)
    deadline = time.monotonic() + WAIT_S
    while world.states() != {"QUEUED"}:
        assert time.monotonic() < deadline, world.rows("action_targets")
        job.turn()
    job.close()
    fleet.close()
    assert ArtifactStore(clients[1]).verify("fw", "1").manifest.signature == pushed.signature
    topics = [[r.topic for p in server.log.partitions.values() for r in p.records] for server in servers]
    assert [some.count(f"devices/{id_}/actions") for some, id_ in zip(topics, ("d1", "d2"), strict=True)] == [1, 1]
