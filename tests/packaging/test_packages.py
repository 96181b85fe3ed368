"""The .deb and the .rpm of the broker, installed, upgraded, removed and purged in a copy of this system."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.overlay import Machine, environment, machine
from support.programs import headwaterd, program, run

from supply.packages import PARTS, PackageError, build, inspect

CONF = "/etc/headwater/broker.yaml"
DATA = "/var/lib/headwater"
UNIT = "/usr/lib/systemd/system/headwaterd.service"
PRIVATE = "headwater:headwater 700"
EPOCH = "1795000000"
POLICY = "/usr/sbin/policy-rc.d"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packages of this version by their format, and a later `.deb` and `.rpm` as `deb+` and `rpm+`."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", EPOCH)
        now = build(Path(headwaterd()), folder)
        later = build(Path(headwaterd()), folder, "9.9.9")
    return {path.suffix[1:]: path for path in now} | {f"{path.suffix[1:]}+": path for path in later}


@pytest.fixture
def box(packages: dict[str, Path]) -> Iterator[Machine]:
    program("apt-get", "apt")
    with machine() as box:
        for name, path in packages.items():
            new = f"later.{name[:-1]}" if name.endswith("+") else f"headwaterd.{name}"
            (box.lent / new).write_bytes(path.read_bytes())
        # A machine of an operator lets services start, whatever this one says.
        box.shell(f"rm -f {POLICY}")
        yield box


def apt(box: Machine, *words: str) -> str:
    return box.do("apt-get", "-y", "-q", "-o", "Dpkg::Options::=--force-confdef", *words)


def install(box: Machine, package: str = "headwaterd.deb") -> str:
    return apt(box, "install", f"/run/lent/{package}")


def with_systemd(box: Machine) -> None:
    """A system that looks as if systemd ran. Its `systemctl` writes down what it is told, and carries out what needs no
    systemd: enabling and disabling.
    """
    (box.lent / "systemctl").write_text(
        '#!/bin/sh\necho "$@" >>/run/lent/told\ncase "$*" in\n*enable*|*disable*|*preset*|*is-enabled*) '
        'SYSTEMD_OFFLINE=1 exec /opt/real/systemctl $(echo "$@" | sed s/--now//) ;;\nesac\n'
    )
    box.shell(
        "mkdir -p /run/systemd/system /opt/real && mv /usr/bin/systemctl /opt/real/ && "
        "install /run/lent/systemctl /usr/bin/systemctl"
    )


def told(box: Machine) -> list[str]:
    """What changed the state of the unit since the last call."""
    path = box.lent / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    verbs = ("start", "stop", "restart", "try-restart", "disable")
    return [word for line in lines for word in line.split() if word in verbs]


def exec_start(box: Machine) -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.+)$", box.do("cat", UNIT), re.MULTILINE)
    return shlex.split(line)


def test_from_apt_install_to_the_first_acknowledged_message(
    box: Machine, record_property: Callable[[str, object], None]
) -> None:
    begin = time.monotonic()
    install(box)
    assert box.mode("/etc/headwater") == PRIVATE
    assert box.mode(CONF) == "headwater:headwater 600"
    assert box.mode(DATA) == PRIVATE
    assert box.mode("/usr/bin/headwaterd") == "root:root 755"
    assert box.do("getent", "passwd", "headwater").split(":")[5:] == [DATA, "/usr/sbin/nologin\n"]
    assert "the settings are valid" in box.run("headwaterd", "--check", "--config", CONF, user="headwater").out
    with box.listen() as manager:
        command = box.command(*exec_start(box), user="headwater")
        there = environment({"NOTIFY_SOCKET": "/run/lent/notify"})
        broker = subprocess.Popen(command, env=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert manager.recv(1_000) == b"READY=1"
            program("mosquitto_pub", "mosquitto-clients")
            # At QoS 1 it ends when the broker has acknowledged the message.
            sent = box.run("mosquitto_pub", "-q", "1", "-t", "a", "-m", "1")
            assert sent.code == 0, sent.err
            record_property("seconds", time.monotonic() - begin)
            assert box.run("headwaterd", "ready", "--config", CONF, user="headwater").out == "ready\n"
            box.do("pkill", "-x", "headwaterd")
            _, err = broker.communicate(timeout=60)
            assert broker.returncode == 0, err
            assert "WARN" not in err
        finally:
            broker.kill()
    assert box.mode(DATA) == PRIVATE


def test_an_upgrade_keeps_settings_a_removal_keeps_data_and_a_purge_deletes_them(box: Machine) -> None:
    install(box)
    box.shell(f"echo '# mine' >>{CONF}; chmod 640 {CONF}; echo x >{DATA}/record; echo x >/etc/headwater/users")
    install(box, "later.deb")
    assert box.do("dpkg-query", "--show", "--showformat=${Version}", "headwaterd") == "9.9.9-1"
    assert box.do("tail", "-n", "1", CONF) == "# mine\n"
    assert box.mode(CONF) == "headwater:headwater 640", "the administrator's mode stays"
    apt(box, "remove", "headwaterd")
    assert box.mode("/usr/bin/headwaterd") == "none"
    assert box.mode(UNIT) == "none"
    assert box.mode(f"{DATA}/record") != "none"
    assert box.do("tail", "-n", "1", CONF) == "# mine\n"
    apt(box, "purge", "headwaterd")
    assert (box.mode(DATA), box.mode(CONF)) == ("none", "none")
    assert box.mode("/etc/headwater/users") != "none", "a file that people made is theirs"


def test_the_service_is_enabled_started_restarted_and_stopped(box: Machine) -> None:
    with_systemd(box)
    install(box)
    assert told(box) == ["start"]
    assert "headwaterd.service" in box.do("ls", "/etc/systemd/system/multi-user.target.wants")
    install(box, "later.deb")
    assert told(box) == ["restart"]
    apt(box, "remove", "headwaterd")
    assert told(box) == ["stop"]
    apt(box, "purge", "headwaterd")
    assert "headwaterd" not in box.shell("ls -R /etc/systemd/system")


def test_a_policy_that_forbids_services_is_respected(box: Machine) -> None:
    with_systemd(box)
    box.shell(f"printf '#!/bin/sh\\nexit 101\\n' >{POLICY}; chmod 755 {POLICY}")
    install(box)
    assert told(box) == []


def test_a_service_that_the_administrator_disabled_stays_disabled(box: Machine) -> None:
    install(box)
    box.shell("rm /etc/systemd/system/multi-user.target.wants/headwaterd.service")
    install(box, "later.deb")
    assert "headwaterd" not in box.shell("ls /etc/systemd/system/multi-user.target.wants 2>/dev/null || true")


def test_without_sysusers_adduser_makes_the_user(box: Machine) -> None:
    box.shell("rm -f /usr/bin/systemd-sysusers /bin/systemd-sysusers")
    install(box)
    assert box.mode(CONF) == "headwater:headwater 600"
    assert box.mode(DATA) == PRIVATE
    assert box.do("getent", "passwd", "headwater").split(":")[5:] == [DATA, "/usr/sbin/nologin\n"]


def test_an_rpm_installs_upgrades_and_goes_with_the_settings_kept(box: Machine) -> None:
    program("rpm", "rpm")
    with_systemd(box)
    # This system has what the package asks for, but not from packages of rpm.
    rpm = ("rpm", "--nodeps", "--nosignature")
    box.do(*rpm, "--install", "/run/lent/headwaterd.rpm")
    assert box.mode("/etc/headwater") == PRIVATE
    assert box.mode(CONF) == "headwater:headwater 600"
    assert box.mode(DATA) == PRIVATE
    assert told(box) == [], "the presets of the system decide whether a service starts"
    box.shell(f"echo '# mine' >>{CONF}; echo x >{DATA}/record")
    box.do(*rpm, "--upgrade", "/run/lent/later.rpm")
    assert told(box) == ["try-restart"]
    assert box.do("tail", "-n", "1", CONF) == "# mine\n"
    box.do(*rpm, "--erase", "headwaterd")
    assert told(box) == ["disable"]
    assert box.mode("/usr/bin/headwaterd") == "none"
    assert box.mode(f"{DATA}/record") != "none"
    assert box.do("tail", "-n", "1", f"{CONF}.rpmsave") == "# mine\n"


def test_the_unit_in_the_package_is_understood_by_systemd_and_little_exposed(box: Machine) -> None:
    analyze = program("systemd-analyze", "systemd")
    install(box)
    done = box.run(analyze, "verify", UNIT)
    assert (done.code, done.err) == (0, "")
    # In tenths: 2.0 of 10, which systemd calls OK.
    done = box.run(analyze, "security", "--offline=yes", "--threshold=20", UNIT)
    assert done.code == 0, done.out[-500:]


def test_lintian_finds_nothing(packages: dict[str, Path]) -> None:
    done = run(program("lintian", "lintian"), "--allow-root", "--fail-on", "error,warning", str(packages["deb"]))
    assert (done.code, done.out) == (0, ""), done.out


def test_the_rpm_names_what_it_needs_and_what_is_configuration(packages: dict[str, Path]) -> None:
    rpm = program("rpm", "rpm")
    glibc = inspect(Path(headwaterd())).glibc
    assert f"libc.so.6(GLIBC_{glibc})(64bit)" in run(rpm, "-qp", "--requires", str(packages["rpm"])).lines
    assert run(rpm, "-qp", "--configfiles", str(packages["rpm"])).lines == [CONF]
    listed = run(rpm, "-qlp", str(packages["rpm"])).lines
    assert {"/usr/bin/headwaterd", UNIT, "/usr/lib/sysusers.d/headwater.conf"} <= set(listed)


def test_the_same_binary_makes_the_same_bytes(
    packages: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    again = build(Path(headwaterd()), tmp_path)
    assert {path.name: path.read_bytes() for path in again} == {
        packages[form].name: packages[form].read_bytes() for form in ("deb", "rpm")
    }


def test_the_page_of_the_manual_names_every_option() -> None:
    page = (PARTS / "headwaterd.8").read_text().replace("\\-", "-")
    options = set(re.findall(r"^  (--[a-z-]+)", run(headwaterd(), "--help").out, re.MULTILINE))
    assert len(options) > 5
    assert {option for option in options if option not in page} == set()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "is missing: run `make release`"),
        (b"#!/bin/sh\n" + bytes(20), "is no 64-bit program for Linux"),
        (
            b"\x7fELF\x02\x01" + bytes(12) + b"\x08\x00" + bytes(40),
            r"for a machine that has no package \(ELF machine 8\)",
        ),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\x3e\x00" + bytes(40), "is static"),
    ],
)
def test_a_file_that_is_no_broker_is_refused(data: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "headwaterd"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(PackageError, match=reason):
        build(path, tmp_path)


def test_a_time_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(PackageError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        build(Path(headwaterd()), tmp_path)


def test_the_architecture_is_the_one_of_the_binary(tmp_path: Path) -> None:
    path = tmp_path / "headwaterd"
    path.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\x00" + bytes(4) + b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.4\0")
    assert (inspect(path).architecture, inspect(path).glibc) == ("arm64", "2.34")
