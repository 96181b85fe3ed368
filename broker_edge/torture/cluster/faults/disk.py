"""Disks and clocks that misbehave while the process runs (fault build), and disks that are full or lose their power."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from broker_edge.torture.cluster.faults.crash import TAKES_OVER_S
from broker_edge.torture.cluster.life import ClusterLife
from broker_edge.torture.cluster.nodes import NODES
from broker_edge.torture.life import Bench
from broker_edge.torture.loop_image import LoopImage, missing_prerequisites
from broker_edge.torture.strace import injected

_KINDS = (
    ("eio", "sync"),
    ("eio", "write"),
    ("enospc", "write"),
    ("short", "write"),
    ("eio", "syncdir"),
    ("eio", "rename"),
)
_OPERATIONS_MAX = 120


class Slow(ClusterLife):
    """Syncs of up to half a second: slow members leave the set and come back, and nothing else changes."""

    name = "slow"
    about = "syncs of one, two or all nodes take 20 to 500 ms (needs a fault build)"
    needs_fault_build = True
    cycles = 8
    windows = (8, 32)

    def __init__(self, bench: Bench) -> None:
        self._slow: set[str] = set()
        super().__init__(bench)

    def mend_disks(self) -> None:
        """Many small segments are many syncs: a slow disk that has fallen behind may never catch up with the load."""
        for name in sorted(self._slow):
            if not self.nodes.is_down(name):
                self.nodes.kill(name)
                self.nodes.start(name)
        self._slow.clear()

    def strike(self) -> None:
        for name in self.moments.sample(NODES, self.moments.randint(1, 3)):
            self._slow.add(name)
            self.restart_armed(name, f"delay:20-500@sync.seg,seed:{self.moments.randrange(1 << 32)}")
        self.serve()
        self.publish(self.moments.randint(1, 300), seconds=10)
        if self.draw(0.7):
            self.nodes.kill(self.pick(0.8))
            self.serve(seconds=TAKES_OVER_S, must=False)
            self.publish(self.moments.randint(1, 100), seconds=5)
        # Sometimes they stay slow for the next cycle.
        if self.draw(0.6):
            self.nodes.kill(*self.nodes.running)


class Errors(ClusterLife):
    """A disk that fails stops its node, and not the cluster; a restart brings the node back."""

    name = "errors"
    about = "a write, sync or rename of one node fails with EIO or ENOSPC, or is half done (needs a fault build)"
    needs_fault_build = True
    cycles = 10

    def strike(self) -> None:
        was_whole = self.watch.is_whole()
        error, operation = self.moments.choice(_KINDS)
        name = self.pick(0.5)
        self.restart_armed(name, f"{error}@{operation}#{self.moments.randint(1, _OPERATIONS_MAX)}")
        is_alone = self.draw(0.5) and not self.nodes.is_down(name)
        if is_alone:
            # So that it leads when it happens, if it can. If it fails at once, one node is left.
            with contextlib.suppress(TimeoutError):
                self.stop(*(one for one in (self.leader(),) if one != name))
        self.serve(seconds=TAKES_OVER_S, must=was_whole and not is_alone)
        self.publish(self.moments.randint(1, 1_000), seconds=10)
        self.serve(seconds=TAKES_OVER_S, must=was_whole and not is_alone)
        # A replica that has stopped wants a restart.
        self.nodes.kill(name)


class Clock(ClusterLife):
    """Leases, epochs and offsets do not depend on the wall clock. Retention by age does: a leader whose clock is ahead
    removes what appears to be old."""

    name = "clock"
    about = "the clocks of nodes jump by up to 400 days (needs a fault build)"
    needs_fault_build = True
    cycles = 8

    def __init__(self, bench: Bench) -> None:
        super().__init__(dataclasses.replace(bench, has_retention=True))

    def strike(self) -> None:
        for name in self.moments.sample(NODES, self.moments.randint(1, 3)):
            self.restart_armed(name, f"clock:{400 * 86_400},seed:{self.moments.randrange(1 << 32)}")
        self.serve()
        self.publish(self.moments.randint(1, 500), seconds=10)
        self.nodes.kill(self.pick(0.7))
        self.serve(seconds=TAKES_OVER_S, must=False)
        self.publish(self.moments.randint(1, 300), seconds=5)


class OnImages(ClusterLife):
    """Each node has a disk of its own: an ext4 on a loop device."""

    name = ""
    uses_root = True
    image_bytes = 256 << 20

    def __init__(self, bench: Bench) -> None:
        self.images = {name: LoopImage(bench.folder / f"disk-{name}", size_bytes=self.image_bytes) for name in NODES}
        self._mounted = contextlib.ExitStack()
        super().__init__(bench)

    @staticmethod
    def lacks() -> list[str]:
        return ClusterLife.lacks() + missing_prerequisites()

    def __enter__(self) -> ClusterLife:
        try:
            for image in self.images.values():
                self._mounted.enter_context(image)
            return super().__enter__()
        except BaseException:
            self._mounted.close()
            raise

    def free_disks(self) -> None:
        self._mounted.close()

    def folders(self) -> Mapping[str, Path]:
        return {name: image.mount_point / "data" for name, image in self.images.items()}


class Power(OnImages):
    """What was acknowledged was on the disks of at least two nodes, not only in their page caches."""

    name = "power"
    about = "the power of one node, of two or of all fails (ext4 on loop devices; needs root)"
    cycles = 10

    def __init__(self, bench: Bench) -> None:
        self._strace = shutil.which("strace")
        super().__init__(bench)

    def strike(self) -> None:
        draw = self.moments.random()
        names = [self.pick()] if draw < 0.6 else list(NODES) if draw < 0.9 else self.moments.sample(NODES, 2)
        was_whole = self.watch.is_whole()
        delayed = self.moments.choice(names) if self._strace and self.draw(0.3) else None
        if delayed is None:
            self._cut_power(names)
        else:
            # A sync of half a second is under way when the power fails.
            pid = self.nodes.process(delayed).pid
            with injected(str(self._strace), pid=pid, call="fdatasync", what="delay_enter=500ms"):
                self.sleep(0.0, 0.3)
                self._cut_power(names)
        for name in names:
            self.images[name].power_on()
        self.nodes.links.heal()
        if len(names) == 1 and self.draw(0.7):
            self.serve(seconds=TAKES_OVER_S, must=was_whole)
            self.publish(self.moments.randint(1, 500), seconds=8)

    def _cut_power(self, names: list[str]) -> None:
        self.nodes.tell(f"the power of {' and '.join(names)} fails")
        for name in names:
            if self.draw(0.4):
                self.images[name].write_some_back(self.moments)
        # A host without power says nothing more, not even that a connection has ended.
        if self.draw(0.7):
            for name in names:
                self.nodes.isolate(name, etcd_too=True)
        for name in names:
            self.images[name].cut_power()
        for name in names:
            self.nodes.kill(name)
        if self.draw(0.5):
            self.sleep(0.0, 2.0)


class Full(OnImages):
    """A node without room refuses or leaves the set, loses nothing, and goes on when it has room again."""

    name = "full"
    about = "the disk of one node is filled under load, and emptied again (needs root)"
    cycles = 6
    image_bytes = 160 << 20

    def strike(self) -> None:
        name = self.pick(0.5)
        self.nodes.tell(f"the disk of {name} is full")
        ballast = self.images[name].fill()
        try:
            self.publish(self.moments.randint(500, 4_000), seconds=self.moments.uniform(2.0, 10.0))
            if self.draw(0.3):
                self.nodes.kill(name)
                self.start(name)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.nodes.wait_refused(name, seconds=self.moments.uniform(0.5, 4.0))
                    self.nodes.kill(name)
        finally:
            ballast.unlink()
            self.nodes.tell(f"the disk of {name} has room")
        # It could not note a new epoch, or that it is in doubt. Without that it must not answer, and wants a restart.
        report = self.watch.reports().get(name)
        if report is not None and report["role"] == "stopped":
            self.nodes.kill(name)
