"""Copies that are damaged, gone, or older than they were. The others have everything, so nothing may be lost."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from broker_edge.torture.cluster.life import ClusterLife
from broker_edge.torture.cluster.nodes import NODES, others
from broker_edge.torture.faults.fields import BATCH_HEADER_BYTES, SEGMENT_HEADER_BYTES
from broker_edge.torture.report import Finding

# A candidate that is in doubt waits 30 s for the others before it takes over with what it has (ADR 0023): they must be
# back before that.
ALONE_S = 6.0
_SOUND_S = 5.0
_REFUSED_S = 30.0


class Bits(ClusterLife):
    """A damaged copy is not elected while another may have what it lacks, and is made whole by the others."""

    name = "bits"
    about = "one bit of one node's copy is flipped while it is down"
    cycles = 10
    needs_whole = True

    def strike(self) -> None:
        self.moments.choice((self._alone, self._alone, self._one, self._relapse))()

    def _alone(self) -> None:
        """All die, and the damaged one is there first."""
        name = self.moments.choice(NODES)
        if self.draw(0.7):
            self.nodes.kill(*NODES)
        else:
            self.stop(*NODES)
        self.damage(name)
        self.nodes.spawn(name)
        self.wait_up(name)
        self.sleep(0.0, ALONE_S)

    def _one(self) -> None:
        name = self.pick(0.5)
        self.nodes.kill(name)
        self.damage(name)
        if self.draw(0.5):
            self.serve(seconds=20, must=False)
            self.publish(self.moments.randint(1, 300), seconds=5)

    def _relapse(self) -> None:
        """It comes back to a leader, has not yet got what it lacks, and the others die."""
        name = self.followers()[0]
        self.nodes.kill(name)
        self.damage(name)
        self.nodes.links.slow(NODES, [name], 30_000)
        self.nodes.spawn(name)
        self.wait_up(name)
        deadline = time.monotonic() + _SOUND_S
        while time.monotonic() < deadline:
            report = self.watch.reports().get(name)
            if report is not None and report["trust"] == "sound" and report["role"] == "follower":
                break
            time.sleep(0.02)
        self.nodes.kill(*others(name))
        self.nodes.links.heal()
        self.sleep(1.0, ALONE_S)

    def damage(self, name: str) -> None:
        """Flips one bit of a segment that is not sealed, mostly in one of its newest batches. A sealed one is read by
        those who ask for its records, so damage of a copy that nobody reads would be found at the end of the life."""
        segments = sorted(path for path in self.nodes.folders[name].glob("*-*/*.seg") if path.stem.isdecimal())
        chosen = list({path.parent: path for path in segments}.values())
        found = {path: batches(path.read_bytes()) for path in chosen}
        # The last batch may be taken for a write that was not finished; one before it may not.
        several = [path for path in chosen if len(found[path]) > 2]
        path = self.moments.choice(several if several and self.draw(0.8) else chosen)
        content = bytearray(path.read_bytes())
        here = found[path] or [(0, SEGMENT_HEADER_BYTES)]
        behind = self.moments.randint(1, 30) if path in several and self.draw(0.8) else 0
        at, size = here[max(0, len(here) - 1 - behind)]
        place = at + self.moments.randrange(size)
        content[place] ^= 1 << self.moments.randrange(8)
        where = f"the batch at {at} of {here[-1][0]}, the last"
        self.history.tell(f"flip a bit of byte {place} of {name}/{path.parent.name}/{path.name}, in {where}")
        path.write_bytes(content)


class Emptied(ClusterLife):
    """A node whose disk was replaced gets a new copy, and has no say before."""

    name = "emptied"
    about = "a node comes back with an empty folder"
    cycles = 6
    needs_whole = True

    def strike(self) -> None:
        name = self.pick(0.5)
        self.nodes.kill(name)
        self.nodes.empty(name)
        if self.draw(0.5):
            self.serve(seconds=20, must=False)
        self.start(name)
        if self.draw(0.3):
            # Once more before it has its copy.
            self.sleep(0.0, 3.0)
            self.nodes.kill(name)
        elif self.draw(0.3):
            self.sleep(0.0, 2.0)
            self.nodes.kill(self.leader())


class RolledBack(ClusterLife):
    """A folder that lacks what it had answered for is refused by name; the disk has to be emptied."""

    name = "rolled-back"
    about = "a node comes back with an older copy of its folder"
    cycles = 5
    needs_whole = True

    def strike(self) -> None:
        name = self.pick(0.5)
        kept = self.bench.folder / "kept"
        if self.draw(0.5):
            self.nodes.kill(name)
        else:
            self.stop(name)
        self.nodes.copy_folder(name, kept)
        self.nodes.start(name)
        self.serve()
        self.publish(self.moments.randint(1, 500))
        self.wait_whole()
        self.nodes.kill(name)
        self.nodes.put_back(name, kept)
        said = len(self.nodes.log_text(name))
        self.nodes.spawn(name)
        self._expect_refusal(name, kept, said)
        self.nodes.kill(name)
        self.nodes.empty(name)

    def _expect_refusal(self, name: str, kept: Path, said: int) -> None:
        code = self.nodes.wait_refused(name, seconds=_REFUSED_S)
        if code is None or "rolled back" not in self.nodes.log_text(name)[said:]:
            end = "runs" if code is None else f"ended with {code}"
            text = f"{name} {end} on a folder from before: {self.watch.describe()}"
            self.report.add(Finding.UNDETECTED, f"{text}; {self.nodes.process(name).last_words()}")


def batches(content: bytes) -> list[tuple[int, int]]:
    """Position and size of each batch of a segment. Behind the last one there may be the rest of an earlier use."""
    found = []
    at, expected = SEGMENT_HEADER_BYTES, int.from_bytes(content[40:48], "little")
    while at + BATCH_HEADER_BYTES <= len(content):
        (length,) = struct.unpack_from("<I", content, at)
        base, records = struct.unpack_from("<Q", content, at + 8)[0], struct.unpack_from("<I", content, at + 32)[0]
        if base != expected or length < BATCH_HEADER_BYTES or at + 4 + length > len(content):
            break
        found.append((at, length + 4))
        at, expected = at + length + 4, base + records
    return found
