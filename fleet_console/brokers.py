"""What the brokers say: one stream each, which a thread of its own reads and opens again after a pause.

A broker that does not answer is shown as such and holds nothing up. Numbers have an age.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_edge.cluster_status import PATH as CLUSTER_PATH
from broker_edge.errors import BrokerError, HeadwaterError, NotFoundError, RefusedError, UnavailableError
from fleet_console.settings import ConsoleMember
from sinks.rows import now_us

log = logging.getLogger(__name__)

STALE_AFTER_S = 10.0
"""From then on a broker counts as one that does not answer."""
_PAUSES_S = (1.0, 2.0, 5.0, 10.0)
_STATUS_EVERY_S = 10.0
SAMPLES_MAX = 900
"""15 minutes at one a second, as at the broker."""
SUMMED = (
    *("publishes_in", "publishes_out", "bytes_in", "bytes_out", "refused", "dropped", "flight_records"),
    *("connections", "sessions", "subscriptions", "disk_used_bytes"),
)
"""The names of a broker's sample of which the sum over a fleet means something."""
_NAMES_MAX, _ALERTS_MAX, _TEXT_MAX, _PARTITIONS_MAX = 100, 100, 1_000, 1_000
"""What is taken from one broker: whoever answers in its place must not fill the page of all."""
_AWAY = "Check whether the broker runs, and whether this machine reaches its admin address."
_TROUBLES = {
    "away": ("BrokerAway", "The broker does not answer.", _AWAY),
    "stale": ("BrokerAway", "The broker sends nothing any more.", _AWAY),
    "refused": (
        "BrokerRefuses",
        "The broker refuses this console.",
        "Give a user with the right `viewer` there in the settings of the console, under `brokers` or `access`.",
    ),
}
_WANTED = ("retention", "purge")
"""Reasons of gaps that somebody wanted: they are no losses."""
WORST = ("ack_p99_s", "sync_p99_s", "loop_busy")
"""Those of which the largest does."""


@dataclass(frozen=True, slots=True)
class Stats:
    """An event of the live stream, as far as it is understood."""

    sample: Mapping[str, float | None] = field(default_factory=dict)
    alerts: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """The last words of one broker. `heard_s` is by a clock that nobody sets, `seen_us` is the time of day."""

    stats: Stats = field(default_factory=lambda: Stats())
    status: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] | None = None
    trouble: str | None = None
    heard_s: float | None = None
    seen_us: int | None = None
    is_refused: bool = False
    """The broker does not let this console look."""
    since_s: float = field(default_factory=time.monotonic)

    def state(self) -> str:
        if self.trouble is None and self.cluster is not None and self.cluster["role"] != "leader":
            return "standby"
        if self.is_refused:
            return "refused"
        if self.heard_s is None:
            is_late = time.monotonic() - self.since_s > STALE_AFTER_S
            return "away" if self.trouble is not None or is_late else "opening"
        if time.monotonic() - self.heard_s <= STALE_AFTER_S:
            return "live"
        return "stale" if self.trouble is None else "away"


