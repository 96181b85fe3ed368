"""Indexes that are missing, truncated, of another segment, or full of garbage: they are rebuilt, and results do not
change."""

from __future__ import annotations

from pathlib import Path

from broker_edge.client import Client
from broker_edge.torture.faults.stopped import StoppedNode
from broker_edge.torture.report import Finding

_KINDS = ("missing", "empty", "truncated", "of another segment", "of another partition", "anything", "longer")


class Index(StoppedNode):
    """An index is never authoritative: reads by topic give the same results with any index."""

    name = "index"
    about = "indexes are removed, cut, swapped or overwritten while the broker is down"

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._topics: dict[str, list[tuple[int, bytes]]] = {}

    def damage_and_check(self, number: int) -> None:
        indexes = sorted(self.data_dir.glob("*-*/*.idx"))
        if not indexes:
            raise TimeoutError("no sealed segment has an index: this fault would test nothing")
        damaged = self.moments.sample(indexes, k=self.moments.randint(1, len(indexes)))
        kind = _KINDS[number % len(_KINDS)]
        for path in damaged:
            self._damage(path, kind, indexes)
        what = f"{len(damaged)} indexes {kind}"
        self.broker.faults = self.words("")
        self.broker.start()
        reported = self.compare(self.read(), what)
        if reported:
            self.report.add(Finding.LOST, f"{what}: {reported} records are given up, although their batches are intact")
        self._compare_by_topic(what)

    def _damage(self, path: Path, kind: str, indexes: list[Path]) -> None:
        content = path.read_bytes()
        if kind == "missing":
            path.unlink()
        elif kind == "empty":
            path.write_bytes(b"")
        elif kind == "truncated":
            path.write_bytes(content[: self.moments.randrange(len(content))])
        elif kind == "anything":
            path.write_bytes(self.moments.randbytes(len(content)))
        elif kind == "longer":
            path.write_bytes(content + self.moments.randbytes(64))
        else:
            is_same = kind == "of another segment"
            others = [one for one in indexes if one != path and (one.parent == path.parent) == is_same]
            path.write_bytes(self.moments.choice(others).read_bytes() if others else b"")

    def _compare_by_topic(self, what: str) -> None:
        """Reads the records of one topic, which is the purpose of the index."""
        with Client("grpc://{}:{}".format(*self.broker.flight)) as client:
            for topic in client.topics():
                if topic.name not in self.truth:
                    continue
                wanted = [offset for offset, row in self.truth[topic.name].items() if row.topic == topic.topic]
                table = client.fetch(topic.partition, topic.first, topic.next, filters=[topic.topic]).to_table()
                if sorted(table.column("offset").to_pylist()) != sorted(wanted):
                    self.report.add(Finding.LOST, f"{what}: reading {topic.topic} alone returns other records")
