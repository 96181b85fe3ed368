"""Jobs on brokers with users and TLS: they read each broker as its own user, and leave no secret anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from support.programs import StartBroker, clean_environment, headwaterd
from support.secured import files_with, make_users, processes_with, start_secured
from support.tls_files import Files, new_authority, sign

from broker_edge import Client, Credentials, Row
from broker_edge.torture.process import BrokerProcess
from broker_edge.torture.waiting import wait_until
from pipelines.spark.jars import default_folder

ROOT = Path(__file__).resolve().parents[2]
JOB_S = 480.0
LOOK_S = 0.05
COMMAND = (sys.executable, "-c", "import sys; from headwater_cli import main; sys.exit(main())")


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    headwaterd()
    with ExitStack() as stack:

        def start(name: str = "broker", settings: dict[str, str] | None = None) -> BrokerProcess:
            process = BrokerProcess(data_dir=tmp_path / name, settings=settings, log_file=tmp_path / f"{name}.txt")
            stack.enter_context(process)
            process.start()
            return process

        yield start


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return sign(new_authority(tmp_path_factory.mktemp("tls"), "fleet-ca"), "broker")


def server_of(broker: BrokerProcess) -> str:
    return f"grpc+tls://localhost:{broker.flight[1]}"


@pytest.mark.timeout(900)
def test_jobs_read_each_broker_as_its_own_user_and_leave_no_secret(
    start_broker: StartBroker, tls: Files, tmp_path: Path
) -> None:
    passwords: list[str] = []
    entries = []
    for name in ("north", "south"):
        folder = tmp_path / "secrets" / name
        passwords += make_users(folder, "pipeline", "device-1").values()
        broker = start_secured(start_broker, folder, tls, name=f"broker-{name}")
        credentials = Credentials(user="pipeline", password=f"file:{folder}/pipeline.password")
        with Client(server_of(broker), credentials=credentials, tls_ca=tls.ca) as client:
            client.produce([Row(topic="devices/device-1/actions", value=b"{}", idempotency_key=name)])
        entries.append(
            {
                "server": server_of(broker),
                "name": name,
                "user": "pipeline",
                "password": f"file:{folder}/pipeline.password",
            }
        )
    work = tmp_path / "work"
    work.mkdir()
    settings = {
        "brokers": entries,
        "access": {"tls": {"ca": f"file:{tls.ca}"}},
        "telemetry": {
            "subscribe": ["devices/+/actions"],
            "table_path": str(work / "bronze"),
            "checkpoint": str(work / "checkpoints/telemetry"),
        },
        "actions": {"root": str(work / "tables")},
        "silver": {"root": str(work / "tables"), "schemas": str(ROOT / "conf/schemas"), "rules": None},
    }
    (work / "pipelines.yaml").write_text(yaml.safe_dump(settings))
    events = work / "events"
    events.mkdir()
    properties = f"-Dspark.eventLog.enabled=true -Dspark.eventLog.dir={events.as_uri()} -Dspark.eventLog.compress=false"
    environment = clean_environment(
        {
            "HEADWATER_JARS": str(default_folder()),
            "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {properties}".strip(),
        }
    )
    arguments = ["jobs", "run", "telemetry", "gaps", "--available-now", "--config", "pipelines.yaml"]
    seen: set[str] = set()
    with (work / "out.txt").open("wb") as out:
        process = subprocess.Popen([*COMMAND, *arguments], cwd=work, env=environment, stdout=out, stderr=out)
        try:
            while process.poll() is None:
                seen |= processes_with(passwords)
                try:
                    process.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
    assert process.returncode == 0, (work / "out.txt").read_text()[-4000:]
    rows = DeltaTable(work / "bronze").to_pyarrow_table()
    assert sorted(rows["topic"].to_pylist()) == ["devices/device-1/actions"] * 2
    assert len(set(rows["log_id"].to_pylist())) == 2
    assert seen == set()
    assert files_with(passwords, work) == set()
    # The search does find what is there: the event log was written, and so is a secret that somebody put into a file.
    assert files_with(["SparkListenerApplicationEnd"], events)
    assert files_with([next(iter(set(rows["log_id"].to_pylist())))], work / "checkpoints")
    with subprocess.Popen(["sh", "-c", "read -r _", passwords[0]], stdin=subprocess.PIPE) as shell:
        # The kernel shows the words a moment after the program has begun.
        wait_until(lambda: bool(processes_with(passwords)), seconds=60, what="the search to find a process")
        shell.communicate()
    (work / "leak").write_text(f"password={passwords[0]}")
    assert files_with(passwords, work) == {work / "leak"}
