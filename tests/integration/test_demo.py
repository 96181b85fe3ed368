"""`headwater demo` as a user starts it: the account of a short run, Ctrl-C, the printed commands, the requirements."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from deltalake import DeltaTable, QueryBuilder
from support.console_http import ask
from support.demo_process import COMMAND_S, DEMO, END_S, START_S, RunningDemo, environment
from support.fleet_console import FleetConsole
from support.programs import headwater
from support.secured import files_with

from broker_edge import RefusedError, Row
from broker_edge.access import BrokerAccess
from pipelines.demo.broker import open_broker
from pipelines.demo.layout import Layout
from pipelines.demo.screen import Addresses, next_steps


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "kept"


@pytest.fixture(scope="module")
def first_run(kept: Path) -> subprocess.CompletedProcess[str]:
    """A short run into a folder that is kept, with users and TLS."""
    return subprocess.run(
        [*DEMO, "--for", "8", "--headless", "--json", "--devices", "30", "--data", str(kept), "--secure"],
        capture_output=True,
        text=True,
        timeout=START_S + END_S,
        env=environment(),
        check=False,
    )


@pytest.fixture
def running(first_run: subprocess.CompletedProcess[str], kept: Path) -> Iterator[RunningDemo]:
    """A second start on the same folder, without a time limit, and with a second broker."""
    demo = RunningDemo("--headless", "--json", "--devices", "30", "--brokers", "2", "--data", str(kept))
    try:
        yield demo
    finally:
        demo.kill()


@pytest.mark.timeout(1200)
def test_a_short_run_loses_and_doubles_nothing_and_its_action_succeeds(
    first_run: subprocess.CompletedProcess[str], kept: Path
) -> None:
    assert first_run.returncode == 0, first_run.stderr[-4000:]
    (printed,) = first_run.stdout.splitlines()
    account = json.loads(printed)
    assert account["acked"] == account["published"] > 100
    assert account["bronze_rows"] == account["acked"]
    assert (account["missing"], account["duplicates"]) == (0, 0)
    assert (account["actions"]["targets"], account["actions"]["succeeded"]) == (20, 20)
    assert 0 < account["p50_ms"] <= account["p99_ms"]
    # It ran with users and TLS: each device has a password, and no other file has it.
    secrets = kept / "secured" / "secrets"
    passwords = [path.read_text().strip() for path in secrets.glob("device-*.password")]
    assert len(passwords) == 30
    assert {path.parent for path in files_with(passwords, kept)} == {secrets}
    bronze = QueryBuilder().register("bronze", DeltaTable(kept / "tables" / "bronze_telemetry"))
    counted = bronze.execute("select count(*) as n from bronze where client_id like 'device-%'").read_all()
    assert counted["n"].to_pylist() == [account["bronze_rows"]]


@pytest.mark.timeout(1500)
def test_ctrl_c_ends_with_the_same_account_and_the_printed_commands_work(running: RunningDemo, kept: Path) -> None:
    """Two brokers, of which one restarts in the middle."""
    running.wait_for("its own action_id", START_S)
    running.wait_for("write_deltalake", COMMAND_S)
    commands = [line.strip() for line in running.said if line.startswith("  ") and not line.startswith("  #")]
    assert len(commands) == 6
    (console,) = (words for words in map(shlex.split, commands) if words[1] == "console")
    commands.remove(shlex.join(console))
    row = DeltaTable(kept / "tables" / "bronze_telemetry").to_pyarrow_table(columns=["log_id", "partition", "offset"])
    (first,) = row.slice(0, 1).to_pylist()
    with FleetConsole(kept, {}, console[2:]) as fleet:
        where = urlencode({"at": f"{first['partition']}:{first['offset']}", "log_id": first["log_id"]})
        found = ask(fleet, "GET", f"/api/v1/trace?{where}").document
    assert len(found["tables"]["bronze"]["rows"]) == 1, found
    for command in commands:
        words = shlex.split(command)
        if words[0] == "headwater":
            words = [sys.executable, "-c", "import sys; from headwater_cli import main; sys.exit(main())", *words[1:]]
        done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=COMMAND_S, check=False)
        assert done.returncode == 0, (command, done.stderr)
        assert any(word in done.stdout for word in ("telemetry", "succeeded")) or "write_deltalake" in command, command
    running.wait_for("restarting broker-2: ", COMMAND_S)
    assert any("inserted the action" in line for line in running.said)
    running.signal_group(signal.SIGINT)
    code, printed = running.end(END_S)
    assert code == 0, "\n".join(running.said)
    account = json.loads(printed)
    # Only actions of this run count, whatever the folder holds: the operator's action and the two pasted ones.
    assert account["actions"]["count"] == 3
    assert account["actions"]["open"] == 0
    assert (account["missing"], account["duplicates"]) == (0, 0)
    assert account["bronze_rows"] - account["resent"] == account["acked"] == account["published"] > 0
    assert (account["brokers"], account["restarts"]) == (2, 1)
    targets = (
        DeltaTable(kept / "tables" / "action_targets").to_pyarrow_table(columns=["device_id", "log_id"]).to_pylist()
    )
    logs = DeltaTable(kept / "tables" / "bronze_telemetry").to_pyarrow_table(columns=["log_id"])["log_id"].to_pylist()
    assert {target["log_id"] for target in targets} == set(logs)
    assert len(set(logs)) == 2
    fewer = headwater("demo", "--for", "1", "--headless", "--data", str(kept), environment=environment())
    assert fewer.code == 5, fewer.err
    assert f"{kept} has records of more than 1 brokers: name another folder with --data" in fewer.err


def test_the_broker_of_a_secured_demo_is_for_its_users_and_the_printed_commands_are_theirs(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "with a space")
    row = Row(topic="devices/probe/telemetry", value=b"{}")
    with open_broker(layout, devices=["device-0001"], secure=True) as broker:
        (access,) = broker.settings.fleet()
        assert (access.server, access.credentials.user) == (broker.operator.server, "pipeline")
        with broker.operator.client() as client:
            client.produce([row])
        with access.client() as client, pytest.raises(RefusedError):
            client.produce([row])
        stranger = BrokerAccess(access.server, tls=access.tls)
        with stranger.client() as client, pytest.raises(RefusedError):
            client.version()
        steps = next_steps(Addresses(str(broker.mqtt), access.server, broker.admin, broker.options), layout)
        (words,) = [shlex.split(step)[1:] for step in steps if " tail " in step]
        words[1], words[words.index("-n") + 1] = row.topic, "1"
        done = headwater(*words)
    assert (done.code, row.topic in done.out) == (0, True), done.err


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [("JAVA_HOME", "/nowhere", "JAVA_HOME is /nowhere"), ("HEADWATER_JARS", "/nowhere", "headwater setup spark")],
)
def test_what_is_missing_is_one_sentence_before_anything_starts(name: str, value: str, named: str) -> None:
    ended = headwater("demo", "--for", "1", "--headless", environment={**environment(), name: value})
    assert (ended.code, ended.out) == (1, "")
    (said,) = ended.err.splitlines()
    assert named in said