class Watcher:
    """Follows one broker from `start` until the process ends."""

    def __init__(self, member: ConsoleMember) -> None:
        self.member = member
        self._lock = threading.Lock()
        self._seen = Seen()
        self._next_status_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"console-{self.member.name}", daemon=True).start()

    def row(self) -> dict[str, Any]:
        """What `/api/v1/brokers` says of it."""
        with self._lock:
            seen = self._seen
            state, stats, status = seen.state(), seen.stats, seen.status
            trouble, seen_us, cluster = seen.trouble, seen.seen_us, seen.cluster
        return {
            "name": self.member.name,
            "admin": self.member.admin.address,
            "state": state,
            "trouble": None if state == "live" else trouble,
            "seen_us": seen_us,
            "version": status.get("version"),
            "log_id": status.get("log_id"),
            "sample": stats.sample,
            "alerts": stats.alerts,
            "lost_ranges": status.get("lost_ranges"),
            "damaged_bytes": status.get("damaged_bytes"),
            "cluster": cluster,
        }

    def log_id(self) -> str | None:
        """The log of the broker, once it has said it."""
        with self._lock:
            return self._seen.status.get("log_id")

    def partitions(self) -> Mapping[str, int]:
        """The number of each partition by its name, as far as the broker has said them."""
        with self._lock:
            found: Mapping[str, int] = self._seen.status.get("partitions", {})
            return found

    def is_live(self) -> bool:
        with self._lock:
            return self._seen.state() == "live"

    def _run(self) -> None:
        failures = 0
        while True:
            failures = 0 if self.look() else failures + 1
            time.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])

    def look(self) -> bool:
        """Follows the stream until it ends, and notes why. Returns whether anything was heard."""
        heard = False
        try:
            for name, value in self.member.admin.follow("/api/v1/live"):
                if name == "stats":
                    self._hear(value)
                    heard = True
            self._fail("the broker has ended its stream")
        except UnavailableError as error:
            self._rest(error)
        except RefusedError as error:
            self._fail(str(error), is_refused=True)
        except HeadwaterError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("cannot follow the broker %s", self.member.name)
            self._fail(f"cannot be followed: {error}")
        return heard

    def _hear(self, stats: Mapping[str, Any]) -> None:
        status, cluster = self._seen.status, self._seen.cluster
        if time.monotonic() >= self._next_status_s:
            status, cluster = status_of(self.member.admin.ask("GET", "/api/v1/status")), self._cluster()
            self._next_status_s = time.monotonic() + _STATUS_EVERY_S
        with self._lock:
            heard_s = time.monotonic()
            self._seen = Seen(stats_of(stats), status, cluster, heard_s=heard_s, seen_us=now_us())

    def _rest(self, error: UnavailableError) -> None:
        """A node of a cluster that does not lead serves nothing but what it is."""
        try:
            cluster = self._cluster()
        except HeadwaterError:
            cluster = None
        if cluster is None or cluster["role"] == "leader":
            self._fail(str(error))
            return
        with self._lock:
            self._seen = Seen(cluster=cluster, heard_s=time.monotonic(), seen_us=now_us())

    def _cluster(self) -> Mapping[str, Any] | None:
        try:
            return cluster_of(self.member.admin.ask("GET", CLUSTER_PATH))
        except NotFoundError:
            return None

    def _fail(self, why: str, *, is_refused: bool = False) -> None:
        with self._lock:
            before = self._seen
            self._seen = replace(before, trouble=why, is_refused=is_refused)
        if before.trouble is None:
            log.warning("the broker %s: %s", self.member.name, why)
        self._next_status_s = 0.0


def stats_of(event: Mapping[str, Any]) -> Stats:
    """Raises BrokerError for an event that is not understood."""
    sample, alerts = event.get("sample"), event.get("alerts")
    if not isinstance(sample, dict) or not isinstance(alerts, list):
        raise _not_understood()
    texts = ("name", "severity", "summary", "remedy")
    return Stats(
        {str(name): _number(value) for name, value in list(sample.items())[:_NAMES_MAX]},
        [
            {name: str(alert.get(name, ""))[:_TEXT_MAX] for name in texts}
            for alert in alerts[:_ALERTS_MAX]
            if isinstance(alert, dict)
        ],
    )


def status_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of `/api/v1/status`. Raises BrokerError for what is not understood."""
    partitions = told.get("partitions")
    if not isinstance(partitions, list) or not all(isinstance(one, dict) for one in partitions):
        raise _not_understood()
    return {
        "version": _text(told.get("version")),
        "log_id": _text(told.get("log_id")),
        "lost_ranges": sum(_lost_ranges(one) for one in partitions),
        "damaged_bytes": sum(_count(one.get("damaged_bytes")) for one in partitions),
        "partitions": {
            name: int(number)
            for name, number in (
                (one.get("name"), _number(one.get("partition"))) for one in partitions[:_PARTITIONS_MAX]
            )
            if isinstance(name, str) and number is not None and len(name) <= _TEXT_MAX
        },
    }


def cluster_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of `/api/v1/cluster`. Raises BrokerError for what is not understood."""
    lag = told.get("lag")
    if not isinstance(told.get("role"), str):
        raise _not_understood()
    return {
        **{name: _text(told.get(name)) for name in ("node", "role", "leader")},
        "epoch": _number(told.get("epoch")),
        **{name: _texts(told.get(name)) for name in ("in_sync", "replicas")},
        "lag": {str(name): _number(value) for name, value in lag.items()} if isinstance(lag, dict) else None,
    }


