"""Applies reports of devices and brokers to targets in log order; reports without a matching target wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter, itemgetter

from .action import Device, shortened
from .attempts import installs_after_all
from .facts import ONLINE, with_report
from .lifecycle import REPORTABLE, confirmed, runs_it_already, settled_by_earlier, with_receipt, with_status
from .model import SECOND_US, DeviceState, Quarantined, Report, Target, TargetState
from .work import Work

_WAITING_SHARE = 8
"""One device may use an eighth of the waiting room, so that its reports about unknown actions leave room for other
devices."""
_place = attrgetter("log_id", "partition", "offset", "action_id", "attempt")
_SHOWN_MAX = 100
"""Characters of a device's text that a sentence quotes."""


def apply_reports(work: Work, reports: Iterable[Report]) -> None:
    """Updates targets with the waiting and the new reports: within a partition in the order of their offsets, across
    partitions and logs in the order in which they were recorded."""
    # A record may report on several attempts, but on each only once.
    found = (*work.state.waiting, *reports)
    unique = dict(zip(map(_place, found), found, strict=True))
    for report in _in_turn(unique):
        if report.source == "status":
            if report.state not in REPORTABLE and report.state != ONLINE:
                names = ", ".join(sorted((*REPORTABLE, ONLINE)))
                reason = f"unknown state {report.state[:_SHOWN_MAX]!r}; a device reports {names}"
                work.quarantine.append(Quarantined(report, reason))
                continue
            _note(work, report)
            if report.state == ONLINE:
                continue
        target = work.target(report.action_id, report.device_id)
        if target is not None and target.tenant != report.tenant:
            work.quarantine.append(Quarantined(report, _of_another_tenant(target, report)))
            continue
        if target is None or report.attempt > target.attempt or (report.attempt == target.attempt and target.unsent):
            _wait(work, report)
        elif report.attempt == target.attempt:
            _apply(work, target, report)
        elif report.source == "status":
            # A report on an older attempt changes nothing, unless it makes the next attempt unnecessary.
            fact = work.fact(report.device_id)
            action = work.actions.get(report.action_id)
            _put_late(work, target, settled_by_earlier(target, report, action, fact, work.now_us))
    _confirm(work)


def _in_turn(unique: Mapping[tuple[str, int, int, str, int], Report]) -> list[Report]:
    """A clock that was set back between two batches must not change the order within a partition: a report counts as
    recorded no earlier than those before it."""
    ranked: list[tuple[int, Report]] = []
    log_id, partition, recorded_us = "", -1, 0
    for place in sorted(unique):
        report = unique[place]
        is_same = partition == report.partition and log_id == report.log_id
        recorded_us = max(report.recorded_us, recorded_us if is_same else 0)
        log_id, partition = report.log_id, report.partition
        ranked.append((recorded_us, report))
    ranked.sort(key=itemgetter(0))  # Keeps the order of places that count as recorded at the same time.
    return [report for _, report in ranked]


def _note(work: Work, report: Report) -> None:
    """Records what the device reports about itself. Unknown devices are ignored: anybody may send a status. One that
    was known still counts: its row may be away for a moment only. A report that another tenant has read says nothing
    about the device: the brokers of that tenant may say anything under any name."""
    id_ = report.device_id
    known, device = work.fact(id_), work.devices.get(id_)
    owner: Device | DeviceState | Target | None = device if device is not None else known
    if owner is None:
        held = (work.target(action_id, id_) for action_id, held in work.held.items() if id_ in held.device_ids)
        owner = next((target for target in held if target is not None), None)
    if owner is None or owner.tenant != report.tenant:
        return
    fact = with_report(known, report, work.now_us)
    if fact is not None:
        work.facts[id_] = fact


def _of_another_tenant(target: Target, report: Report) -> str:
    whose, its = shortened(report.tenant), shortened(target.tenant)
    return (
        f"a report that tenant {whose} has read, about a target of tenant {its}: run the status job that reads the "
        f"broker of this device with tenant: {its}"
    )


def _wait(work: Work, report: Report) -> None:
    limit_s = work.limits.wait_unmatched_s
    named = (report.action_id[:_SHOWN_MAX], report.device_id[:_SHOWN_MAX])
    what = f"action {named[0]}, device {named[1]}, attempt {report.attempt}"
    if work.now_us - report.recorded_us >= limit_s * SECOND_US:
        work.quarantine.append(Quarantined(report, f"no target matched within {limit_s} s: {what}"))
        return
    size = report.about_bytes
    count, bytes_ = work.waiting_of.get(report.device_id, (0, 0))
    most, most_bytes = work.limits.waiting_max, work.limits.waiting_bytes_max
    if len(work.waiting) >= most or work.waiting_bytes + size > most_bytes:
        reason = f"no target matches, and {len(work.waiting)} reports are already waiting: {what}"
        work.quarantine.append(Quarantined(report, reason))
    elif count >= max(1, most // _WAITING_SHARE) or (count and bytes_ + size > most_bytes // _WAITING_SHARE):
        reason = f"no target matches, and {count} reports of this device are already waiting: {what}"
        work.quarantine.append(Quarantined(report, reason))
    else:
        work.waiting.append(report)
        work.waiting_bytes += size
        work.waiting_of[report.device_id] = (count + 1, bytes_ + size)


def _apply(work: Work, target: Target, report: Report) -> None:
    if report.source == "receipt":
        if report.state == TargetState.DELIVERED:
            work.put(target, with_receipt(target, report, work.now_us))
        return
    action = work.actions.get(target.action_id)
    version = action.target_version if action is not None else None
    after = installs_after_all(target, report, version, work.now_us)
    _put_late(work, target, after or with_status(target, report, work.now_us, proof=work.proof(target)))


def _put_late(work: Work, target: Target, after: Target) -> None:
    if work.put(target, after) and after.late and not target.late:
        work.say_of_target(after, "LATE_SUCCESS")


def _confirm(work: Work) -> None:
    """Ends targets whose success is now proven, possibly by a status about something else: claimed successes, and
    attempts that would otherwise be repeated."""
    for action, _ in list(work.open_actions()):
        if not action.is_ota:
            continue
        index = work.index(action.action_id)
        for target in work.some(action.action_id, index.claimed):
            fact = work.fact(target.device_id)
            work.put(target, confirmed(target, fact, work.proof(target), work.now_us))
        for target in work.some(action.action_id, index.again):
            _put_late(work, target, runs_it_already(target, action, work.fact(target.device_id), work.now_us))
