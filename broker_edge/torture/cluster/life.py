"""One cluster through many faults: clients are served, something happens under load, it is mended, clients are served
again, and the log is compared with what was acknowledged.

Subclasses say what happens. `mend` puts everything right that this process can put right: links, signals, etcd, and
nodes that are down. What has ended by itself is a finding.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import pyarrow as pa
import pyarrow.flight as flight

from broker_edge.errors import ConfigError, StartError
from broker_edge.local_cluster.etcd import etcd_program
from broker_edge.torture.check import LogCheck
from broker_edge.torture.cluster.history import History
from broker_edge.torture.cluster.nodes import NODES, Nodes, others
from broker_edge.torture.cluster.patience import Patience
from broker_edge.torture.cluster.traffic import CALM_S, Traffic
from broker_edge.torture.cluster.watch import Watch
from broker_edge.torture.life import Bench
from broker_edge.torture.process import BrokerError
from broker_edge.torture.producer import PRODUCER
from broker_edge.torture.reader import LogReader
from broker_edge.torture.records import Recipe, publishers, resending_publishers
from broker_edge.torture.report import Finding, Report
from broker_edge.torture.witness import witnesses

SERVES_S = 90.0
"""Until clients are served again when all is mended. A candidate may wait 30 s for members that do not answer."""
WHOLE_S = 120.0  # Until all are in sync.
HELD_BACK_S = 25.0
"""A member that was removed for its lag is held back for 10 s, and for twice as long each further time."""
MOVES_S = 15.0  # A leader without an acknowledgement for so long is looked for again.
PUBLISHES_S = 60.0
QUIET_S = 15.0  # Time without any delivery after which missing records count as skipped.
_LOOK_S = 0.05


class ClusterLife:
    """etcd and three nodes on new folders, and everything that was acknowledged or reported about them."""

    name: ClassVar[str]
    about: ClassVar[str]
    cycles: ClassVar[int] = 12
    windows: ClassVar[tuple[int, ...]] = (1, 4, 16, 64)
    pause_s: ClassVar[float] = 0.03
    needs_fault_build: ClassVar[bool] = False
    uses_root: ClassVar[bool] = False
    # Whether all nodes must be in sync before: the fault takes a copy away, or puts it in doubt.
    needs_whole: ClassVar[bool] = False
    whole_share: ClassVar[float] = 0.7  # Of cycles that wait until all are in sync.
    starts_interrupted: ClassVar[float] = 0.1

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.moments = bench.moments
        self.recipe = Recipe(bench.seed)
        self.has_retention = bench.has_retention
        sources = publishers(8, protocols=(5,) if self.has_retention else (5, 4))
        if not self.has_retention:
            sources += resending_publishers(qos2=True)
        self.check = LogCheck(self.recipe, (*sources, PRODUCER), has_retention=self.has_retention)
        watching = () if self.has_retention else witnesses()
        for witness in watching:
            witness.expect_repeats(one.connection for one in sources if one.resends and one.qos == 1)
        with_faults = self.needs_fault_build or bench.sabotage is not None
        program = bench.faults_program if with_faults else bench.program
        assert program is not None, "the command line has looked for the fault build"
        self.history = History(bench.folder / "history.txt")
        self.nodes = Nodes(
            bench.folder / "cluster",
            program=program,
            moments=random.Random(f"{bench.seed}/{bench.life}/ports"),
            settings=self.settings(),
            folders=self.folders(),
            tell=self.history.tell,
        )
        for name in NODES:
            self.nodes.arm(name, self.words(""))
        self.watch = Watch(self.nodes, self.report)
        self.traffic = Traffic(
            self.nodes,
            self.check,
            recipe=self.recipe,
            sources=sources,
            witnesses=watching,
            moments=random.Random(bench.seed),
        )

    @staticmethod
    def lacks() -> list[str]:
        """What this machine lacks for the fault, one sentence each; empty if nothing."""
        try:
            etcd_program()
        except ConfigError as error:
            return [str(error)]
        return []

    # A fault may override these.

    def free_disks(self) -> None:
        """After the nodes have ended."""

    def mend_disks(self) -> None:
        """What keeps a node behind for longer than it may be."""

    def folders(self) -> Mapping[str, Path]:
        """Data folders that are not below the folder of the life."""
        return {}

    def settings(self) -> Mapping[str, str]:
        """Small segments, so that roll, recycling and retention happen in every life."""
        sync = {"log.sync": "interval", "log.sync_interval": "20ms"} if self.moments.random() < 0.25 else {}
        if not self.has_retention:
            return {"log.segment_bytes": self.moments.choice(("128KiB", "256KiB", "2MiB")), **sync}
        retention = {f"log.classes.{name}.retention.bytes": "256KiB" for name in ("telemetry", "control")}
        return {"log.segment_bytes": "64KiB", **retention, **sync}

    def strike(self) -> None:
        """What happens, while clients are served."""
        raise NotImplementedError

    # A life.

    def __enter__(self) -> ClusterLife:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.__exit__(kind, error, trace)
        self.nodes.__exit__(kind, error, trace)
        self.traffic.end()
        if not self.report.clean:
            for name, folder in self.folders().items():
                # Its disk is removed with the life.
                if folder.exists():
                    shutil.copytree(folder, self.bench.folder / name, dirs_exist_ok=True)
        self.free_disks()

    @property
    def report(self) -> Report:
        return self.check.report

    def last_words(self) -> str:
        return self.nodes.last_words()

    def cycle(self, number: int) -> None:
        """Runs one cycle. Leaves a cluster with all its processes up; the first one starts it."""
        try:
            if number == 0:
                self.nodes.begin()
                self.watch.__enter__()
                self.wait_whole()
            self.history.tell(f"cycle {number}: {self.watch.describe()}")
            self._cycle()
        except (BrokerError, StartError, TimeoutError, subprocess.TimeoutExpired) as error:
            if not self.report.counts[Finding.UNAVAILABLE]:
                self.report.add(Finding.STUCK, f"cycle {number}: {error}")
            raise

    def _cycle(self) -> None:
        self.serve()
        self.publish(self.moments.randint(1, self.bench.records_max))
        if self.needs_whole:
            self.wait_whole()
        self.report.faults += 1
        self.strike()
        self.mend()
        self.report.waits.append(self.serve())
        if self.needs_whole or self.moments.random() < self.whole_share:
            self.wait_whole()
        self.settle()

    def finish(self) -> None:
        """Waits for all nodes, reads everything, lets the subscribers catch up, and compares the copies."""
        self.serve()
        self.wait_whole()
        self.settle()
        self._with_reader(self.check.everything)
        for witness in self.traffic.witnesses:
            witness.connect(self.nodes.mqtt(self.wait_leader()))
            missing = witness.wait(self.check.acked, seconds=QUIET_S)
            witness.close()
            self.report.violations += witness.violations
            if missing:
                text = f"{len(missing)} acknowledged records were never delivered, the first is {min(missing)}"
                self.report.violations.append(f"{witness.client_id}: {text}")
        if self.moments.random() < 0.5:
            self.nodes.kill(*NODES)
        else:
            self.stop(*NODES)
        self.compare()

    def compare(self) -> None:
        """Compares the copies of nodes that are down."""
        for text in self.nodes.compare():
            self.report.add(Finding.DIVERGED, text)

    # What faults are made of.

    def words(self, armed: str) -> str:
        sabotage = f"sabotage:{self.bench.sabotage}" if self.bench.sabotage else ""
        return ",".join(word for word in (armed, sabotage) if word)

    def sleep(self, least: float, most: float) -> None:
        """A random time."""
        time.sleep(self.moments.uniform(least, most))

    def draw(self, share: float) -> bool:
        return self.moments.random() < share

    def leader(self) -> str:
        """Who leads, otherwise any node."""
        return self.watch.leader() or self.moments.choice(NODES)

    def pick(self, leader_share: float = 0.6) -> str:
        """The leader, or one of the others."""
        leader = self.leader()
        return leader if self.draw(leader_share) else self.moments.choice(others(leader))

    def followers(self) -> list[str]:
        """The others, in a random order."""
        names = others(self.leader())
        self.moments.shuffle(names)
        return names

    def stop(self, *names: str) -> None:
        """SIGTERM; an exit code other than 0 is a finding."""
        for name, code in self.nodes.stop(*names).items():
            if code != 0:
                text = f"a clean stop of {name} ended with exit code {code}: {self.nodes.process(name).last_words()}"
                self.report.add(Finding.STUCK, text)

    def restart_armed(self, name: str, words: str) -> None:
        """kill -9, and a start with faults inside. Such a start may fail: `mend` starts it without them."""
        self.nodes.kill(name)
        self.nodes.arm(name, self.words(words))
        self.nodes.spawn(name)
        try:
            self.nodes.wait_up(name)
        except BrokerError:
            self.nodes.kill(name)
        finally:
            self.nodes.arm(name, self.words(""))

    def mend(self) -> None:
        """Links, signals, etcd; then the nodes that are down, in any order, some of them with a crash in the start."""
        self.nodes.links.heal()
        self.nodes.go_on(*NODES)
        self.nodes.go_on_etcd()
        self.nodes.start_etcd()
        for name in NODES:
            if self.nodes.process(name).has_ended:
                text = f"{name} has ended by itself: {self.nodes.process(name).last_words()}"
                self.report.add(Finding.UNAVAILABLE, text)
        down = [name for name in NODES if self.nodes.is_down(name)]
        self.moments.shuffle(down)
        for name in down:
            self.start(name)
            if self.draw(0.3):
                self.sleep(0.0, 1.0)
        for name in down:
            self.wait_up(name)

    def start(self, name: str) -> None:
        """Starts a node that is down, sometimes after starts that are killed."""
        while self.draw(self.starts_interrupted):
            self.nodes.spawn(name)
            self.sleep(0.0, 0.3)
            self.nodes.kill(name)
        self.nodes.spawn(name)

    def wait_up(self, name: str) -> None:
        try:
            self.nodes.wait_up(name)
        except BrokerError as error:
            self._unavailable(f"{name} does not start: {error}")

    def wait_leader(self, *, seconds: float = SERVES_S) -> str:
        self._wait(lambda: self.watch.leader() is not None, seconds, "nobody leads")
        return self.leader()

    def wait_whole(self) -> None:
        """Waits until all are in sync. A leader holds back a member that was behind, for longer each time; another one
        knows nothing of that."""
        self.traffic.pace(CALM_S)
        patience = Patience(HELD_BACK_S)
        while not self.watch.is_whole() and not patience.is_over():
            time.sleep(_LOOK_S)
        if not self.watch.is_whole():
            self.mend_disks()
            leader = self.leader()
            self.history.tell(f"not all are in sync, so {leader} hands over; {self.watch.describe()}")
            self.stop(leader)
            self.nodes.start(leader)
        self._wait(self.watch.is_whole, WHOLE_S, "not all nodes are in sync")
        self.traffic.pace(self.pause_s)

    def _wait(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        patience = Patience(seconds)
        while not is_so():
            if patience.is_over():
                self._unavailable(f"{what} after {seconds:.0f} s: {self.watch.describe()}")
            time.sleep(_LOOK_S)

    def _unavailable(self, text: str) -> None:
        self.report.add(Finding.UNAVAILABLE, text)
        raise TimeoutError(text)

    def serve(self, *, seconds: float = SERVES_S, must: bool = True) -> float:
        """Returns when a publish is acknowledged by whoever leads, and how long that took. After `seconds` without one
        that is a finding, if it `must` be."""
        began, patience = time.monotonic(), Patience(seconds, step_s=MOVES_S)
        while True:
            visit = self.traffic.now
            at = None if visit is None else visit.node
            moves_s = MOVES_S if at is not None and at == self.watch.leader() else 1.0
            if self.traffic.moves(seconds=min(moves_s, seconds)):
                elapsed = time.monotonic() - began
                self.history.tell(f"served after {elapsed:.2f} s")
                self.traffic.join()
                return elapsed
            if patience.is_over():
                if not must:
                    return time.monotonic() - began
                last = "no load" if visit is None else visit.summary()
                self._unavailable(f"no acknowledgement in {seconds:.0f} s: {self.watch.describe()}; {last}")
            leader = self.watch.leader()
            if leader is None:
                time.sleep(_LOOK_S)
            else:
                self.history.tell(f"load at {leader}; {self.watch.describe()}")
                self.traffic.go(leader, window=self.moments.choice(self.windows), pause_s=self.pause_s)

    def publish(self, more: int, *, seconds: float = PUBLISHES_S) -> bool:
        """Waits for so many more acknowledgements where the clients are; returns whether they came."""
        self.traffic.pace(self.pause_s)
        return self.traffic.moves(seconds=seconds, more=more)

    def settle(self) -> None:
        """Ends the load, and compares."""
        self.traffic.end()
        self.history.tell(f"{self.report.acked} acknowledged; {self.watch.describe()}")
        self._with_reader(self.check.after_failover)
        self.traffic.note_leaders(self.watch.leaderships)
        for witness in self.traffic.witnesses:
            self.check.delivered(witness.seen, witness.places, witness.client_id)
        self.report.resent = self.traffic.resent

    def _with_reader(self, read: Callable[[LogReader], None]) -> None:
        """Reads at the leader; when it changes, once more at the next one."""
        deadline = time.monotonic() + SERVES_S
        while True:
            try:
                with LogReader(self.nodes.flight(self.wait_leader())) as reader:
                    read(reader)
                return
            except (pa.ArrowException, flight.FlightError) as error:
                if time.monotonic() > deadline:
                    self._unavailable(f"the log cannot be read: {error}; {self.watch.describe()}")
                time.sleep(_LOOK_S)
