"""What `headwater doctor` makes of a broker's words and of a disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_edge.errors import MissingExtraError
from headwater_cli import _checks
from headwater_cli._checks import Check, certificates, checked, clock, file_system_of, of_broker, of_folder
from headwater_cli.doctor import changes

MOUNTS = r"""/dev/root / ext4 rw 0 0
overlay /data overlay rw 0 0
/dev/sdb /data ext4 rw 0 0
server:/share /data/far\040away nfs4 rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/var/lib", ("ext4", "/")),
        ("/data/log", ("ext4", "/data")),
        ("/data/far away/log", ("nfs4", "/data/far away")),
        ("/database", ("ext4", "/")),
    ],
)
def test_a_folder_lies_on_the_file_system_of_the_longest_mount_point(folder: str, found: tuple[str, str]) -> None:
    assert file_system_of(Path(folder), MOUNTS) == found


@pytest.mark.parametrize(("kind", "state"), [("ext4", "ok"), ("xfs", "ok"), ("overlay", "warn"), ("nfs", "failed")])
def test_a_disk_of_another_machine_is_no_place_for_a_log(
    kind: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_checks, "file_system_of", lambda folder, mounts: (kind, "/data"))
    found = {check.name: check.state for check in of_folder(tmp_path)}
    assert found["file system"] == state
    assert list(tmp_path.iterdir()) == [], "nothing is left"


@pytest.mark.parametrize(("seconds", "state"), [(0.001, "ok"), (0.2, "warn")])
def test_slow_syncs_are_a_warning(seconds: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_checks, "sync_times", lambda folder: [seconds] * 100)
    assert next(check for check in of_folder(tmp_path) if check.name == "sync").state == state


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    (check,) = of_folder(tmp_path / "none")
    assert (check.state, f"{tmp_path / 'none'} is no folder" in check.detail) == ("failed", True)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The status of a broker, for tests to change."""
    partition = {"name": "telemetry-0", "state": "running", "high_watermark": 100, "damaged_bytes": 0, "held_by": []}
    status: dict[str, Any] = {
        "version": "1.0.0",
        "partitions": [partition],
        "disk": {"used_bytes": 1 << 30, "budget_bytes": 4 << 30, "level": "normal"},
        "metrics": "process_open_fds 10\nprocess_max_fds 100\n",
        "ready": (True, "ready"),
    }
    monkeypatch.setattr("broker_edge.admin.Admin.ask", lambda admin, method, path: status)
    monkeypatch.setattr("broker_edge.admin.Admin.metrics", lambda admin: status["metrics"])
    monkeypatch.setattr("broker_edge.admin.Admin.ready", lambda admin: status["ready"])
    return status


def checks() -> dict[str, Check]:
    return {check.name: check for check in of_broker("http://a:1", "1.0.0", is_named=True)}


def test_a_healthy_broker_passes(said: dict[str, Any]) -> None:
    assert {check.state for check in checks().values()} == {"ok"}


def test_each_trouble_of_a_broker_is_a_check_with_what_to_do(said: dict[str, Any]) -> None:
    said["version"] = "0.9.0"
    said["partitions"][0] |= {
        "state": "stopped",
        "reason": "the disk failed",
        "damaged_bytes": 5,
        "held_by": [{"group": "bronze", "next": 40}],
    }
    said["disk"] |= {"level": "acting"}
    said["metrics"] = "process_open_fds 90\nprocess_max_fds 100\n"
    said["ready"] = False, '{"partitions":[{"partition":"telemetry-0"}],"ready":false}'
    found = checks()
    for name, state, text in (
        ("admin", "warn", "use the same version"),
        ("ready", "failed", '"partition":"telemetry-0"'),
        ("partitions", "failed", "telemetry-0 is stopped (the disk failed)"),
        ("disk", "failed", "make room"),
        ("damage", "failed", "headwater log verify"),
        ("groups", "ok", "bronze is 60 records behind in telemetry-0"),
        ("descriptors", "warn", "90 of 100 are in use"),
    ):
        assert (found[name].state, text in found[name].detail) == (state, True), found[name]


def test_a_broker_of_an_older_version_says_less(said: dict[str, Any]) -> None:
    said["metrics"] = ""
    said["disk"] |= {"level": "warned"}
    found = checks()
    assert (found["descriptors"].state, found["disk"].state) == ("absent", "warn")


@pytest.mark.parametrize(
    ("words", "says"),
    [('{"draining":true,"ready":false}', "DELETE /api/v1/drain"), ('{"ready":false,"standby":true}', "another node")],
)
def test_a_broker_that_is_meant_to_serve_nobody_is_a_warning(said: dict[str, Any], words: str, says: str) -> None:
    said["ready"] = False, words
    assert (checks()["ready"].state, says in checks()["ready"].detail) == ("warn", True)


@pytest.mark.parametrize(("answer", "state"), [(0, "ok"), (1, "ok"), (5, "warn"), (-1, "absent")])
def test_a_clock_that_nothing_keeps_right_is_a_warning(
    answer: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(adjtimex=lambda buffer: answer))
    assert clock().state == state


def test_the_kernel_says_something_of_its_clock() -> None:
    assert clock().state in ("ok", "warn")


def test_what_lacks_an_extra_is_absent_and_no_failure() -> None:
    def look() -> str:
        raise MissingExtraError("the Flight client needs pyarrow")

    assert checked("flight", look) == Check("flight", "absent", "the Flight client needs pyarrow")


def test_addresses_without_tls_have_no_certificates() -> None:
    assert certificates("127.0.0.1:1", "grpc://127.0.0.1:1", "http://127.0.0.1:1") == []


def test_checks_whose_state_changed_are_shown_again() -> None:
    before = [Check("mqtt", "ok", "a"), Check("certificate", "ok", "b"), Check("certificate", "ok", "c")]
    assert changes(before, [Check("mqtt", "ok", "other words"), *before[1:]]) == []
    now = [Check("mqtt", "failed", "a"), Check("certificate", "ok", "b"), Check("certificate", "warn", "c")]
    assert changes(before, now) == now
    assert changes(before[:1], before) == before[1:]
