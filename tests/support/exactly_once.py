"""A broker, publishers and the telemetry job, killed repeatedly at named points on one checkpoint.

`KillRun` does one kill at a time and checks each time that it hit the intended state. `finish` lets the job finish and
compares bronze with the log and with the acknowledgements of the publishers. The test uses each point once,
`tests/bench/exactly_once.py` many times, with both writers.
"""

from __future__ import annotations

import enum
import json
import signal
from collections import Counter
from pathlib import Path
from types import TracebackType

from deltalake import DeltaTable

from broker_edge.torture.load import LoadResult, MqttLoad
from broker_edge.torture.process import BrokerProcess
from broker_edge.torture.records import Recipe, publishers
from support.bronze_check import Fault, compare, read_bronze, read_log
from support.failpoints import Action, Failpoints, Point
from support.ports import free_port
from support.telemetry_job import TelemetryJob

PUBLISHERS = publishers(6, protocols=(5,), control=False)
CLOSED_SECONDS = 60.0  # Deadline for the connections of a killed broker to end.
TRIES_MAX = 10


class Hurt(enum.StrEnum):
    """What happens to the job or its broker."""

    PLANNING = "planning"
    READING = "reading"
    COMMITTED = "committed"
    OFFSETS = "offsets"
    FORGOTTEN = "forgotten"
    WORKER = "worker"
    BROKER = "broker"

    @property
    def meaning(self) -> str:
        return {
            Hurt.PLANNING: "job killed while planning a batch",
            Hurt.READING: "job killed while its tasks read",
            Hurt.COMMITTED: "job killed after the Delta commit",
            Hurt.OFFSETS: "job killed after writing the checkpoint's offset file",
            Hurt.FORGOTTEN: "last commit file of the checkpoint deleted",
            Hurt.WORKER: "Python worker killed while reading",
            Hurt.BROKER: "broker killed while a task reads",
        }[self]


