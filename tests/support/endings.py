"""A fleet on three brokers with a policy on each device, an engine whose clock the test sets, and what must be true in
the end: the tables say what the fleet's own log says, and no device runs an image that nobody wants there."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from actions.fleet_desk import Order
from broker_edge import Client
from broker_edge.artifacts import push
from broker_edge.artifacts.upload import describe
from broker_edge.device.fleet_log import last_told, read
from broker_edge.policy import publish_roots
from sinks import tables
from support.moving_fleet import MovingFleet
from support.programs import StartBroker
from support.rollout_world import UPDATE_EXPECTED, RolloutWorld, fixed_ports, untrue
from support.set_clock import SetClock
from support.signing import Maker, key_list, policy_of

HOUR_S, DAY_S = 3_600, 86_400
CHUNK = 1_024
FAULTS = (
    "interrupted=4%,crash@install=3%,crash@confirm=2%,wrong-checksum=3%,fails=3%,refuses=2%,silent=1%,reflashed=1%,"
    "offline=1%"
)
WAVES = [
    {"percentage": 10, "success_percentage": 30},
    {"percentage": 40, "success_percentage": 30, "approve": True},
    {"percentage": 100},
]
LIMITS = {f"timeout_{name}_s": HOUR_S // 2 for name in ("queued", "delivered", "in_progress", "step")}
UNFIT: Mapping[str, tuple[str, Mapping[str, Any], int]] = {
    "other-hardware": ("2.1.0", {"hardware": ["p9"]}, 2),
    "below-the-floor": ("0.9.0", {}, 2),
    "expired": ("2.2.0", {"signed_us": 1, "expires_us": 2}, 2),
    "too-few-keys": ("2.3.0", {}, 1),
}
"""Action → version, policy and number of signatures of an image that no device may take."""
WANTED = {"good": "2.0.0", "cancelled": "3.0.0", "timed-out": "3.1.0", "superseded": "3.2.0", "last": "4.0.0"}
"""Action → version of images that fit the hardware p2."""
CALLED_OFF = ("cancelled", "timed-out", "superseded")
"""Those of them that end while their devices are away."""
_AT_WORK = ("QUEUED", "DELIVERED", "ACCEPTED", "IN_PROGRESS")
SPEECHLESS = ("silent", "offline")
_LARGE = 1_000
"""From this number of devices on, the machine is busy, and pauses mean less."""


@dataclass
class Endings:
    """The parts of one run."""

    world: RolloutWorld
    fleet: MovingFleet
    clock: SetClock
    random: random.Random
    quiet_since: tuple[int, float] = (0, 0.0)
    moved: set[str] = field(default_factory=set)

    # -- what the devices are offered ---------------------------------------------------------------------------------

    def offer(self, maker: Maker) -> None:
        """Pushes every image to the first broker: the engine brings it to the others."""
        offers = {action: (version, {"hardware": ["p2"]}, 2) for action, version in WANTED.items()}
        for server in self.world.servers:
            with Client(server) as client:
                publish_roots(client, [maker.root])
        with Client(self.world.server) as client:
            for version, fields, signers in [*offers.values(), *UNFIT.values()]:
                image = self.world.folder / version
                image.write_bytes(os.urandom(2 * CHUNK + 100))
                what = describe(image, "pump", version, chunk_size=CHUNK)
                given = {"hardware": ["p2", "p3"], **fields}
                policy = policy_of(what, maker.targets[:signers], **given).in_manifest()
                pushed = push(client, image, "pump", version, chunk_size=CHUNK, policy=policy)
                self.world.desk.offer(json.loads(pushed.manifest.to_bytes()))

    def place_speechless(self) -> None:
        """Somebody wrote down where devices are that never say it themselves."""
        table = DeltaTable(tables.uri_of(self.world.root, "devices"))
        for at, server in enumerate(self.world.servers):
            here = [id_ for id_, kind in self.fleet.kinds.items() if kind in SPEECHLESS and self.fleet.place[id_] == at]
            with Client(server) as client:
                log_id = client.version().log_id
            if here:
                named = ", ".join(f"'{id_}'" for id_ in here)
                table.update(predicate=f"device_id IN ({named})", updates={"log": f"'{log_id}'"})

    def order(self, action: str, **fields: Any) -> None:
        version = WANTED[action] if action in WANTED else UNFIT[action][0]
        ota = {"name": "", "type": "ota", "artifact_name": "pump", "artifact_version": version}
        self.world.desk.order(Order(**ota, **LIMITS, **fields), action_id=action)

    # -- what is known ------------------------------------------------------------------------------------------------

    def states(self, action: str) -> dict[str, str]:
        return {row["device_id"]: row["state"] for row in self.world.desk.targets(action)}

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + (90 if self.fleet.count < _LARGE else 900)
        while not condition():
            self.fleet.check()
            assert time.monotonic() < deadline, f"seed {self.world.seed}: waited for {what}"
            time.sleep(0.2)

    def told(self, action: str) -> dict[str, str]:
        return {id_: state for (id_, one, _), state in last_told(self.fleet.log).items() if one == action}

    def is_quiet(self) -> bool:
        """Whether the fleet has done nothing for some seconds."""
        size = self.fleet.log.stat().st_size
        if size != self.quiet_since[0]:
            self.quiet_since = (size, time.monotonic())
        return time.monotonic() - self.quiet_since[1] >= (4 if self.fleet.count < _LARGE else 12)

    def ticks(self, number: int) -> None:
        """Returns after the time of this number of ticks: what is looked for is that nothing happens."""
        begun = time.monotonic()
        self.until("ticks", lambda: time.monotonic() - begun > number * self.world.tick_s)

    def pass_time(self, row: dict[str, Any] | None) -> None:
        """An hour passes whenever nobody does anything more: on a busy machine a command may be long on its way."""
        self.fleet.check()
        if row is not None and self.is_quiet() and not self.at_work(row["action_id"]):
            self.clock.pass_s(HOUR_S)
            self.quiet_since = (self.quiet_since[0], time.monotonic())

    def over(self, action: str, *, kills: int = 0) -> dict[str, Any]:
        seconds = 120 + self.fleet.count / 4
        return self.world.until_over(action, seconds=seconds, kills=kills, each=self.pass_time)

    def at_work(self, action: str) -> list[str]:
        """Devices without a fault that are there and have not ended what they were sent. Those that were moved in the
        middle of it may have lost it."""
        left_out = self.fleet.away | self.moved
        return [
            id_
            for id_, state in self.states(action).items()
            if state in _AT_WORK and self.fleet.kinds[id_] == "ok" and id_ not in left_out
        ]

    # -- trouble ------------------------------------------------------------------------------------------------------

    def empty_devices(self) -> None:
        """The table `devices` is empty for a moment, as between a DELETE and an INSERT of another tool."""
        table = DeltaTable(tables.uri_of(self.world.root, "devices"))
        rows = table.to_pyarrow_table()
        table.delete()
        self.ticks(4)
        write_deltalake(table.table_uri, rows, mode="append")

    def jump(self) -> None:
        """Somebody sets the clock a day ahead, and back a little later."""
        for by_s in (DAY_S, -DAY_S):
            self.clock.set_by_s(by_s)
            self.ticks(4)

    def move(self, ids: Collection[str]) -> None:
        for id_ in ids:
            self.moved.add(id_)
            self.fleet.move(id_, (self.fleet.place[id_] + 1) % len(self.fleet.ports))

    def outage(self, action: str) -> list[str]:
        """The status job is away for an hour, in which the devices end what they have. Returns the targets that the
        engine ended meanwhile although their devices had reported, and the reason if it aborted the action."""
        self.world.pump.stop()
        self.until("the commands", lambda: "PENDING" not in self.states(action).values())
        self.until("the end of the devices' work", self.is_quiet)
        before, told = self.states(action), self.told(action)
        self.clock.pass_s(HOUR_S)
        self.ticks(10)
        ended = {id_: state for id_, state in self.states(action).items() if state != before[id_]}
        wrong = [f"{id_} is {state} and reported {told[id_]}" for id_, state in ended.items() if id_ in told]
        stopped = (self.world.desk.action(action) or {})["stopped"]
        unread = [id_ for id_, state in told.items() if state == "SUCCEEDED" and before[id_] != state]
        assert unread, f"seed {self.world.seed}: nothing was unread in this outage"
        self.world.pump.restart()
        return wrong + ([] if stopped is None else [stopped])

    # -- what must be true --------------------------------------------------------------------------------------------

    def wrong_endings(self, action: str) -> list[str]:
        return [f"{action}: {line}" for line in untrue(self.fleet.log, action, self.states(action))]

    def unexpected(self, action: str) -> list[str]:
        """Devices that stayed where they were and ended otherwise than their fault says."""
        return [
            f"{action}: {id_} ({self.fleet.kinds[id_]}) is {state}"
            for id_, state in self.states(action).items()
            if id_ not in self.moved and state != UPDATE_EXPECTED[self.fleet.kinds[id_]]
        ]

    def unwanted_images(self) -> list[str]:
        """Devices that ran an image that is unfit, or called off, or whose target did not succeed (nor fail after it
        had started)."""
        actions = {WANTED[action]: action for action in WANTED if action not in CALLED_OFF}
        states = {action: self.states(action) for action in actions.values()}
        wrong = set()
        for line in read(self.fleet.log):
            version = line.get("version")
            # The first line after a start may still name the version before.
            if line["event"] not in ("online", "told") or version in (None, "1.0.0"):
                continue
            id_, action = line["device_id"], actions.get(version)
            state = None if action is None else states[action].get(id_)
            if self.fleet.hardware[id_] != "p2" or state not in ("SUCCEEDED", "FAILED"):
                wrong.add(f"{id_} ({self.fleet.hardware[id_]}) ran {version}, and its target is {state}")
        return sorted(wrong)


@contextlib.contextmanager
def endings(
    folder: Path,
    start_broker: StartBroker,
    *,
    count: int,
    processes: int = 3,
    without: str | None = None,
    faults: str = FAULTS,
) -> Iterator[Endings]:
    seed = random.randrange(10**6)
    brokers = [start_broker(name, settings=fixed_ports()) for name in ("roof", "yard", "hall")]
    maker = Maker()
    maker.root = key_list(maker.roots, maker.targets, thresholds=(2, 2))
    clock = SetClock(folder / "clock.json")
    ports = [broker.mqtt[1] for broker in brokers]
    fleet = MovingFleet(count, ports, maker.root, folder / "fleet.jsonl", faults, seed, processes)
    engine = ["-m", "support.set_clock", str(folder / "clock.json")]
    engine += [] if without is None else ["--without", without]
    world = RolloutWorld(
        folder,
        brokers[0],
        fleet.kinds,
        seed,
        others=tuple(brokers[1:]),
        clock_us=clock.now_us,
        engine=tuple(engine),
        labels={"hw": fleet.hardware},
    )
    run = Endings(world, fleet, clock, random.Random(seed))
    run.offer(maker)
    with fleet:
        run.place_speechless()
        with world.running():
            yield run
