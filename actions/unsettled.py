"""What was read from the tables and is not settled yet: a restart must read it again."""

from __future__ import annotations

from collections.abc import Iterable

from actions.engine import Decision
from actions.table_store import News, Versions


class Unsettled:
    """Versions of the tables in which requests and reports arrived that still wait for something."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = {}
        self._reports: dict[tuple[str, int, int], int] = {}
        self._facts: int | None = None
        """Of the oldest report that has changed a row of `device_state` which is not written yet."""

    def take(self, news: News, new_requests: Iterable[str]) -> None:
        wanted = frozenset(new_requests)
        for request, version in news.requests.items():
            if request.request_id in wanted:
                self._requests.setdefault(request.request_id, version)
        for report, version in news.reports.items():
            self._reports.setdefault(report.place, version)

    def decided(self, decision: Decision) -> None:
        """Only the reports that still wait, and those behind rows of devices, must be read again."""
        waiting = {report.place for report in decision.waiting}
        if decision.device_updates and self._facts is None and self._reports:
            self._facts = min(self._reports.values())
        self._reports = {place: version for place, version in self._reports.items() if place in waiting}

    def answered(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def facts_written(self) -> None:
        self._facts = None

    def settled(self, read: Versions, held_actions: Iterable[int]) -> Versions:
        """The versions up to which a restart need not read again: below the oldest request or report that waits, and
        below these versions of actions that are not started."""
        reports = [*self._reports.values(), *([] if self._facts is None else [self._facts])]
        actions = min((version - 1 for version in held_actions), default=read.actions)
        return Versions(
            actions=min(actions, read.actions),
            requests=min((version - 1 for version in self._requests.values()), default=read.requests),
            reports=min((version - 1 for version in reports), default=read.reports),
        )
