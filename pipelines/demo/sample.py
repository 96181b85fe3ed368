"""A small installation with a past, for the notebooks: a day of stored readings, live devices, two rollouts.

Everything is made by the product: an embedded broker, MQTT publishes, the simulated fleet, and `headwater jobs run`
with its six jobs. Only the weather was measured long ago. It takes about a minute, most of it for Spark.

The installation has what an analyst looks for: a device that is described and was never there, one that fell silent,
one with a hole in its day, sensors that report nonsense, a device whose records were purged from the log, and devices
that fail or refuse an update. `sample.json` says what was done, so that the tables can be compared with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

from actions.fleet_desk import FleetDesk, Order
from broker_edge import Broker, Client
from broker_edge.artifacts import SigningKey, push
from broker_edge.device import FleetSettings, RunningFleet
from broker_edge.device.faults import Share, assign, parse
from broker_edge.device.fleet import device_ids
from broker_edge.device.simulated import Updates
from broker_edge.errors import PipelineError
from broker_edge.own_python import own_environment, own_python
from pipelines.demo.layout import Layout
from pipelines.demo.stored_day import FORGOTTEN, Fleet, live_samples, stored_readings, upload
from pipelines.spark.session import SHORT_RUN
from sinks.tables import create_by_path

DONE = "sample.json"
FAULTS = "offline=7%,fails=13%,refuses=7%,wrong-checksum=7%,interrupted=13%"
ROLLOUTS = ("2.0.0", "2.1.0")
WAVES = (
    {"percentage": 25, "success_percentage": 20},
    {"percentage": 60, "success_percentage": 20},
    {"percentage": 100},
)
_BEFORE_S, _LIVE_S, _LIMIT_S, _LOOK_S = 3.0, 4.0, 300.0, 0.3


class SampleError(PipelineError):
    """The installation could not be made."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was done. `stored` and `live` are acknowledged publishes; `targets` devices of each rollout; `faults` the
    devices that were told to fail, with their fault; the counts by device are of the stored day."""

    stored: int
    live: int
    forgotten: int
    by_device: Mapping[str, int]
    never_there: str
    faults: Mapping[str, str]
    targets: int
    groups: Mapping[str, int]
    """The last lag of each consumer group at the broker, in records."""


def make_sample(root: Path) -> Sample:
    """Makes the installation under `root`, or returns what an earlier call has made there. Raises SampleError."""
    layout = Layout(root.absolute())
    done = layout.root / DONE
    if not done.exists():
        if layout.root.exists() and any(layout.root.iterdir()):
            raise SampleError(f"{layout.root} is not empty and holds no finished sample: remove it, or name another")
        layout.root.mkdir(parents=True, exist_ok=True)
        made = _make(layout)
        done.write_text(json.dumps(asdict(made)))
    return Sample(**json.loads(done.read_text()))


def _make(layout: Layout) -> Sample:
    fleet = Fleet()
    shares = tuple(parse(FAULTS))
    faults = {id_: str(fault) for id_, fault in assign(fleet.ids, shares).items()}
    silent = next(id_ for id_, fault in faults.items() if fault == "offline")
    day = stored_readings(fleet, silent=silent)
    with Broker(layout.broker) as broker:
        upload(broker.mqtt, day)
    # A purge needs the log for itself. Afterwards the offsets of this device are gaps, as a reader reports them.
    _command(layout, "log", "purge", str(layout.broker), "--device", FORGOTTEN)
    with Broker(layout.broker) as broker:
        key = SigningKey.generate()
        desk = FleetDesk(str(layout.tables), by="ann", create=True)
        create_by_path(layout.tables)
        desk.describe_devices(fleet.labels)
        for version in ROLLOUTS:
            _offer(layout, broker, desk, key, version)
        config = _settings(layout, broker.server, key)
        with _running_jobs(layout, config) as jobs, _running_fleet(layout, broker, key, shares) as live:
            _wait(jobs, "the first rows of bronze", lambda: (layout.bronze / "_delta_log").exists())
            time.sleep(_BEFORE_S)
            for version in ROLLOUTS:
                _roll_out(desk, jobs, version)
            time.sleep(_LIVE_S)
            live.pause()
            published = live.counts().acked
            kept = [row for row in day if row.device_id != FORGOTTEN]
            _wait(jobs, "the last row of silver", lambda: _arrived(layout, len(kept) + published))
            # The suite of `quality` looks at silver every few seconds, and gaps are copied as often.
            _wait(jobs, "the quality suite", lambda: _is_there(layout, "dq_results", "source = 'suite'"))
            _wait(jobs, "the gaps", lambda: _is_there(layout, "ingest_gaps", "true"))
            with Client(broker.server) as client:
                lags = _lags(client)
    counts = {id_: sum(row.device_id == id_ for row in kept) for id_ in fleet.ids}
    return Sample(
        stored=len(kept),
        live=published,
        forgotten=len(day) - len(kept),
        by_device=counts,
        never_there=fleet.never_there,
        faults=faults,
        targets=len(fleet.labels),
        groups=lags,
    )


def _lags(client: Client) -> dict[str, int]:
    """Records that each consumer group has not finished, matching its filters or not."""
    ends = {number: bounds.high_watermark for number, bounds in client.offsets().partitions.items()}
    return {
        group.group: sum(max(0, ends[number] - (at.next or 0)) for number, at in group.partitions.items())
        for group in client.groups()
    }


def _offer(layout: Layout, broker: Broker, desk: FleetDesk, key: SigningKey, version: str) -> None:
    image = layout.root / f"controller-{version}.bin"
    image.write_bytes(os.urandom(256 * 1024))
    with Client(broker.server) as client:
        manifest = push(client, image, "controller", version, key=key, chunk_size=32 * 1024).manifest
    image.unlink()
    desk.offer(json.loads(manifest.to_bytes()))


def _roll_out(desk: FleetDesk, jobs: subprocess.Popen[str], version: str) -> None:
    """One rollout to all devices, to its end. The short timeout is for the device that is never there."""
    order = Order(
        name="",
        type="ota",
        percentage=100.0,
        artifact_name="controller",
        artifact_version=version,
        waves=WAVES,
        timeout_queued_s=4,
    )
    name = f"controller-{version}"
    desk.order(order, action_id=name)
    _wait(jobs, f"the end of {name}", lambda: ((desk.action(name) or {}).get("phase")) == "ENDED")


def _settings(layout: Layout, server: str, key: SigningKey) -> Path:
    """Settings of the jobs as in an installation, with short intervals."""
    for folder, name, text in (("schemas", "telemetry", SCHEMA), ("quality", "telemetry", RULES)):
        (layout.root / folder).mkdir(exist_ok=True)
        (layout.root / folder / f"{name}.yaml").write_text(text)
    checkpoint = {name: str(layout.checkpoint(name)) for name in ("telemetry", "status", "silver")}
    settings = {
        "servers": [server],
        "spark": {"conf": dict(SHORT_RUN), "warehouse": str(layout.root / "warehouse")},
        # The purged offsets are lost on purpose: continue behind them, and report them to the broker.
        "telemetry": {
            "table_path": str(layout.bronze),
            "checkpoint": checkpoint["telemetry"],
            "fail_on_data_loss": False,
        },
        "status": {"checkpoint": checkpoint["status"], "fail_on_data_loss": False},
        "actions": {"root": str(layout.tables), "tick_s": 0.3},
        "silver": {
            "root": str(layout.tables),
            "checkpoint": checkpoint["silver"],
            "schemas": str(layout.root / "schemas"),
            "rules": str(layout.root / "quality"),
            "trigger": "3 seconds",
        },
        "gaps": {"every_s": 5},
        "quality": {"every_s": 10},
    }
    path = layout.root / "pipelines.yaml"
    path.write_text(json.dumps(settings, indent=2))  # JSON is YAML
    return path


@contextmanager
def _running_jobs(layout: Layout, config: Path) -> Iterator[subprocess.Popen[str]]:
    """`headwater jobs run`, whose JSON lines are kept in `jobs.jsonl`, until the context ends."""
    arguments = ["jobs", "run", "telemetry", "status", "silver", "actions", "gaps", "quality"]
    with (layout.root / "jobs.jsonl").open("w") as lines, (layout.root / "jobs.log").open("w") as said:
        process = subprocess.Popen(
            [*_HEADWATER, *arguments, "--json", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=said,
            text=True,
            env=own_environment(),
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _running_fleet(layout: Layout, broker: Broker, key: SigningKey, shares: tuple[Share, ...]) -> RunningFleet:
    host, _, port = broker.mqtt.rpartition(":")
    settings = FleetSettings(
        count=Fleet.count,
        prefix=Fleet.prefix,
        host=host,
        port=int(port),
        interval_s=1.0,
        updates=Updates(key.trust()),
        faults=shares,
        acked_path=layout.root / "acked.csv",
    )
    assert device_ids(settings) == list(Fleet().ids)
    return RunningFleet(settings, live_samples())


def _wait(jobs: subprocess.Popen[str], what: str, is_done: Callable[[], bool]) -> None:
    """Raises SampleError if the jobs end before, or it takes too long."""
    deadline = time.monotonic() + _LIMIT_S
    while not is_done():
        if jobs.poll() is not None:
            raise SampleError(f"the jobs ended before {what}: see jobs.log in the folder of the sample")
        if time.monotonic() > deadline:
            raise SampleError(f"{what} did not come within {_LIMIT_S:g} s: see jobs.log in the folder of the sample")
        time.sleep(_LOOK_S)


def _count(layout: Layout, table: str, where: str) -> int:
    if not DeltaTable.is_deltatable(str(layout.tables / table)):
        return 0
    query = QueryBuilder().register("t", DeltaTable(layout.tables / table))
    return int(query.execute(f"SELECT count(*) AS n FROM t WHERE {where}").read_all()["n"][0].as_py())


def _is_there(layout: Layout, table: str, where: str) -> bool:
    return _count(layout, table, where) > 0


def _arrived(layout: Layout, records: int) -> bool:
    """Whether all acknowledged records are in bronze, and each row of bronze is in silver or in quarantine.

    Bronze may have more: a connection that a fault cuts takes the acknowledgement of a stored record with it.
    """
    bronze = _count(layout, layout.bronze.name, "true")
    refused = _count(layout, "quarantine", "pipeline = 'silver/telemetry'")
    return bronze >= records and _count(layout, "silver_telemetry", "true") + refused == bronze


_HEADWATER = own_python("-c", "import sys; from headwater_cli import main; sys.exit(main())")


def _command(layout: Layout, *arguments: str) -> None:
    done = subprocess.run(
        [*_HEADWATER, *arguments], capture_output=True, text=True, env=own_environment(), timeout=_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise SampleError(f"headwater {' '.join(arguments[:2])} failed: {done.stderr.strip()[-500:]}")


SCHEMA = """\
name: telemetry
topics: [devices/+/telemetry]
device_level: 1
time: {path: ts, unit: us}
fields:
  - {name: seq, type: bigint, required: true}
  - {name: temperature_c, type: double, unit: °C}
"""

RULES = """\
message: telemetry
rules:
  - {name: has_a_temperature, column: temperature_c, check: not_null, on_fail: quarantine}
  - {name: sensor_is_connected, column: temperature_c, check: between, min: -100, on_fail: quarantine}
  - {name: not_the_value_after_power_on, column: temperature_c, check: not_in_set, values: [85.0], on_fail: warn}
  - {name: temperature_is_of_this_planet, column: temperature_c, check: between, min: -90, max: 60, on_fail: warn}
"""
