"""A whole fleet on a cluster of machines, while a worker, the driver and a broker are killed in turn: 0 missing,
0 doubled, every action ends as it should, and no secret is anywhere.

Two brokers with TLS, users and rights, 500 devices, all jobs by `spark-submit`, and nothing shared but an S3 server.
HEADWATER_FLEET_ROUNDS sets the number of rounds (default 2).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.action_fold import fold_differences
from support.bronze_check import BronzePlace, Content, Fault, LoggedRecords, compare, read_bronze
from support.cluster_fleet import SHIPPED, TABLES, Fleet, running_fleet
from support.cluster_load import Publisher
from support.cluster_sites import Bronze, Message, Site
from support.leaks import ProcessWatch, Secrets
from support.netns_nodes import Node
from support.rollout_world import begun
from support.spark_cluster import WAIT_S, Cluster, pack_for, running_cluster, until

from broker_edge.device.fleet_log import read

HERE = Path(__file__).parent
ROUNDS = int(os.environ.get("HEADWATER_FLEET_ROUNDS", "2"))
DEVICES = 500
A_MINUTE = 500
"""Commands: an action takes the time of a round or so."""
PROBES, PROBE_RATE, BEFORE = 300, 20, 60
AFTER = 200
"""Acknowledgements of each broker's devices after a kill, before the tables are compared with them."""
FIRMWARE = "firmware-2"
PATIENCE_S = 420.0
LOOK_S = 1.0


@pytest.mark.timeout(1_500 + 600 * ROUNDS)
def test_kills_lose_nothing_double_nothing_and_show_no_secret(tmp_path: Path) -> None:
    packed = pack_for(tmp_path)
    with (
        running_cluster(tmp_path, packed, with_s3=True, worker_cores=2, worker_memory="2g") as cluster,
        running_fleet(cluster, tmp_path / "fleet", devices=DEVICES) as fleet,
    ):
        secrets = fleet.secrets(tmp_path / "search")
        with secrets.watch() as watch:
            fleet.prepare_driver()
            fleet.describe_devices()
            for site in fleet.sites:
                site.start_devices()
            fleet.start_jobs()
            run = _Run(fleet, secrets)
            for number in range(ROUNDS):
                run.round(number)
            counts = run.drain()
            fleet.stop_jobs()
            plans = fleet.explain(HERE / "plan_program.py")
        run.report(counts)
        compare_telemetry(fleet, run)
        compare_actions(fleet, run.commands)
        assert run.leaks == set()
        search(fleet, secrets, watch, plans)


