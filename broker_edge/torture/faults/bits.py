"""Flips one bit of a stopped log: it must be detected, and nothing wrong may be served."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from broker_edge.torture.faults.fields import Field, batch_fields, index_fields, mark_fields, segment_fields
from broker_edge.torture.faults.stopped import StoppedNode
from broker_edge.torture.process import BrokerError
from broker_edge.torture.report import Finding

_KINDS: tuple[tuple[str, Callable[[bytes], list[Field]]], ...] = (
    ("*.seg", segment_fields),
    ("*.seg", batch_fields),
    ("*.idx", index_fields),
    ("mark", mark_fields),
)


class Bits(StoppedNode):
    """Goes through all the fields of segments, indexes and marks, one flipped bit per cycle."""

    name = "bits"
    about = "one bit of a field of a segment, an index or a mark is flipped while the broker is down"
    cycles = 60
    _turn: ClassVar[int] = 0

    def damage_and_check(self, number: int) -> None:
        path, field = self._choose()
        content = bytearray(path.read_bytes())
        at = field.at + self.moments.randrange(field.size)
        bit = self.moments.randrange(8)
        content[at] ^= 1 << bit
        path.write_bytes(content)
        what = f"{field.name}, bit {bit} of byte {at} in {path.parent.name}/{path.name}"
        self.broker.faults = self.words("")
        try:
            self.broker.start()
        except BrokerError as refusal:
            self._judge_refusal(path, field, what, str(refusal))
            return
        served = self.read()
        reported = self.compare(served, what)
        if field.name.startswith("batch") and not reported and not self._is_told(path):
            self.report.add(Finding.UNDETECTED, f"{what}: everything is served as if nothing had happened")
        if not field.name.startswith("batch") and reported:
            self.report.add(Finding.LOST, f"{what}: {reported} records are given up, although their batches are intact")

    def _choose(self) -> tuple[Path, Field]:
        """The next field in turn, in any file that contains it."""
        by_name: dict[str, list[tuple[Path, Field]]] = {}
        for pattern, fields_of in _KINDS:
            for path in sorted(self.data_dir.glob(f"*-*/{pattern}")):
                for field in fields_of(path.read_bytes()):
                    by_name.setdefault(field.name, []).append((path, field))
        names = sorted(by_name)
        name = names[(self.bench.seed + Bits._turn) % len(names)]
        Bits._turn += 1
        return random.Random(self.moments.random()).choice(by_name[name])

    def _judge_refusal(self, path: Path, field: Field, what: str, said: str) -> None:
        """A start may be refused with a message that names the file; then nothing is served."""
        if path.name not in said and path.parent.name not in said:
            self.report.add(
                Finding.UNDETECTED, f"{what}: the broker does not start, and does not name the file: {said}"
            )
        elif field.name.startswith("batch") and path.parent.name != "internal-0":
            self.report.add(Finding.STUCK, f"{what}: one damaged batch prevents the whole log from starting: {said}")

    def _is_told(self, path: Path) -> bool:
        """Whether damage must be reported. Damage below a snapshot of the internal partition may be without
        consequence."""
        return path.parent.name == "internal-0"
