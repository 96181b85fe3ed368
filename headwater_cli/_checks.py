"""What `headwater doctor` finds out from a broker's own words, and of the disk of a folder."""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from broker_edge.admin import Admin
from broker_edge.errors import ConnectError, HeadwaterError, MissingExtraError, NotFoundError
from broker_edge.scrape import Scrape
from headwater_cli._settings import checked_settings

State = Literal["ok", "warn", "absent", "failed"]

_ANSWER_S = 5.0
_SYNCS = 100
_SYNC_SLOW_S = 0.05
"""An acknowledgement waits for a sync: above this, devices notice it."""
_FREE_SHARE = 0.1
_FDS_SHARE = 0.8
_TIMEX_BYTES = 512
"""More than `struct timex` has on any machine (adjtimex(2))."""
_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""
_BEHIND_NAMED = 5
_DIFFER_NAMED = 5
_STATES: Mapping[str, State] = {"ok": "ok", "warn": "warn", "fail": "failed"}
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "fuse.sshfs", "fuse.s3fs")
"""File systems over a network: a sync is a promise of another machine (docs/format.md)."""
_COPIES = ("btrfs", "zfs", "overlay")
"""They write anew what they change, so the preallocated space of a segment keeps nothing free (docs/format.md)."""


@dataclass(frozen=True, slots=True)
class Check:
    """`detail` says what was found, or what is wrong and what to do. `absent`: an optional part that is not
    installed, or that nobody has named. `warn`: it works, and somebody should look at it."""

    name: str
    state: State
    detail: str


def checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except MissingExtraError as error:
        return Check(name, "absent", str(error))
    except Exception as error:
        return Check(name, "failed", str(error).partition("\n")[0])


def of_broker(address: str, version: str, *, is_named: bool) -> list[Check]:
    """What the broker at this admin address says of itself. An address that nobody has named may be that of nobody."""
    admin = Admin(address, timeout_s=_ANSWER_S)
    try:
        status, scrape = admin.ask("GET", "/api/v1/status"), Scrape.parse(admin.metrics(), at_s=time.monotonic())
        ready = admin.ready()
    except ConnectError as error:
        if is_named:
            return [Check("admin", "failed", str(error))]
        said = f"nobody answers at {address}: give --admin to check versions, partitions, disk, damage and groups"
        return [Check("admin", "absent", said)]
    except HeadwaterError as error:
        return [Check("admin", "failed" if is_named else "absent", str(error))]
    return [
        _versions(address, str(status.get("version")), version),
        _ready(*ready),
        _partitions(status),
        _disk(status),
        _damage(status),
        _groups(status),
        _descriptors(scrape),
    ]


def of_settings(address: str, config: Path | None, settings: Sequence[str]) -> Check:
    """Whether the broker at this admin address runs with what the file and the pairs of --set say now."""
    wanted = _flat(json.loads(checked_settings(config, settings)))
    try:
        running = _flat(Admin(address, timeout_s=_ANSWER_S).ask("GET", "/api/v1/settings"))
    except NotFoundError:
        return Check("settings", "absent", f"the broker at {address} is of a version that does not say its settings")
    source = config or "--set"
    differ = [key for key in sorted(wanted.keys() | running.keys()) if wanted.get(key) != running.get(key)]
    if not differ:
        return Check("settings", "ok", f"the broker runs with those of {source}")
    said = "; ".join(
        f"{key} is {_word(wanted.get(key))} in {source} and {_word(running.get(key))} in the broker"
        for key in differ[:_DIFFER_NAMED]
    )
    more = f"; {len(differ) - _DIFFER_NAMED} more differ" if len(differ) > _DIFFER_NAMED else ""
    return Check("settings", "warn", f"{said}{more}: it takes changes at its next start")


