"""What a broker counts, as it answers `GET /metrics`: values, and what has happened between two answers.

The format is the text format of Prometheus, version 0.0.4: a line per sample, `name{label="value",…} number`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?\Z")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer; `at_s` is a time of a clock that only rises, in seconds."""

    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parse(cls, text: str, *, at_s: float) -> Scrape:
        """Reads an answer. Lines that are no samples are left out."""
        samples: dict[str, dict[Labels, float]] = {}
        for line in text.splitlines():
            found = None if line.startswith("#") else _SAMPLE.match(line)
            if found is None:
                continue
            try:
                value = float(found[3])
            except ValueError:
                continue
            labels = tuple(sorted((name, _plain(text)) for name, text in _LABEL.findall(found[2] or "")))
            samples.setdefault(found[1], {})[labels] = value
        return cls(at_s, samples)

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; None without any."""
        wanted = set(labels.items())
        found = [value for own, value in self.samples.get(name, {}).items() if wanted <= set(own)]
        return math.fsum(found) if found else None

    def values_of(self, name: str, label: str) -> dict[str, float]:
        """The sums by the value of a label."""
        sums: dict[str, float] = {}
        for own, value in self.samples.get(name, {}).items():
            of = dict(own).get(label)
            if of is not None:
                sums[of] = sums.get(of, 0.0) + value
        return sums

    def per_second(self, before: Scrape, name: str, **labels: str) -> float | None:
        """How fast a counter rose since `before`. None where it is not in both, or was set back by a restart."""
        now, then, seconds = self.value(name, **labels), before.value(name, **labels), self.at_s - before.at_s
        if now is None or then is None or now < then or seconds <= 0:
            return None
        return (now - then) / seconds

    def quantile(self, before: Scrape, name: str, share: float) -> float | None:
        """The value below which `share` of the observations since `before` lie, as `histogram_quantile` of Prometheus
        finds it; None without observations."""
        now, then = self.values_of(f"{name}_bucket", "le"), before.values_of(f"{name}_bucket", "le")
        if now.keys() != then.keys():
            return None
        risen = sorted((float(le), now[le] - then[le]) for le in now)
        return _quantile(risen, share)


def _quantile(buckets: Iterable[tuple[float, float]], share: float) -> float | None:
    """Of cumulative buckets, ascending: linear within the bucket, and the last finite bound beyond it."""
    buckets = list(buckets)
    if not buckets or buckets[-1][1] <= 0 or any(count < 0 for _, count in buckets):
        return None
    rank, low, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return low
            return bound if count == below else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)
