"""Runs the demo from the first step to the account: what starts when, what it waits for, and for how long.

The order matters: Spark reads before the first device publishes. At the end the devices stay connected until every
action has ended; then the jobs run until all acknowledged messages are in bronze.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from broker_edge import Row
from broker_edge.device.fleet import FleetSettings, device_ids
from pipelines.demo.account import Account, read_acked, take_account
from pipelines.demo.action import Operator, Outcome
from pipelines.demo.broker import DemoBroker
from pipelines.demo.brokers import DemoBrokers, open_brokers
from pipelines.demo.devices import DeviceCounts, DeviceGroup, DeviceProcess
from pipelines.demo.interrupt import Interrupt, stdout_for_results
from pipelines.demo.jobs import JobError, Jobs
from pipelines.demo.layout import Layout, open_layout
from pipelines.demo.result import Result
from pipelines.demo.screen import Addresses, Screen, next_steps, result_json, result_text
from pipelines.demo.watch import BronzeTail, Snapshot
from pipelines.spark.jars import delta_jars
from pipelines.spark.java import require_java

INTERVAL_S = 1.0
"""Each device measures once in this interval."""
ACTION_AFTER_S = 3.0
LOOK_EVERY_S = 0.5

PROBE_S = 120.0
ACTIONS_END_S = 60.0
DRAIN_S = 120.0


def run(
    *,
    seconds: float | None,
    headless: bool,
    as_json: bool,
    devices: int,
    brokers: int = 1,
    cluster: bool = False,
    data: Path | None = None,
    secure: bool = False,
) -> int:
    """Runs the demo for `seconds`, or until Ctrl-C. Returns 0 if everything was as promised, otherwise 1.

    With `secure` the broker has users and TLS, as `headwater init` sets them up. With several `brokers` the devices are
    spread over them, and the last broker restarts in the middle of the run. With `cluster` three brokers keep one log,
    and the leader is killed in the middle.

    With `data` that folder keeps log, tables and checkpoints, and a later run continues with them. Raises PipelineError
    or HeadwaterError with a one-sentence message when something does not start or ends too early.
    """
    # Checked before anything is started, so that a missing requirement is reported at once.
    require_java()
    delta_jars()
    with stdout_for_results() as results, open_layout(data) as layout:
        screen = Screen(live=not headless)
        result = Stage(layout, screen, devices, brokers=brokers, secure=secure, cluster=cluster).play(seconds)
        results.write((result_json(result) if as_json else result_text(result)) + "\n")
        if data is not None:
            screen.say(f"all files are kept in {layout.root}")
    return 0 if result.ok else 1


class Stage:
    """One run. `play` is called once."""

    def __init__(
        self,
        layout: Layout,
        screen: Screen,
        devices: int,
        *,
        brokers: int = 1,
        secure: bool = False,
        cluster: bool = False,
    ) -> None:
        self._secure, self._cluster = secure, cluster
        self._layout, self._screen, self._count = layout, screen, devices
        self._since_us = time.time_ns() // 1_000
        self._ids = device_ids(FleetSettings(count=devices))
        bounds = [devices * number // brokers for number in range(brokers + 1)]
        self._shares = [self._ids[start:end] for start, end in itertools.pairwise(bounds)]
        """The devices of each broker."""

    def play(self, seconds: float | None) -> Result:
        layout, screen = self._layout, self._screen
        with ExitStack() as stack:
            count = len(self._shares)
            what = "a cluster of three brokers" if self._cluster else "broker" if count == 1 else f"{count} brokers"
            with screen.step(what):
                opened = open_brokers(layout, count, devices=self._ids, secure=self._secure, cluster=self._cluster)
                brokers = stack.enter_context(opened)
            devices = self._devices(brokers)
            stack.callback(devices.kill)
            operator = Operator(layout.tables)
            operator.describe_devices(self._ids, logs=self._logs(brokers))
            with screen.step("Spark"):
                jobs = stack.enter_context(Jobs(layout, brokers.settings))
                interrupt = Interrupt()
                jobs.start()
            tail = BronzeTail(layout.bronze)
            with screen.step("first record from the broker into Delta"):
                self._probe(brokers.all[0], jobs, tail, interrupt)
            with screen.step(f"{self._count} devices"):
                devices.wait_ready()
                devices.start()
            broker = brokers.all[0]
            addresses = Addresses(str(broker.mqtt), broker.operator.server, broker.admin, broker.options)
            screen.hints(next_steps(addresses, layout))
            watch = _Watch(screen, jobs, devices, operator, BronzeTail(layout.bronze), interrupt, brokers)
            with screen.watching():
                watch.until(seconds)
            return self._finish(watch)

    def _devices(self, brokers: DemoBrokers) -> DeviceGroup:
        """A process of simulated devices for each broker."""
        processes, first = [], 1
        for number, (ids, broker) in enumerate(zip(self._shares, brokers.all, strict=True)):
            path = self._layout.acked(self._since_us, number)
            processes.append(
                DeviceProcess(count=len(ids), first=first, broker=broker, interval_s=INTERVAL_S, acked_path=path)
            )
            first += len(ids)
        return DeviceGroup(processes)

    def _logs(self, brokers: DemoBrokers) -> dict[str, str] | None:
        """The broker of each device; None if there is only one."""
        if len(self._shares) == 1:
            return None
        return {id_: name for ids, name in zip(self._shares, brokers.names, strict=True) for id_ in ids}

    def _acked(self) -> pa.Table:
        return pa.concat_tables(
            read_acked(self._layout.acked(self._since_us, number)) for number in range(len(self._shares))
        )

    def _account(self, watch: _Watch, acked: pa.Table) -> Account:
        restarted = self._shares[-1] if watch.restarts else []
        return take_account(self._layout.bronze, acked, devices=self._ids, since_us=self._since_us, restarted=restarted)

    def _probe(self, broker: DemoBroker, jobs: Jobs, tail: BronzeTail, interrupt: Interrupt) -> None:
        """Sends a test record through the whole pipeline, so that a cold start does not count as latency."""
        deadline = time.monotonic() + PROBE_S
        with broker.operator.client() as client:
            # Asked first, because a publish that meets another node than the leader is not sent again.
            client.offsets(filters="devices/probe/telemetry")
            client.produce([Row(topic="devices/probe/telemetry", value=b'{"probe": true}')])
        while tail.rows() == 0 and not interrupt.wait(0.1):
            jobs.check()
            if time.monotonic() > deadline:
                raise JobError(f"no record arrived from the broker in {self._layout.bronze} within {PROBE_S:g} s")

    def _finish(self, watch: _Watch) -> Result:
        seconds = watch.seconds
        with self._screen.step("waiting for the actions to end"):
            watch.devices.pause()
            outcome = watch.wait_for_actions(ACTIONS_END_S)
            counts = watch.devices.stop()
        with self._screen.step("waiting for the last rows"):
            self._drain(watch, counts)
            watch.jobs.stop()
            account = self._account(watch, self._acked())
        return Result(
            account=account,
            outcome=outcome,
            counts=counts,
            devices=self._count,
            seconds=seconds,
            brokers=len(self._shares),
            restarts=watch.restarts,
        )

    def _drain(self, watch: _Watch, counts: DeviceCounts) -> None:
        """Waits until bronze has everything that was acknowledged, or until the deadline; the account reports what is
        missing."""
        acked, looked_at = self._acked(), -2
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            # An exact count reads the whole table: do it only when there may be enough rows, and once per commit.
            if watch.tail.rows() >= counts.acked and watch.tail.version != looked_at:
                looked_at = watch.tail.version
                if self._account(watch, acked).missing == 0:
                    return
            watch.jobs.check()
            time.sleep(0.1)


class _Watch:
    """The time while everything runs: one check every half second, and the operator's insert after the first
    seconds."""

    def __init__(
        self,
        screen: Screen,
        jobs: Jobs,
        devices: DeviceGroup,
        operator: Operator,
        tail: BronzeTail,
        interrupt: Interrupt,
        brokers: DemoBrokers,
    ) -> None:
        self.jobs, self.devices, self.tail = jobs, devices, tail
        self._screen, self._operator, self._interrupt = screen, operator, interrupt
        self._brokers = brokers
        self.restarts = 0
        self._began = time.monotonic()
        self._inserted = False
        self._last: Snapshot | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def until(self, seconds: float | None) -> None:
        """Watches for `seconds`, or until a signal. Inserts the action in any case except after a signal."""
        while seconds is None or self.seconds < seconds:
            if self.seconds >= ACTION_AFTER_S:
                self._insert_once()
                self._restart_once()
            self._look()
            left_s = LOOK_EVERY_S if seconds is None else min(LOOK_EVERY_S, max(0.0, seconds - self.seconds))
            if self._interrupt.wait(left_s):
                return
        self._insert_once()

    def wait_for_actions(self, deadline_s: float) -> Outcome:
        """The outcome once no action is open, or the current one at the deadline."""
        deadline = time.monotonic() + deadline_s
        while (outcome := self._operator.outcome()).open and time.monotonic() < deadline:
            self.jobs.check()
            time.sleep(0.1)
        return outcome

    def _insert_once(self) -> None:
        if not self._inserted:
            self._inserted = True
            action_id = self._operator.insert_action()
            self._screen.say(f"inserted the action {action_id} into {self._operator.actions_path}")

    def _restart_once(self) -> None:
        """Right after the action was inserted, so that commands and reports meet a broker that is away."""
        step = self._brokers.restart_step
        if self.restarts or step is None:
            return
        with self._screen.step(step):
            self.restarts += self._brokers.restart()

    def _look(self) -> None:
        self.jobs.check()
        if not self.devices.alive:
            self.devices.pause()  # Raises with the reason why the process ended.
        snapshot = Snapshot(self.seconds, self.devices.counts, self.tail.rows(), self._operator.outcome())
        self._last = snapshot.following(self._last)
        self._screen.show(self._last)