class KillRun:
    """One broker, one table, one checkpoint; publishers send throughout."""

    def __init__(self, folder: Path, *, writer: str, recipe: Recipe, pause_s: float = 0.1) -> None:
        self.recipe = recipe
        self._writer = writer
        self._pause_s = pause_s
        self._failpoints = Failpoints(folder / "failpoints")
        # The address is the same after restarts: the job knows the broker by it.
        settings = {"listeners.flight.bind": f"127.0.0.1:{free_port()}"}
        self.broker = BrokerProcess(data_dir=folder / "log", settings=settings, log_file=folder / "broker.txt")
        self._folder = folder
        self._job: TelemetryJob | None = None
        self._load: MqttLoad | None = None
        self._results: list[LoadResult] = []
        self.rows = 0
        """The counts of bronze, once the run has finished."""

    def __enter__(self) -> KillRun:
        self.broker.start()
        self._job = TelemetryJob(
            self._folder / "job",
            server="grpc://{}:{}".format(*self.broker.flight),
            arguments=["--trigger", "0 seconds", "--writer", self._writer],
            environment=self._failpoints.environment,
        )
        self._publish()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failpoints.release()
        self.job.kill()
        if self._load is not None:
            self._load.stop()
        self.broker.kill()

    @property
    def job(self) -> TelemetryJob:
        assert self._job is not None, "the run has not begun"
        return self._job

    def hurt(self, what: Hurt) -> None:
        """Applies it to the job. The job keeps running only if `what` does not kill it."""
        {
            Hurt.PLANNING: self._at_planning,
            Hurt.READING: lambda: self._kill_at(Point.READING),
            Hurt.COMMITTED: self._after_the_commit,
            Hurt.OFFSETS: lambda: self._kill_at(Point.OFFSETS),
            Hurt.FORGOTTEN: self._forget_a_commit,
            Hurt.WORKER: self._kill_a_worker,
            Hurt.BROKER: self._kill_the_broker,
        }[what]()

    def finish(self) -> Counter[Fault]:
        """Ends the load, lets the job read the rest, and counts the faults of the table: none, if all is well."""
        self._end_load()
        self.job.kill()
        self.job.start("--available-now")
        assert self.job.wait() == 0, self.job.last_words()
        log = read_log(self.broker.flight, class_name="telemetry")
        bronze = list(read_bronze(self.job.table))
        self.rows = len(bronze)
        return compare(bronze, log, self._results)

    @property
    def acked(self) -> int:
        return sum(one.acked for one in self._results)

    # The hurts.

    def _at_planning(self) -> None:
        self._kill_at(Point.PLANNING, in_a_batch=False)

    def _kill_at(self, point: Point, *, in_a_batch: bool = True) -> None:
        self._failpoints.arm(point, Action.KILL_JOB)
        self._start()
        code = self.job.wait()
        assert code == -signal.SIGKILL, f"the job ended with {code}:\n{self.job.last_words()}"
        assert self._failpoints.was_hit, "the job died elsewhere"
        assert self.job.newest("offsets") == self.job.newest("commits") + in_a_batch

    def _after_the_commit(self) -> None:
        if self._writer == "files":
            self._kill_at(Point.COMMITTED)
            assert self._is_in_table(self.job.newest("offsets"))
            return
        # There is no hook in the JVM: kill as soon as the commit is visible, and repeat until a kill was early enough.
        for _ in range(TRIES_MAX):
            self._start()
            self.job.until(lambda: self._is_in_table(self.job.newest("commits") + 1), "Delta commit")
            self.job.kill()
            if self.job.newest("offsets") == self.job.newest("commits") + 1:
                assert self._is_in_table(self.job.newest("offsets"))
                return
        raise AssertionError("no kill happened between the two commits")

    def _forget_a_commit(self) -> None:
        # A completed run leaves no planned batch after the one whose commit is deleted.
        self.job.kill()
        self.job.start("--available-now")
        assert self.job.wait() == 0, self.job.last_words()
        newest = self.job.newest("commits")
        assert newest == self.job.newest("offsets")
        assert self._is_in_table(newest)
        for name in (str(newest), f".{newest}.crc"):
            (self.job.checkpoint / "commits" / name).unlink(missing_ok=True)

    def _kill_a_worker(self) -> None:
        """The task is retried, or the query ends and is restarted; both are correct."""
        self._failpoints.arm(Point.READING, Action.KILL_WORKER)
        self._start()
        self.job.until(lambda: self._failpoints.was_hit, "worker that reads")
        known = self.job.newest("commits")
        self.job.until(lambda: self.job.newest("commits") > known, "batch after the worker's death", may_end=True)

    def _kill_the_broker(self) -> None:
        self._failpoints.arm(Point.READING, Action.HOLD)
        self._start()
        self.job.until(lambda: self._failpoints.was_hit, "task that reads")
        self.broker.kill()
        self._end_load(of_itself=True)
        self._failpoints.release()
        self.broker.start()
        self._publish()
        planned = self.job.newest("offsets")
        self.job.until(lambda: self.job.newest("commits") > planned, "batch of the broker that is back")

    # The parts.

    def _start(self) -> None:
        if not self.job.is_running:
            self.job.start()

    def _is_in_table(self, batch: int) -> bool:
        metadata = self.job.checkpoint / "metadata"
        if not metadata.exists() or not DeltaTable.is_deltatable(str(self.job.table)):
            return False
        version = DeltaTable(str(self.job.table)).transaction_version(json.loads(metadata.read_text())["id"])
        return version is not None and version >= batch

    def _publish(self) -> None:
        """Some hundred records a second: enough for every batch without using the whole machine."""
        self._load = MqttLoad(
            address=self.broker.mqtt,
            run=len(self._results) + 1,
            recipe=self.recipe,
            publishers=PUBLISHERS,
            window=10,
            pause_s=self._pause_s,
        )
        self._load.__enter__()

    def _end_load(self, *, of_itself: bool = False) -> None:
        load, self._load = self._load, None
        assert load is not None, "no load is running"
        if of_itself:
            load.wait(lambda one: one.over, seconds=CLOSED_SECONDS, what="the connections to end with the broker")
        self._results.append(load.stop())