def _flat(settings: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Values by path, such as `log.disk.budget`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{section}{name}.") if isinstance(value, dict) else {f"{section}{name}": value}
    return found


def _word(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _versions(address: str, broker: str, command: str) -> Check:
    if broker == command:
        return Check("admin", "ok", f"headwater {broker} at {address}")
    said = f"the broker at {address} is headwater {broker}, this command {command}: use the same version for both"
    return Check("admin", "warn", said)


def _ready(is_ready: bool, words: str) -> Check:
    if is_ready:
        return Check("ready", "ok", "it accepts clients and records")
    for key, said in (
        ("draining", "an operator drains it (PUT /api/v1/drain): DELETE /api/v1/drain lets it serve again"),
        ("standby", "another node of its cluster leads and serves the clients"),
    ):
        if f'"{key}":true' in words:
            return Check("ready", "warn", said)
    return Check("ready", "failed", f"it is not ready: {words}")


def _partitions(status: Mapping[str, Any]) -> Check:
    parts = status["partitions"]
    stopped = [one for one in parts if one["state"] in ("full", "stopped")]
    if stopped:
        said = "; ".join(f"{one['name']} is {one['state']}{_why(one)}" for one in stopped)
        return Check("partitions", "failed", f"{said}: publishes there are refused")
    return Check("partitions", "ok", f"{len(parts)} accept records")


def _why(partition: Mapping[str, Any]) -> str:
    reason = partition.get("reason")
    return f" ({reason})" if reason else ""


def _disk(status: Mapping[str, Any]) -> Check:
    disk = status["disk"]
    used, budget = disk["used_bytes"], disk["budget_bytes"]
    of_budget = f" of {budget / 2**30:.1f} GiB ({used / budget:.0%})" if budget else ""
    said = f"the log has {used / 2**30:.1f} GiB{of_budget}, level {disk['level']}"
    if disk["level"] == "normal":
        return Check("disk", "ok", said)
    advice = "make room, or lower retention (docs/howto/size-the-disk.md)"
    return Check("disk", "warn" if disk["level"] == "warned" else "failed", f"{said}: {advice}")


def _damage(status: Mapping[str, Any]) -> Check:
    found = [one["name"] for one in status["partitions"] if one.get("damaged_bytes")]
    if not found:
        return Check("damage", "ok", "none was found in the log")
    said = f"{', '.join(found)}: the disk returns other bytes than were written"
    return Check("damage", "failed", f"{said}; headwater log verify names the offsets")


def _groups(status: Mapping[str, Any]) -> Check:
    behind = [
        (one["high_watermark"] - group["next"], group["group"], one["name"])
        for one in status["partitions"]
        for group in one.get("held_by", ())
        if one["high_watermark"] > group["next"]
    ]
    if not behind:
        return Check("groups", "ok", "no consumer group holds records")
    worst = sorted(behind, reverse=True)[:_BEHIND_NAMED]
    said = "; ".join(f"{group} is {records} records behind in {name}" for records, group, name in worst)
    return Check("groups", "ok", f"{said}: retention keeps them up to retention.hard_bytes")


def _descriptors(scrape: Scrape) -> Check:
    used, limit = scrape.value("process_open_fds"), scrape.value("process_max_fds")
    if used is None or limit is None:
        return Check("descriptors", "absent", "this broker does not say how many it uses")
    said = f"{used:.0f} of {limit:.0f} are in use"
    if used <= _FDS_SHARE * limit:
        return Check("descriptors", "ok", said)
    return Check("descriptors", "warn", f"{said}: raise the limit of open files of the service")


def clock() -> Check:
    """Whether something keeps the clock of this machine right, by the word of its kernel."""
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        return Check("clock", "absent", "this system does not say whether its clock is kept right")
    if state == _UNSYNCHRONISED:
        advice = "run systemd-timesyncd or chrony: records carry the time, and retention by age follows it"
        return Check("clock", "warn", f"nothing keeps the clock of this machine right: {advice}")
    return Check("clock", "ok", "the clock of this machine is synchronised")


def certificates(mqtt: str, server: str, admin: str) -> list[Check]:
    """The certificates that the broker shows at addresses with TLS, and how long they are valid."""
    # Its library for certificates is loaded for such addresses only.
    from broker_edge.security.doors import doors_of_addresses
    from broker_edge.security.handshake import handshakes
    from broker_edge.tls import TlsReferences

    tls = TlsReferences.from_environment()
    return [
        Check("certificate", _STATES[one.state], f"{one.where}: {one.found}{one.remedy and f': {one.remedy}'}")
        for door in doors_of_addresses(mqtt, server, admin)
        if door.has_tls
        for one in handshakes(door, tls, timeout_s=_ANSWER_S)
        if one.name == "certificate"
    ]


def of_folder(folder: Path) -> list[Check]:
    """The disk of a data folder: its file system, its free space, and how long a sync takes."""
    if not folder.is_dir():
        return [Check("data folder", "failed", f"{folder} is no folder: give the data_dir of the broker")]
    return [_file_system(folder), _free(folder), _syncs(folder)]


def _file_system(folder: Path) -> Check:
    kind, place = file_system_of(folder, Path("/proc/self/mounts").read_text())
    said = f"{kind} at {place}"
    if kind in _NETWORK:
        return Check("file system", "failed", f"{said}: a log needs a disk of this machine, ext4 or xfs")
    if kind in _COPIES:
        return Check("file system", "warn", f"{said}: a full disk stops a partition there; ext4 or xfs do not")
    return Check("file system", "ok", said)


def file_system_of(folder: Path, mounts: str) -> tuple[str, str]:
    """Kind and mount point, by the longest mount point above the folder; of several at one place the last counts
    (proc(5))."""
    real, best = folder.resolve(), ("unknown", "/")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = fields[1].encode().decode("unicode_escape")
        if real.is_relative_to(place) and len(place) >= len(best[1]):
            best = (fields[2], place)
    return best


def _free(folder: Path) -> Check:
    disk = os.statvfs(folder)
    free, whole = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    said = f"{free / 2**30:.1f} of {whole / 2**30:.1f} GiB are free"
    return Check("free space", "ok" if free >= _FREE_SHARE * whole else "warn", said)


def _syncs(folder: Path) -> Check:
    try:
        times = sorted(sync_times(folder))
    except OSError as error:
        return Check("sync", "failed", f"cannot write in {folder} ({error.strerror})")
    p50, p99 = statistics.median(times), times[int(len(times) * 0.99) - 1]
    said = f"{len(times)} syncs of 4 KiB: half within {p50 * 1e3:.1f} ms, 99 of 100 within {p99 * 1e3:.1f} ms"
    if p99 <= _SYNC_SLOW_S:
        return Check("sync", "ok", said)
    return Check("sync", "warn", f"{said}: each acknowledgement waits for one; is the disk busy, or a slow card?")


def sync_times(folder: Path, count: int = _SYNCS) -> list[float]:
    """Seconds of single syncs after writes of 4 KiB, in a file that is removed again."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(count):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return times
