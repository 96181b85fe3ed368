"""Measures the time from the commit of a row in `actions` to the first receipt of its command, with all jobs in one
local session. Also measures how late a device that never reports times out.

    HEADWATERD=… python tests/bench/actions_latency.py [--actions 30] [--devices 20] [--brokers 1]

Prints p50 and p95 of the latency, and of the delay of timeouts beyond their limit. `--jobs actions` leaves Spark out;
statuses are then read without it. With several brokers the devices are spread over them, and found by `devices.log`.
Run it on a quiet machine: jobs and devices share it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deltalake import write_deltalake
from support.rollout_world import StatusPump, fleet_settings, running

from actions.fleet_desk import FleetDesk, Order
from broker_edge import Client
from broker_edge.device.fleet import device_ids
from broker_edge.torture.process import BrokerProcess
from sinks.rows import arrow_of
from sinks.tables import DEVICES

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 5
_COMMAND = (sys.executable, "-c", "import sys; from headwater_cli import main; sys.exit(main())")


def settings(folder: Path, servers: list[str]) -> Path:
    """Writes a settings file with every path in `folder`."""
    place = {"root": str(folder / "tables")}
    silver = {"schemas": str(ROOT / "conf" / "schemas"), "rules": str(ROOT / "conf" / "quality")}
    text = {
        "servers": servers,
        "telemetry": {"table_path": str(folder / "bronze"), "checkpoint": str(folder / "checkpoints" / "telemetry")},
        "status": {"checkpoint": str(folder / "checkpoints" / "status")},
        "actions": place,
        "silver": {**silver, **place, "checkpoint": str(folder / "checkpoints" / "silver")},
    }
    path = folder / "pipelines.yaml"
    path.write_text(json.dumps(text))
    return path


@contextlib.contextmanager
def jobs(config: Path, names: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen([*_COMMAND, "jobs", "run", *names, "--config", str(config)], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def receipts(server: str, found: dict[str, int]) -> None:
    """Adds action_id → the time of its first receipt, in µs."""
    with Client(server) as client:
        for number, bounds in client.offsets(filters="$receipts").partitions.items():
            stream = client.fetch(number, bounds.log_start, bounds.high_watermark, filters="$receipts")
            for value in stream.to_table().column("value").to_pylist():
                body = json.loads(value)
                found.setdefault((body["idempotency_key"] or "").split("/")[0], body["time_us"])


def wait_over(desk: FleetDesk, action_id: str, seconds: float) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while True:
        row = desk.action(action_id)
        if row is not None and row["phase"] == "ENDED":
            return row
        if time.monotonic() > deadline:
            raise SystemExit(f"{action_id} has not ended within {seconds:g} s: {row}")
        time.sleep(0.2)


def show(what: str, seconds: list[float]) -> None:
    ranked = sorted(seconds)
    p95 = ranked[min(len(ranked) - 1, round(0.95 * len(ranked)))]
    print(f"{what}: p50 {statistics.median(ranked):.2f} s, p95 {p95:.2f} s, max {ranked[-1]:.2f} s of {len(ranked)}")


def run(folder: Path, options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        servers, ids = [], []
        desk = FleetDesk(folder / "tables", by="bench", create=True)
        each = options.devices // options.brokers
        for number in range(options.brokers):
            data = {"data_dir": folder / f"broker-{number}", "log_file": folder / f"broker-{number}.txt"}
            broker = stack.enter_context(BrokerProcess(**data))
            broker.start()
            simulated = fleet_settings(each, port=broker.mqtt[1], log=folder / f"fleet-{number}.jsonl")
            simulated = replace(simulated, prefix=f"device-{number}")
            servers.append("grpc://{}:{}".format(*broker.flight))
            with Client(servers[-1]) as client:
                log_id = client.version().log_id
            here = [*device_ids(simulated), *(["ghost"] if number == 0 else [])]
            rows = [{"device_id": id_, "log": log_id} for id_ in here]
            write_deltalake(str(folder / "tables" / "devices"), arrow_of(rows, DEVICES), mode="append")
            ids.append(device_ids(simulated))
            stack.enter_context(running(simulated))
        ids = [id_ for turn in zip(*ids, strict=True) for id_ in turn]
        names = options.jobs.split(",")
        with jobs(settings(folder, servers), names, folder / "jobs.txt"):
            if not {"status", "all"} & set(names):
                pump = StatusPump(str(folder / "tables"), *servers)
                pump.restart()
                stack.callback(pump.stop)
            warm = desk.order(Order(name="echo", device_ids=[ids[0]]))
            wait_over(desk, warm, 600)
            committed = {}
            for number in range(options.actions):
                time.sleep(random.uniform(0.5, 1.5))
                id_ = desk.order(Order(name="echo", device_ids=[ids[number % len(ids)]]))
                committed[id_] = time.time()
            for id_ in committed:
                wait_over(desk, id_, 60)
            seen: dict[str, int] = {}
            for server in servers:
                receipts(server, seen)
            show("commit of the row to the first receipt", [seen[id_] / 1e6 - at for id_, at in committed.items()])
            late = []
            for _ in range(3):
                id_ = desk.order(Order(name="echo", device_ids=["ghost"], timeout_queued_s=TIMEOUT_S))
                wait_over(desk, id_, 60)
                (target,) = desk.targets(id_)
                late.append((target["finished_at"] - target["queued_at"]) / 1e6 - TIMEOUT_S)
            show("delay of a timeout", late)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=30)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--jobs", default="all", help="as in `headwater jobs run`")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="latency-"))
    try:
        run(folder, options)
    except BaseException:
        log = folder / "jobs.txt"
        if log.exists():
            sys.stderr.write(log.read_text(errors="replace")[-3_000:])
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
