"""`headwater actions` and `headwater devices` against real tables, a running engine and a real MQTT broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from support.flight_server import FlightServer
from support.mosquitto import Mosquitto

from broker_edge.cli import main
from pipelines import tables
from pipelines.action_rows import arrow_of, now_us
from pipelines.action_store import DeltalakeStore
from pipelines.actions import ActionJob, Pace
from pipelines.fleet_desk import FleetDesk
from sinks.devices import DevicePublisher

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = str(tmp_path / "tables")
    desk = FleetDesk(root, create=True)
    assert desk.describe_devices({"d1": {"site": "roof"}, "d2": {"site": "roof"}}) == 2
    assert desk.describe_devices({"d1": {}}) == 0
    return root


@pytest.fixture
def engine(root: str, flight_server: FlightServer) -> Iterator[ActionJob]:
    publisher = DevicePublisher(flight_server.location)
    job = ActionJob(DeltalakeStore(root), publisher, pace=Pace(tick_s=0.2, poll_s=0.05))
    thread = threading.Thread(target=job.run)
    thread.start()
    yield job
    job.stop()
    thread.join(30)
    publisher.close()


def report(root: str, action_id: str, device_id: str, offset: int, **fields: Any) -> None:
    row = {
        "event_id": f"log/5/{offset}/1",
        "source": "status",
        "action_id": action_id,
        "device_id": device_id,
        "attempt": 1,
        "state": "SUCCEEDED",
        "log_id": "log",
        "partition": 5,
        "offset": offset,
        "epoch": 1,
        "at": now_us(),
        "recorded_at": now_us(),
        **fields,
    }
    write_deltalake(tables.uri_of(root, "action_events"), arrow_of([row], tables.ACTION_EVENTS), mode="append")


def test_action_is_inserted_watched_and_shown(run: Run, root: str, engine: ActionJob) -> None:
    for offset, device_id in enumerate(("d1", "d2")):
        report(root, "a1", device_id, offset)  # Devices that answer before they are asked: the reports wait.
    code, out, err = run(
        *("actions", "create", "echo", "--root", root, "--label", "site=roof", "--id", "a1", "--wait", "30")
    )
    assert (code, out) == (0, "of 2 devices 2 succeeded\n"), err
    code, out, _ = run("actions", "show", "a1", "--root", root, "--json")
    shown = json.loads(out)
    assert [(row["device_id"], row["state"]) for row in shown["devices"]] == [("d1", "SUCCEEDED"), ("d2", "SUCCEEDED")]
    code, out, _ = run("actions", "list", "--root", root)
    assert out.split("\t")[:4] == ["a1", "ENDED", "2", "0"]


def test_waiting_for_an_action_that_selects_nobody_fails_with_its_sentence(
    run: Run, root: str, engine: ActionJob
) -> None:
    code, out, _ = run("actions", "create", "echo", "--root", root, "--label", "site=moon", "--wait", "30")
    assert code == 1
    assert out.startswith("selects nobody: no device of tenant default matches labels site=moon")


def test_cancel_of_a_running_action_ends_it(run: Run, root: str, engine: ActionJob) -> None:
    assert run("actions", "create", "echo", "--root", root, "--device", "d1", "--id", "a1")[0] == 0
    assert run("actions", "cancel", "a1", "--root", root, "--reason", "wrong")[0] == 0
    report(root, "a1", "d1", 9, state="CANCELLED")
    desk = FleetDesk(root)
    for _ in range(300):
        row = desk.action("a1")
        if row is not None and row["phase"] == "ENDED":
            break
        threading.Event().wait(0.05)
    assert desk.targets("a1")[0]["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("create", "echo"), 5, "the action was not inserted: no selector"),
        (("create", "echo", "--percentage", "0"), 5, "percentage must be above 0"),
        (("create", "echo", "--params", "[]"), 2, "--params must be a JSON object"),
        (("create", "echo", "--label", "roof"), 2, "--label roof: write KEY=VALUE"),
        (("show", "nothing"), 4, "no engine has seen an action nothing"),
        (("create", "echo", "--device", "d1", "--wait", "0.4"), 124, "is the action engine running?"),
    ],
)
def test_wrong_use_is_one_sentence(run: Run, root: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    got, _, err = run("actions", *arguments, "--root", root)
    assert got == code
    assert said in err


def test_missing_tables_are_one_sentence(run: Run, tmp_path: Path) -> None:
    code, _, err = run("actions", "list", "--root", str(tmp_path))
    assert code == 5
    assert f"there is no table action_state under {tmp_path}; name the folder of the tables with --root" in err


def test_simulated_devices_publish_the_series_and_count(run: Run, tmp_path: Path) -> None:
    series = tmp_path / "series.jsonl"
    series.write_text('{"temperature_c": 21.5}\n{"temperature_c": 21.6}\n')
    with Mosquitto(tmp_path) as broker:
        address = f"127.0.0.1:{broker.port}"
        code, out, err = run(
            *("devices", "simulate", "3", "--mqtt", address, "--interval", "0.05", "--for", "1", "--json"),
            *("--series", str(series), "--acked", str(tmp_path / "acked.csv")),
        )
    assert code == 0, err
    counts = json.loads(out)
    assert counts["published"] == counts["acked"] == len((tmp_path / "acked.csv").read_text().splitlines()) > 3
    assert counts["unacked"] == 0