class _Run:
    """The rounds: what was ordered, acknowledged and killed."""

    def __init__(self, fleet: Fleet, secrets: Secrets) -> None:
        self.fleet, self._secrets = fleet, secrets
        self.leaks: set[Path] = set()
        self.bronze = Bronze(fleet.bronze)
        self.commands: list[str] = []
        self.kills: Counter[str] = Counter()
        self.probed: dict[str, set[int]] = {site.probe: set() for site in fleet.sites}
        self._begun_s = time.monotonic()

    def round(self, number: int) -> None:
        """A command for all devices, in the first round firmware too, and three kills while they are carried out."""
        cluster, sites = self.fleet.cluster, self.fleet.sites
        self._wait_for_bronze("before the kills")
        ordered = [f"echo-{number + 1}"]
        self.fleet.order(ordered[0], rate=A_MINUTE)
        self.commands += ordered
        if number == 0:
            ordered.append(FIRMWARE)
            self.fleet.order_firmware(FIRMWARE, "2.0.0", rate=A_MINUTE)
        site, other = (sites[(number + more) % len(sites)] for more in (0, 1))

        def worker() -> None:
            self._power_off(cluster.workers[number % 2])
            cluster.start_worker(number % 2)

        def driver() -> None:
            self._power_off(cluster.node("driver"))
            self.fleet.start_jobs()

        def broker() -> None:
            site.node.kill()
            self._wait_for_devices(other)
            site.start(cluster)

        for fault in (worker, driver, broker):
            self._through(fault)
        self._wait(lambda: all(map(self.fleet.has_ended, ordered)), f"end of {', '.join(ordered)}")
        _say(f"round {number + 1}: {len(self.bronze.messages)} messages, {time.monotonic() - self._begun_s:.0f} s")

    def drain(self) -> list[dict[str, int]]:
        """Ends the devices; returns their counts once the tables have everything."""
        counts = [site.stop_devices() for site in self.fleet.sites]
        self._wait_for_bronze("at the end")
        self._wait(self._has_silver, "silver to have what bronze has")
        return counts

    def report(self, counts: list[dict[str, int]]) -> None:
        acked = sum(len(site.acked) for site in self.fleet.sites)
        assert acked == sum(one["acked"] for one in counts), "the devices know other acknowledgements"
        probed = sum(map(len, self.probed.values()))
        seconds = time.monotonic() - self._begun_s
        _say(f"{ROUNDS} rounds in {seconds:.0f} s, {dict(self.kills)}, {acked} + {probed} acknowledged")
        _say(f"{len(self.fleet.restarts)} drivers ended by themselves")
        for last in self.fleet.restarts:
            _say(f"a driver ended: {last}")

    def _through(self, fault: Callable[[], None]) -> None:
        publishers = {site.probe: site.publisher(PROBES, rate=PROBE_RATE) for site in self.fleet.sites}
        for publisher in publishers.values():
            publisher.until(BEFORE)
        fault()
        self.kills[fault.__name__] += 1
        self._wait_for_devices(*self.fleet.sites)
        for name, publisher in publishers.items():
            self.probed[name] |= publisher.acknowledged()
        self._wait_for_bronze(f"after the {fault.__name__} was killed")

    def _power_off(self, machine: Node) -> None:
        """Kills everything on it. What it leaves is searched now, because its next start removes that."""
        machine.kill()
        self.leaks |= leaks_in(self.fleet, self._secrets, machine.folder)
        machine.forget()

    def _wait_for_devices(self, *sites: Site) -> None:
        """Until each broker has acknowledged messages that were not acknowledged yet."""
        enough = {site.name: site.look() + AFTER for site in sites}
        self._wait(lambda: all(site.look() >= enough[site.name] for site in sites), f"messages at {', '.join(enough)}")

    def _wait_for_bronze(self, when: str) -> None:
        """Until bronze has what is acknowledged now."""
        missing: set[Message] = set()
        for site in self.fleet.sites:
            site.look()
            missing |= site.acked
        missing -= self.bronze.messages

        def is_there() -> bool:
            self.bronze.look()
            missing.difference_update(self.bronze.messages)
            return not missing

        self._wait(is_there, f"rows of bronze {when}")

    def _has_silver(self) -> bool:
        table = self.fleet.tables / "silver_telemetry"
        if not DeltaTable.is_deltatable(str(table)):
            return False
        return _count(table) >= _count(self.fleet.bronze)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Looks once in a while, because each look costs, and starts the jobs again if their driver has ended."""
        next_s = 0.0

        def is_so() -> bool:
            nonlocal next_s
            if time.monotonic() < next_s:
                return False
            self.fleet.keep()
            found = condition()
            next_s = time.monotonic() + LOOK_S
            return found

        until(is_so, what, lambda: self.fleet.cluster.said("jobs")[-6_000:], seconds=PATIENCE_S)


def compare_telemetry(fleet: Fleet, run: _Run) -> None:
    """Bronze has every record of both logs once, and every acknowledged one; silver has what bronze has."""
    bronze = list(read_bronze(fleet.bronze))
    logged = pq.read_table(fleet.logged(HERE / "log_program.py")).to_pylist()
    records = {
        BronzePlace(row["log_id"], row["partition"], row["offset"]): Content(row["epoch"], row["topic"], row["value"])
        for row in logged
    }
    assert compare(bronze, LoggedRecords("", {}, records), []) == Counter[Fault]()
    assert len({place.log_id for place, _ in bronze}) == len(fleet.sites)
    whole = Bronze(fleet.bronze)
    whole.look()
    for site in fleet.sites:
        assert site.acked - whole.messages == set(), "missing"
        assert {device for device, _, _ in site.acked} == set(site.ids), "a device whose messages nobody acknowledged"
        topic = f"devices/{site.probe}/telemetry"
        offsets = [place.offset for place, content in bronze if content.topic == topic]
        assert run.probed[site.probe] - set(offsets) == set(), "missing by offset"
        assert len(run.probed[site.probe]) >= BEFORE * 3 * ROUNDS
    silver = _places(fleet.tables / "silver_telemetry")
    assert max(silver.values()) == 1, "doubled in silver"
    assert silver.keys() == {(place.log_id, place.partition, place.offset) for place, _ in bronze}
    _say(f"bronze {len(bronze)} rows, the logs {len(records)}, silver {len(silver)}: 0 missing, 0 doubled")


def compare_actions(fleet: Fleet, commands: list[str]) -> None:
    """Every target has ended, as its events say; every device has carried out each command once, and has installed the
    firmware once."""
    ids = [id_ for site in fleet.sites for id_ in site.ids]
    targets = DeltaTable(fleet.tables / "action_targets").to_pyarrow_table().to_pylist()
    states = Counter((target["action_id"], target["state"]) for target in targets)
    assert states == {(action, "SUCCEEDED"): len(ids) for action in (*commands, FIRMWARE)}
    assert fold_differences(fleet.tables) == []
    done = sum((begun(site.fleet_log) for site in fleet.sites), Counter[tuple[str, str, int]]())
    assert done == {(action, id_, 1): 1 for action in commands for id_ in ids}
    steps = [line for site in fleet.sites for line in read(site.fleet_log) if line["event"] == "step"]
    assert Counter(line["device_id"] for line in steps if line["step"] == "install") == dict.fromkeys(ids, 1)
    _say(f"{len(targets)} targets have succeeded; action_targets is the fold of action_events")


def search(fleet: Fleet, secrets: Secrets, watch: ProcessWatch, plans: str) -> None:
    """No secret in logs, plans, event logs, checkpoints, tables, process lists and folders of the machines."""
    cluster = fleet.cluster
    machines = [cluster.node("master"), cluster.node("driver"), *cluster.workers, *(site.node for site in fleet.sites)]
    folders = [cluster.logs, fleet.s3.folder, fleet.s3.folder.with_name("sidecar"), *(one.folder for one in machines)]
    tables = [fleet.bronze, *(fleet.tables / name for name in TABLES)]
    assert leaks_in(fleet, secrets, *folders) == set()
    assert secrets.in_tables(*tables) == set()
    assert watch.seen == set()
    # The places that were searched do hold what is looked for there.
    # The server has a folder of its own there.
    events = [path for path in (fleet.s3.folder / "history").iterdir() if path.is_file()]
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in events)
    assert "BatchScan headwater" in plans
    assert "Scan parquet" in plans
    assert any((fleet.s3.folder / "tables/checkpoints/silver/offsets").iterdir())
    _say(f"no secret in {watch.lines} command lines of {watch.looks} looks, and none in files")
    check_the_search(fleet, secrets, tables[0])


def leaks_in(fleet: Fleet, secrets: Secrets, *folders: Path) -> set[Path]:
    """The files with a secret, except for the copies of the files that `--files` ships to be read there."""
    shipped = {(fleet.cluster.packed / name).read_bytes() for name in SHIPPED}
    return {path for path in secrets.in_files(*folders) if path.read_bytes() not in shipped}


def check_the_search(fleet: Fleet, secrets: Secrets, bronze: Path) -> None:
    """The control: the search finds a secret in each kind of place."""
    text = secrets.texts[0]
    leaks = [fleet.cluster.logs / "leak.txt", fleet.s3.folder / "tables/checkpoints/leak", bronze / "_delta_log/leak"]
    leaks.append(fleet.cluster.workers[0].folder / "tmp/leak")
    for leak in leaks:
        leak.write_text(json.dumps({"password": text}))
        assert leak in secrets.in_files(leak.parent)
    word = f"{fleet.sites[0].name}-0001"
    assert Secrets(fleet.folder / "search", {}, [f"devices/{word}/telemetry"]).in_tables(bronze) == {bronze}
    watch = secrets.watch()
    with subprocess.Popen(["sh", "-c", "read -r _", text], stdin=subprocess.PIPE) as shell:

        def is_seen() -> bool:
            # The kernel shows the words a moment after the program has begun.
            watch.look()
            return bool(watch.seen)

        until(is_seen, "the search to find a process", lambda: "")
        shell.communicate()


def test_control_without_the_archive_the_job_ends_with_one_sentence(tmp_path: Path) -> None:
    with running_cluster(tmp_path, pack_for(tmp_path)) as cluster:
        broker = cluster.start_broker("broker")
        assert Publisher(broker, 1).acknowledged() == {0}
        options = [*Cluster.telemetry_options(broker), "--available-now"]
        job = cluster.submit("telemetry", *options, without=["--archives"])
        assert job.wait(WAIT_S) == 1
        last = cluster.said("job").strip().splitlines()[-1]
        assert "cannot start ./headwater/bin/python: give spark-submit the archive of `headwater spark pack`" in last


def _count(table: Path) -> int:
    return int(DeltaTable(table).to_pyarrow_table(columns=["offset"]).num_rows)


def _places(table: Path) -> Counter[tuple[str, int, int]]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["log_id", "partition", "offset"])
    columns = (rows[name].to_pylist() for name in ("log_id", "partition", "offset"))
    return Counter(zip(*columns, strict=True))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
