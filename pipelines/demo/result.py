"""The result of a demo run: the account, the actions, and whether both are as promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.demo.account import Account
from pipelines.demo.action import Outcome
from pipelines.demo.devices import DeviceCounts


@dataclass(frozen=True, slots=True)
class Result:
    """`seconds` is the time during which the devices published."""

    account: Account
    outcome: Outcome
    counts: DeviceCounts
    devices: int
    seconds: float
    brokers: int = 1
    restarts: int = 0

    @property
    def ok(self) -> bool:
        """Every acknowledged message is in bronze once, and every action succeeded on each of its devices."""
        return self.account.missing == 0 and self.account.duplicates == 0 and self.outcome.all_succeeded

    def to_json(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "devices": self.devices,
            "seconds": round(self.seconds, 1),
            "published": self.counts.published,
            "acked": self.counts.acked,
            "refused": self.counts.refused,
            "bronze_rows": self.account.bronze_rows,
            "missing": self.account.missing,
            "duplicates": self.account.duplicates,
            "resent": self.account.resent,
            "brokers": self.brokers,
            "restarts": self.restarts,
            "actions": {
                "count": outcome.actions,
                "open": outcome.open,
                "targets": outcome.targets,
                "succeeded": outcome.succeeded,
                "states": dict(sorted(outcome.states.items())),
            },
            "p50_ms": self.account.p50_ms,
            "p99_ms": self.account.p99_ms,
        }
