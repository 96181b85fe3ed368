"""`headwater actions` and `headwater devices` against real tables, a running engine and a real MQTT broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from support.flight_server import FlightServer
from support.mosquitto import Mosquitto

from actions.fleet_desk import FleetDesk
from actions.job import ActionJob, Pace
from actions.store import DeltalakeStore
from broker_edge import Client, Row
from broker_edge.errors import DeadlineError
from broker_edge.torture.waiting import wait_until
from headwater_cli import main
from headwater_cli._watch import bar
from headwater_cli.actions import _wait
from sinks import tables
from sinks.devices import DevicePublisher
from sinks.rows import arrow_of, now_us

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
    thread.join(120)
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
        report(root, "a1", device_id, offset)  # Devices that answer before they are asked; their reports wait.
    code, out, err = run(
        *("actions", "create", "echo", "--root", root, "--label", "site=roof", "--id", "a1", "--wait", "30")
    )
    assert (code, out) == (0, "of 2 devices 2 succeeded\n"), err
    code, out, _ = run("actions", "show", "a1", "--root", root, "--json")
    shown = json.loads(out)
    assert [(row["device_id"], row["state"]) for row in shown["devices"]] == [("d1", "SUCCEEDED"), ("d2", "SUCCEEDED")]
    code, out, _ = run("actions", "list", "--root", root)
    assert out.splitlines()[1].split("\t")[:4] == ["a1", "ENDED", "2", "0"]


def test_waiting_for_an_action_that_selects_nobody_fails_with_its_sentence(
    run: Run, root: str, engine: ActionJob
) -> None:
    code, out, _ = run("actions", "create", "echo", "--root", root, "--label", "site=moon", "--wait", "30")
    assert code == 1
    assert out.startswith("selects nobody: no device of tenant default matches labels site=moon")


def test_waiting_for_too_short_a_time_says_how_far_the_action_is(run: Run, root: str, engine: ActionJob) -> None:
    assert run("actions", "create", "echo", "--root", root, "--device", "d1", "--id", "a1")[0] == 0
    desk = FleetDesk(root)
    wait_until(lambda: (desk.action("a1") or {}).get("phase") == "RUNNING", seconds=60, what="the action to run")
    code, _, err = run("actions", "watch", "a1", "--root", root, "--timeout", "0.4")
    assert (code, "0 of 1 device" in err) == (124, True), err
    with pytest.raises(DeadlineError, match=r"within 0.4 s: .*`headwater actions show a1` says what each device"):
        _wait(desk, "a1", 0.4)


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


def until(root: str, action_id: str, phase: str) -> dict[str, Any]:
    """The row of the action, once it has that phase."""
    desk = FleetDesk(root)
    for _ in range(600):
        row = desk.action(action_id)
        if row is not None and row["phase"] == phase:
            return row
        threading.Event().wait(0.05)
    raise AssertionError(f"{action_id} did not become {phase}: {row}")


def test_plan_shows_who_is_selected_and_writes_nothing(run: Run, root: str) -> None:
    before = [DeltaTable(tables.uri_of(root, name)).version() for name in tables.TABLES]
    options = ("--device", "d1", "--device", "d2", "--device", "ghost", "--wave", "50%", "--wave", "100", "--id", "a1")
    code, out, _ = run("actions", "plan", "echo", "--root", root, *options, "--json")
    assert code == 0
    planned = {row["device_id"]: row for row in json.loads(out)["devices"]}
    assert sorted(row["wave"] for row in planned.values() if "skipped" not in row) == [0, 1]
    assert planned["ghost"]["skipped"] == "device ghost is not in the table devices"
    for chosen, told in [(("d1",), "1 device would get it"), (("d1", "d2"), "2 devices would get it")]:
        named = [option for name in chosen for option in ("--device", name)]
        assert f"{told}, 0 would be skipped" in run("actions", "plan", "echo", "--root", root, *named)[2]
    code, out, err = run("actions", "plan", "echo", "--root", root, "--label", "site=moon")
    assert (code, out) == (0, "")
    assert "selects nobody: no device of tenant default matches labels site=moon" in err
    code, _, err = run("actions", "plan", "fw", "--root", root, "--percentage", "100", "--artifact", "fw:2.0")
    assert code == 4
    assert "artifact fw 2.0 is not in the table artifacts" in err
    assert [DeltaTable(tables.uri_of(root, name)).version() for name in tables.TABLES] == before


def test_plan_says_which_devices_no_broker_reaches(
    run: Run, root: str, flight_server: FlightServer, tmp_path: Path
) -> None:
    here = flight_server.log.log_id
    rows = [
        {"device_id": "p1", "log": here},
        {"device_id": "p2", "log": "log-gone"},
        {"device_id": "p3", "log": "yard"},
    ]
    write_deltalake(tables.uri_of(root, "devices"), arrow_of(rows, tables.DEVICES), mode="append")
    plan = ("actions", "plan", "echo", "--root", root, "--device", "p1", "--device", "p2", "--device", "p3")
    code, out, err = run(*plan)
    assert (code, out.count("at once, if a broker serves")) == (0, 3), err
    brokers = [{"server": flight_server.location, "name": "roof"}, {"server": "grpc://127.0.0.1:1", "name": "yard"}]
    settings = tmp_path / "pipelines.yaml"
    settings.write_text(json.dumps({"brokers": brokers}))
    code, out, err = run(*plan, "--config", str(settings), "--json")
    assert code == 0, err
    found = {row["device_id"]: row for row in json.loads(out)["devices"]}
    assert (found["p1"]["waits"], found["p2"]["waits"], found["p3"]["waits"]) == (False, True, True)
    assert "no broker that answers serves the log log-gone that devices.log names" in found["p2"]["message"]
    assert found["p3"]["message"] == "no log known yet: the broker yard, which devices.log names, has not answered"
    out = run(*plan, "--config", str(settings))[1]
    assert (out.count("at once"), out.count("waits: no ")) == (1, 2)


def test_plan_foresees_the_waves_that_the_engine_makes(run: Run, root: str, engine: ActionJob) -> None:
    options = ("--root", root, "--percentage", "100", "--wave", "50", "--wave", "100", "--id", "a1", "--json")
    planned = json.loads(run("actions", "plan", "echo", *options)[1])["devices"]
    assert run("actions", "create", "echo", *options)[0] == 0
    until(root, "a1", "RUNNING")
    assert {row["device_id"]: row["wave"] for row in FleetDesk(root).targets("a1")} == {
        row["device_id"]: row["wave"] for row in planned
    }


def test_a_rollout_file_is_planned_applied_and_carried_out_once(
    run: Run, root: str, engine: ActionJob, tmp_path: Path
) -> None:
    file = tmp_path / "rollout.yaml"
    file.write_text("id: r1\nname: echo\nlabels: {site: roof}\nwaves:\n- {percentage: 50}\n- {percentage: 100}\n")
    code, out, err = run("rollout", "plan", str(file), "--root", root, "--json")
    planned = {row["device_id"]: row["wave"] for row in json.loads(out)["devices"]}
    assert (code, sorted(planned.values())) == (0, [0, 1]), err
    assert FleetDesk(root).stored("r1") is None
    code, out, err = run("rollout", "apply", str(file), "--root", root, "--by", "ann")
    assert (code, out) == (0, "r1 was inserted\n"), err
    until(root, "r1", "RUNNING")
    assert {row["device_id"]: row["wave"] for row in FleetDesk(root).targets("r1")} == planned
    code, out, _ = run("rollout", "apply", str(file), "--root", root, "--json")
    assert (code, json.loads(out)) == (0, {"action_id": "r1", "inserted": False})
    file.write_text(file.read_text().replace("50", "60"))
    code, _, err = run("rollout", "apply", str(file), "--root", root)
    assert (code, "action r1 exists with other values of waves" in err) == (4, True)
    file.write_text("id: r1\nnme: echo\n")
    code, _, err = run("rollout", "plan", str(file), "--root", root)
    assert (code, err) == (5, f"headwater: {file}:2: nme: unknown key: did you mean name?\n")
    for offset, device_id in enumerate(sorted(planned, key=lambda id_: planned[id_])):
        report(root, "r1", device_id, offset)
    assert run("actions", "watch", "r1", "--root", root, "--timeout", "60")[0] == 0
    assert FleetDesk(root).query("actions", "SELECT count(*) AS n FROM actions") == [{"n": 1}]


def test_the_example_of_a_rollout_file_can_be_saved_and_read(run: Run, root: str, tmp_path: Path) -> None:
    code, out, _ = run("rollout", "example")
    (tmp_path / "rollout.yaml").write_text(out)
    assert code == 0
    code, _, err = run("rollout", "apply", str(tmp_path / "rollout.yaml"), "--root", root)
    assert (code, "pump-110 was not inserted: artifact pump 1.1.0 is not in the table artifacts" in err) == (4, True)


def test_rollout_is_steered_from_the_command_line_and_audited(run: Run, root: str, engine: ActionJob) -> None:
    wave = ("--wave", "50,approve", "--wave", "100")
    assert (
        run("actions", "create", "echo", "--root", root, "--percentage", "100", *wave, "--id", "a1", "--by", "ann")[0]
        == 0
    )
    (first,) = [row["device_id"] for row in _sent(root, 1)]
    assert run("actions", "pause", "a1", "--root", root, "--by", "ann", "--reason", "lunch")[0] == 0
    until(root, "a1", "PAUSED")
    report(root, "a1", first, 1)
    assert run("actions", "resume", "a1", "--root", root, "--by", "ann")[0] == 0
    until(root, "a1", "WAITING_APPROVAL")
    assert run("actions", "approve", "a1", "--root", root, "--by", "bob", "--wave", "3")[0] == 0
    assert run("actions", "approve", "a1", "--root", root, "--by", "bob")[0] == 0
    (second,) = [row["device_id"] for row in _sent(root, 2) if row["device_id"] != first]
    report(root, "a1", second, 2, state="FAILED")
    until(root, "a1", "ENDED")
    assert run("actions", "retry", "a1", "--root", root, "--by", "bob", "--device", second)[0] == 0
    until(root, "a1", "RUNNING")
    report(root, "a1", second, 3, attempt=2)
    code, out, _ = run("actions", "watch", "a1", "--root", root, "--timeout", "120", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["counts"] == {"SUCCEEDED": 2}
    said = [
        (row["who"], row["what"])
        for row in json.loads(run("actions", "audit", "a1", "--root", root, "--json")[1])["events"]
    ]
    for step in [("ann", "create"), ("ann", "pause"), ("bob", "approve"), ("bob", "retry"), ("engine", "REFUSED")]:
        assert step in said


def _sent(root: str, count: int) -> list[dict[str, Any]]:
    """The targets whose commands are in the log, once there are that many."""
    for _ in range(600):
        rows = [row for row in FleetDesk(root).targets("a1") if row["sent_at"] is not None]
        if len(rows) >= count:
            return rows
        threading.Event().wait(0.05)
    raise AssertionError(f"{len(rows)} commands were sent, not {count}")


def test_artifact_is_offered_from_what_the_broker_has(run: Run, root: str, flight_server: FlightServer) -> None:
    manifest = {
        "v": 1,
        "artifact": {
            "name": "pump",
            "version": "1.4.0",
            "size": 10,
            "sha256": "a" * 64,
            "chunk_size": 10,
            "chunks": [],
        },
        "signature": {"algorithm": "ed25519", "key_id": "0123", "value": "b" * 128},
    }
    options = ("--root", root, "--server", flight_server.location, "--label", "site=roof")
    code, _, err = run("actions", "offer", "pump", "1.4.0", *options)
    assert (code, "has no artifact pump 1.4.0; push it first" in err) == (4, True)
    with Client(flight_server.location) as client:
        client.produce([Row(topic="artifacts/pump/1.4.0/manifest", value=json.dumps(manifest).encode())])
    assert run("actions", "offer", "pump", "1.4.0", *options)[0] == 0
    code, _, err = run("actions", "offer", "pump", "1.4.0", *options)
    assert (code, "is already in the table: a version is final" in err) == (4, True)
    code, out, _ = run(
        "actions", "plan", "fw", "--root", root, "--percentage", "100", "--artifact", "pump:1.4.0", "--json"
    )
    assert (code, len(json.loads(out)["devices"])) == (0, 2)


def test_bars_show_every_state_that_is_there() -> None:
    assert bar({"SUCCEEDED": 15, "FAILED": 1, "QUEUED": 5, "PENDING": 9}) == f"{'█' * 15}✗{'░' * 5}{' ' * 9}"
    assert bar({"PENDING": 3}) == " " * 30


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("create", "echo"), 4, "the action was not inserted: no selector"),
        (("create", "echo", "--percentage", "0"), 4, "percentage must be above 0"),
        (("create", "echo", "--params", "[]"), 2, "--params must be a JSON object"),
        (("create", "echo", "--label", "roof"), 2, "--label roof: write KEY=VALUE"),
        (("create", "echo", "--device", "d1", "--wave", "1,sook=3"), 2, "--wave 1,sook=3: write PERCENT"),
        (("create", "echo", "--device", "d1", "--wave", "10"), 4, "waves must have increasing percentages"),
        (("create", "echo", "--device", "d1", "--deadline", "soon"), 2, "--deadline: `soon` is no time: write -1h for"),
        (("create", "echo", "--where", "site ="), 4, "label_expression has its end where a value should be"),
        (("create", "fw", "--device", "d1", "--artifact", "fw"), 2, "--artifact fw: write NAME:VERSION"),
        (("pause", "a1", "--device", "d1"), 2, "No such option"),
        (
            ("create", "echo", "--timeout-queued", "7w"),
            2,
            "`7w` is not a duration: write seconds, or 90s, 15m, 24h, 7d",
        ),
        (("create", "echo", "--timeout-queued", "9" * 12), 2, "`999999999999` is too long: at most 2147483647 s"),
        (("create", "echo", "--wave", "100,soak=soon"), 2, "`soon` is not a duration"),
        (("create", "echo", "--deadline", "+99999999999d"), 2, "--deadline: `+99999999999d` is no time"),
        (("export", "--since", "24h"), 2, "--since: `24h` is no time: write -1h for an hour ago"),
        (("export", "--since", "-1h", "--until", "-2h"), 2, "--since -1h is not before --until -2h"),
        (("create", "echo", "--label", "a=b", "--label", "a=c"), 2, "--label a=c: a is there twice"),
        (("create", "echo", "--device", "d1", "--priority", "99999999999"), 2, "--priority"),
        (("create", "echo", "--device", "d1", "--rate", "99999999999"), 2, "--rate"),
        (("list", "--limit", str(10**20)), 2, "--limit"),
        (("watch", "a1", "--timeout", "-1"), 2, "--timeout"),
        (("create", "echo", "--device", "d1", "--wait", "-1"), 2, "--wait"),
        (("audit", "nothing"), 4, "there is no action nothing"),
        (("watch", "nothing", "--timeout", "0.4"), 4, "no action engine has processed action nothing within 0.4 s"),
        (("show", "nothing"), 4, "no action engine has processed action nothing"),
        (("create", "echo", "--device", "d1", "--wait", "0.4"), 124, "is the action engine running?"),
    ],
)
def test_wrong_use_is_one_sentence(run: Run, root: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    got, _, err = run("actions", *arguments, "--root", root)
    assert got == code
    assert said in err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--percentage", "0"),
        ("--wave", "10"),
        ("--artifact", "pump:9.9"),
        ("--where", "site ="),
        ("--deadline", "2020-01-01T00:00Z"),
        ("--depends-on", "nothing"),
    ],
)
def test_plan_and_create_refuse_the_same_with_the_same_code(run: Run, root: str, wrong: tuple[str, ...]) -> None:
    order = ("fw", "--device", "d1", *wrong, "--root", root)
    codes, sentences = [], []
    for verb in ("plan", "create"):
        code, out, err = run("actions", verb, *order)
        assert out == ""
        codes.append(code)
        sentences.append(err.partition(": ")[2].partition(": ")[2])
    assert codes == [4, 4]
    assert sentences[0] == sentences[1]
    assert DeltaTable(f"{root}/actions").to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("name", ["joe", " JOE "])
def test_the_creator_is_told_at_once_that_somebody_else_must_approve(run: Run, root: str, name: str) -> None:
    order = ("create", "echo", "--device", "d1", "--id", "a1", "--needs-approval", "--by", "joe")
    assert run("actions", *order, "--root", root)[0] == 0
    code, out, err = run("actions", "approve", "a1", "--by", name, "--root", root)
    assert (code, out) == (4, "")
    assert "created a1: another person must approve it" in err
    assert DeltaTable(f"{root}/action_requests").to_pyarrow_table().num_rows == 0
    assert run("actions", "approve", "a1", "--by", "ann", "--root", root)[0] == 0


def test_an_action_that_no_engine_has_read_is_told_from_one_that_does_not_exist(run: Run, root: str) -> None:
    assert run("actions", "create", "echo", "--device", "d1", "--id", "pump-110", "--root", root)[0] == 0
    for command in (("show", "pump-110"), ("watch", "pump-110", "--timeout", "0.4")):
        code, _, err = run("actions", *command, "--root", root)
        assert code == 4
        assert "no action engine has processed action pump-110" in err
        assert "; it was inserted at 20" in err
        assert "is the job `actions` running?" in err
    code, _, err = run("actions", "show", "pump-11", "--root", root)
    assert (code, "there is no such action: did you mean pump-110?" in err) == (4, True)


@pytest.mark.parametrize("kind", ["pause", "resume", "cancel", "force", "retry", "remove", "approve"])
def test_a_request_for_an_action_that_does_not_exist_is_refused_and_not_written(run: Run, root: str, kind: str) -> None:
    assert run("actions", "create", "echo", "--device", "d1", "--id", "pump-110", "--root", root)[0] == 0
    code, out, err = run("actions", kind, "pump-11", "--root", root)
    assert (code, out) == (4, "")
    assert "there is no action pump-11" in err
    assert "did you mean pump-110?" in err
    assert DeltaTable(f"{root}/action_requests").to_pyarrow_table().num_rows == 0
    code, out, err = run("actions", kind, "pump-110", "--root", root, "--by", "another")
    assert (code, len(out.strip())) == (0, 32)
    assert "`headwater actions audit pump-110` shows the answer" in err
    assert DeltaTable(f"{root}/action_requests").to_pyarrow_table().num_rows == 1


def test_create_refuses_an_id_that_is_taken(run: Run, root: str) -> None:
    order = ("actions", "create", "echo", "--device", "d1", "--id", "a1", "--root", root)
    assert run(*order)[:2] == (0, "a1\n")
    code, out, err = run(*order)
    assert (code, out) == (4, "")
    assert "the action was not inserted: there is an action a1 already" in err
    assert DeltaTable(f"{root}/actions").to_pyarrow_table().num_rows == 1


def test_durations_have_the_units_of_a_rollout_file(run: Run, root: str) -> None:
    times = ("--timeout-queued", "7d", "--timeout-delivered", "90", "--timeout-step", "15m", "--retry-backoff", "2h")
    wave = ("--wave", "100,soak=1h")
    assert run("actions", "create", "echo", "--device", "d1", "--id", "a1", *times, *wave, "--root", root)[0] == 0
    row = DeltaTable(f"{root}/actions").to_pyarrow_table().to_pylist()[0]
    names = ("timeout_queued_s", "timeout_delivered_s", "timeout_step_s", "retry_backoff_s")
    assert [row[name] for name in names] == [7 * 86_400, 90, 15 * 60, 2 * 3_600]
    assert json.loads(row["waves"]) == [{"percentage": 100.0, "soak_s": 3_600}]


def test_watch_says_soon_that_nobody_has_read_the_action(run: Run, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater_cli._watch._PATIENCE_S", 0.0)
    assert run("actions", "create", "echo", "--device", "d1", "--id", "a1", "--root", root)[0] == 0
    _, _, err = run("actions", "watch", "a1", "--timeout", "1", "--root", root)
    assert err.count("; waiting") == 1


def test_missing_tables_are_one_sentence(run: Run, tmp_path: Path) -> None:
    code, _, err = run("actions", "list", "--root", str(tmp_path))
    assert code == 5
    assert f"there is no table action_state under {tmp_path}: give the folder of the tables with --root" in err


def test_simulated_devices_publish_the_series_and_count(run: Run, tmp_path: Path) -> None:
    series = tmp_path / "series.jsonl"
    series.write_text('{"temperature_c": 21.5}\n{"temperature_c": 21.6}\n')
    with Mosquitto(tmp_path) as broker:
        address = f"127.0.0.1:{broker.port}"
        code, out, err = run(
            *("devices", "simulate", "3", "--mqtt", address, "--interval", "0.05", "--for", "5", "--json"),
            *("--series", str(series), "--acked", str(tmp_path / "acked.csv")),
        )
    assert code == 0, err
    counts = json.loads(out)
    assert counts["published"] == counts["acked"] == len((tmp_path / "acked.csv").read_text().splitlines()) > 3
    assert counts["unacked"] == 0
