"""What each device has reported about itself: the rows of `device_state`. Pure."""

from __future__ import annotations

from .model import DeviceState, Report
from .replacing import maker

ONLINE = "ONLINE"
"""The status of a device after a start, without an action."""


def with_report(known: DeviceState | None, report: Report, now_us: int) -> DeviceState | None:
    """The row after a status, or None if the status is not newer.

    Within a partition the offset decides. If a device has moved to another broker or partition, offsets cannot be
    compared, and the time of the record in the log decides, but no later than the time at which the status job recorded
    it: the clock of a broker that is ahead must not hold the device there.
    """
    if known is not None and not _newer(known, report):
        return None
    about_action = report.state != ONLINE
    before = known or DeviceState(report.device_id, report.tenant, 0, "", 0, 0)
    return _made(
        before.device_id,
        report.tenant,
        _seen_us(report),
        report.log_id,
        report.partition,
        report.offset,
        report.boot if report.boot is not None else before.boot,
        report.version if report.version is not None else before.version,
        report.product if report.product is not None else before.product,
        report.hardware if report.hardware is not None else before.hardware,
        report.action_id if about_action else before.last_action_id,
        report.state if about_action else before.last_status,
        now_us,
    )


_made = maker(DeviceState)


def _newer(known: DeviceState, report: Report) -> bool:
    if (known.log_id, known.partition) == (report.log_id, report.partition):
        return report.offset > known.offset
    # Rows of older versions may have a time that was ahead; `updated_us` is the engine's own.
    return _seen_us(report) > min(known.last_seen_us, known.updated_us)


def _seen_us(report: Report) -> int:
    return min(report.at_us, report.recorded_us)