def _not_understood() -> BrokerError:
    return BrokerError("the broker says what this version does not understand: is it of another version?")


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None  # type: ignore[return-value]


def _lost_ranges(partition: Mapping[str, Any]) -> int:
    """The gaps that are losses. Of older ones that the broker does not list nobody knows the reason, so they count."""
    gaps = partition.get("gaps")
    listed = [one for one in gaps if isinstance(one, dict)] if isinstance(gaps, list) else []
    return sum(one.get("reason") not in _WANTED for one in listed) + _count(partition.get("gaps_left_out"))


def _count(value: object) -> int:
    return int(_number(value) or 0)


def _text(value: object) -> str | None:
    return value[:_TEXT_MAX] if isinstance(value, str) else None


def _texts(value: object) -> list[str]:
    return [str(one)[:_TEXT_MAX] for one in value[:_NAMES_MAX]] if isinstance(value, list) else []


class Fleet:
    """All brokers, and the sums of the last 15 minutes."""

    def __init__(self, members: Iterable[ConsoleMember]) -> None:
        self._watchers = [Watcher(member) for member in members]
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, Mapping[str, float | None]]] = deque(maxlen=SAMPLES_MAX)

    def start(self) -> None:
        for watcher in self._watchers:
            watcher.start()
        threading.Thread(target=self._sample, name="console-samples", daemon=True).start()

    def rows(self) -> list[dict[str, Any]]:
        return [watcher.row() for watcher in self._watchers]

    def logs(self) -> list[str]:
        """The logs of all brokers that have said theirs, each once."""
        return sorted({log_id for log_id in map(Watcher.log_id, self._watchers) if log_id is not None})

    def of_log(self, log_id: str) -> Watcher | None:
        """The broker that has this log: of the nodes of a cluster the one that leads, if it answers."""
        having = [watcher for watcher in self._watchers if watcher.log_id() == log_id]
        return next((one for one in having if one.is_live()), having[0] if having else None)

    def stats(self) -> dict[str, Any]:
        """The newest sums with all alerts, as an event of the stream."""
        rows = self.rows()
        return {"at_ms": now_us() // 1_000, "sample": summed(rows), "offsets": [], "alerts": alerts(rows)}

    def history(self) -> dict[str, Any]:
        """The answer of `/api/v1/live/history`."""
        with self._lock:
            samples = list(self._samples)
        names = (*SUMMED, *WORST, "brokers", "brokers_live")
        end_ms = samples[-1][0] if samples else now_us() // 1_000
        return {
            "every_s": 1,
            "end_ms": end_ms,
            "series": {name: [one.get(name) for _, one in samples] for name in names},
        }

    def _sample(self) -> None:
        next_s = time.monotonic()
        while True:
            try:
                sums = summed(self.rows())
                with self._lock:
                    self._samples.append((now_us() // 1_000, sums))
            except Exception:
                log.exception("cannot add up what the brokers say")
            next_s = max(next_s + 1.0, time.monotonic())
            time.sleep(max(0.0, next_s - time.monotonic()))


def summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The sums of the brokers that answer, and the worst of what has no sum. None where no broker says it."""
    live = [row["sample"] for row in rows if row["state"] == "live"]
    found: dict[str, float | None] = {"brokers": len(rows), "brokers_live": len(live)}
    for names, fold in ((SUMMED, sum), (WORST, max)):
        for name in names:
            known = [sample[name] for sample in live if sample.get(name) is not None]
            found[name] = fold(known) if known else None
    return found


def alerts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The alerts of all brokers with their broker, and one for each that does not answer."""
    found = []
    for row in rows:
        if row["state"] in _TROUBLES:
            name, otherwise, remedy = _TROUBLES[row["state"]]
            alert = {"name": name, "severity": "critical", "summary": row["trouble"] or otherwise, "remedy": remedy}
            found.append({**alert, "broker": row["name"]})
        else:
            found += [{**alert, "broker": row["name"]} for alert in row["alerts"]]
    return found
