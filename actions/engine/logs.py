"""The brokers that commands can be sent to, and the log that each of them serves, as the job last heard. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Served:
    """One broker. `log_id` is None until it has answered; `away` says that it did not answer the last call."""

    name: str | None = None
    log_id: str | None = None
    away: bool = False
    refuses: bool = False
    """It answers, but refuses the credentials of the job. It then counts as away."""


@dataclass(frozen=True, slots=True)
class Logs:
    """The brokers in the order of the settings. The first one has the commands of rows without a log id: older versions
    published there only."""

    brokers: tuple[Served, ...] = (Served(),)
    stock: Mapping[tuple[str, str, str, str], str | None] | None = None
    """(log id, name, version, sha256) of an artifact → None if the log has it, otherwise why it does not have it yet.
    Without an entry nobody has looked; without the mapping nobody looks, and nothing waits."""

    @property
    def alone(self) -> bool:
        """Whether there is no choice: every device is reached through the same broker."""
        return len(self.brokers) == 1

    @property
    def first(self) -> str | None:
        return self.brokers[0].log_id

    def named(self, name: str) -> Served | None:
        return next((one for one in self.brokers if one.name == name), None)

    def serving(self, log_id: str | None) -> Served | None:
        """The broker of that log; for None the first one. Of several addresses of one log, one that answers."""
        if log_id is None:
            return self.brokers[0]
        found = [one for one in self.brokers if one.log_id == log_id]
        return next((one for one in found if not one.away), found[0] if found else None)
