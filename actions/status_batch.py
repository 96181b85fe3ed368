"""Writes one batch of the status stream to `action_events` and `quarantine`: complete, or without records that no table
can store. A record never ends the job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from actions.event_log import EventLog
from actions.halving import CONTENT_ERRORS, fitting, said
from actions.status_rows import Parsed, parse, quarantined
from actions.uplink_status import UplinkTopic

log = logging.getLogger(__name__)

Record = Mapping[str, Any]


class StatusBatches:
    """Writes batches of records in the canonical schema, `timestamp` as Unix microseconds."""

    def __init__(self, events: EventLog, *, tenant: str, uplink: UplinkTopic | None = None) -> None:
        self._events, self._tenant, self._uplink = events, tenant, uplink

    def write(self, records: Sequence[Record], *, recorded_us: int, query_id: str, batch_id: int) -> None:
        """Raises errors of reading and writing tables, but none because of the contents of a record."""
        try:
            parsed = self._parsed(records, recorded_us)
            self._events.append(parsed.events, parsed.quarantine, query_id=query_id, batch_id=batch_id)
        except CONTENT_ERRORS as error:
            log.warning(
                "batch %d has a record that the tables cannot store (%s): looking for it", batch_id, said(error)
            )
            parsed = self._without_unfit(records, recorded_us)
            self._events.append(parsed.events, parsed.quarantine, query_id=query_id, batch_id=batch_id)

    def _parsed(self, records: Sequence[Record], recorded_us: int) -> Parsed:
        return parse(records, tenant=self._tenant, recorded_us=recorded_us, uplink=self._uplink)

    def _without_unfit(self, records: Sequence[Record], recorded_us: int) -> Parsed:
        """The batch, with records that cannot be stored moved to quarantine."""

        def check(some: Sequence[Record]) -> None:
            parsed = self._parsed(some, recorded_us)
            self._events.try_out(parsed.events, parsed.quarantine)

        kept, refused = fitting(records, check)
        parsed = self._parsed(kept, recorded_us)
        unfit = tuple(
            quarantined(record, f"the record cannot be stored: {why}", tenant=self._tenant, recorded_us=recorded_us)
            for record, why in refused
        )
        return replace(parsed, quarantine=parsed.quarantine + unfit)
