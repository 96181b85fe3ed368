"""`headwater devices`: a fleet of simulated devices against any MQTT broker, or one device as a process.

The commands of the inventory are in `inventory`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as json_
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.credentials import Credentials
from broker_edge.errors import ConfigError, ConnectError, HeadwaterError, RefusedError
from broker_edge.extras import require
from broker_edge.mqtt_address import MqttAddress
from broker_edge.own_python import own_environment, own_python
from broker_edge.tls import TlsReferences
from headwater_cli import inventory, selectors
from headwater_cli._guard import FloorOption, HardwareOption, ProductOption, RootOption, guards_of
from headwater_cli._options import DEFAULT_MQTT, JsonOption, MqttOption, NodesOption, finite, parse_mqtt
from headwater_cli._output import put, put_fields, put_json, say

if TYPE_CHECKING:
    from broker_edge.device import UpdatePolicy
    from broker_edge.device.fleet import FleetSettings, RunningFleet
    from broker_edge.device.wording import Said

app = typer.Typer(help="Devices: the inventory, a simulated fleet, or one device.", no_args_is_help=True)

_EVERY_S = 1.0
_WAIT_TOLD_S = 2.0
# Devices per process; larger fleets are spread over several processes.
_PROCESS_MAX = 500

TrustOption = Annotated[
    list[Path] | None, typer.Option("--trust", metavar="FILE", help="Public key; firmware signed with it is accepted.")
]
UnsignedOption = Annotated[bool, typer.Option("--allow-unsigned", help="Accept unsigned firmware.")]
FirmwareOption = Annotated[str, typer.Option("--firmware", metavar="VERSION", help="Initial version of new devices.")]


@app.command()
def simulate(
    count: Annotated[int, typer.Argument(min=1, metavar="N", help="Number of devices.")],
    mqtt: MqttOption = DEFAULT_MQTT,
    node: NodesOption = None,
    interval: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Interval between two samples.")] = 1.0,
    seconds: Annotated[
        float | None, typer.Option("--for", min=0.001, callback=finite, help="Stop after this time.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Devices are named PREFIX-0001 and so on.")] = "device",
    series: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Samples as JSON lines (default: NOAA series).")
    ] = None,
    acked: Annotated[Path | None, typer.Option(help="Append each acknowledgement to this file.")] = None,
    telemetry: Annotated[bool, typer.Option(help="Whether devices publish samples.")] = True,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    root: RootOption = None,
    product: ProductOption = None,
    hardware: HardwareOption = None,
    floor: FloorOption = None,
    firmware: FirmwareOption = "1.0.0",
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME=SHARE%,…", help="Faults of the devices; `--fault list` lists them."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Selects which device has which fault.")] = 0,
    away: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Offline time of `away` devices.")] = 15.0,
    log: Annotated[
        Path | None, typer.Option("--log", help="Append the actions of each device to this file, as JSON lines.")
    ] = None,
    passwords: Annotated[
        Path | None,
        typer.Option(
            "--passwords",
            metavar="FILE",
            help="Lines NAME:PASSWORD, as `users generate` prints them: each device is the user of its name.",
        ),
    ] = None,
    first: Annotated[int, typer.Option("--first", min=1, metavar="N", help="Number of the first device.")] = 1,
    part: Annotated[int | None, typer.Option(min=1, max=_PROCESS_MAX, hidden=True)] = None,
    skip: Annotated[int, typer.Option(min=0, hidden=True)] = 0,
    json: JsonOption = False,
) -> None:
    """Simulate devices that replay a measured series, execute commands and report, until Ctrl-C or --for.

    With --trust, --allow-unsigned or --root they accept firmware too.
    """
    _need_gmqtt()
    from broker_edge.device import FleetSettings
    from broker_edge.device.faults import FAULTS, parse
    from broker_edge.device.simulated import Updates

    if fault == ["list"]:
        for name, meaning in FAULTS.items():
            put_fields(name, meaning)
        return
    at = parse_mqtt(mqtt)
    others = _others(at, node)
    guards = guards_of(root, product, hardware, floor, other_trust=bool(trust or allow_unsigned))
    policy = _policy(trust, allow_unsigned) if trust or allow_unsigned or guards else None
    user, password = _login() if passwords is None else (None, None)
    updates = None if policy is None else Updates(policy.trust, allow_unsigned, firmware, guards=guards)
    settings = FleetSettings(
        count=part or min(count, _PROCESS_MAX),
        host=at.host,
        port=at.port,
        scheme=at.scheme,
        path=at.path,
        tls=_certificates(at),
        others=others,
        interval_s=interval,
        prefix=prefix,
        acked_path=acked,
        first=first + skip,
        whole=range(first, first + count),
        telemetry=telemetry,
        updates=updates,
        faults=tuple(parse(",".join(fault or []))),
        seed=seed,
        away_s=away,
        log_path=log,
        user=user,
        password=password,
        passwords_path=passwords,
    )
    is_whole = part is not None or count <= _PROCESS_MAX
    counts = _run_fleet(settings, at, series, seconds) if is_whole else _spread(count)
    if json:
        put_json(counts)
    else:
        put(f"published {counts['published']}, acknowledged {counts['acked']}, refused {counts['refused']}")
        for what, number in sorted(counts["events"].items()):
            put_fields(what, number)


def _others(at: MqttAddress, nodes: list[str] | None) -> tuple[MqttAddress, ...]:
    """The further nodes of a cluster, which speak the protocol of the first address `at`."""
    found = tuple(parse_mqtt(node) for node in nodes or ())
    if any(one.scheme != at.scheme for one in found):
        raise typer.BadParameter("--node: write the addresses of all nodes with the protocol of --mqtt")
    return found


def _run_fleet(settings: FleetSettings, at: MqttAddress, series: Path | None, seconds: float | None) -> dict[str, Any]:
    from broker_edge.device import RunningFleet

    fleet = RunningFleet(settings, _series(series) if settings.telemetry else [{}])
    stopped = _stop_on_term()
    with _link_errors(), _said_while_waiting(fleet, at), fleet:
        deadline = None if seconds is None else time.monotonic() + seconds
        what = "publish" if settings.telemetry else "listen"
        say(f"{settings.count} devices {what} on {at}")
        try:
            while not stopped and (deadline is None or time.monotonic() < deadline):
                time.sleep(_EVERY_S if deadline is None else max(0.0, min(_EVERY_S, deadline - time.monotonic())))
        except KeyboardInterrupt:
            say("stopping")
    return {
        **asdict(fleet.counts()),
        "unacked": fleet.unacked_at_stop,
        "events": dict(fleet.fleet.log.counts) if settings.updates is not None or settings.faults else {},
    }


@contextlib.contextmanager
def _said_while_waiting(fleet: RunningFleet, at: MqttAddress) -> Iterator[None]:
    """Says what it waits for, if the devices are not connected soon."""
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(_WAIT_TOLD_S):
            if not fleet.is_starting:
                continue
            counts, trouble = fleet.counts(), fleet.fleet.trouble
            why = "" if trouble is None else f": {trouble}"
            say(f"{counts.connected} of {counts.devices} devices are connected; the others wait for {at}{why}")

    thread = threading.Thread(target=tell, name="waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _stop_on_term() -> list[bool]:
    """Becomes true on SIGTERM: a background process cannot be stopped with Ctrl-C."""
    stopped: list[bool] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    return stopped


def _spread(count: int) -> dict[str, Any]:
    """Runs the same command once for each part of the fleet; returns the sums of their counts."""
    children = []
    for start in range(0, count, _PROCESS_MAX):
        part = ["--part", str(min(_PROCESS_MAX, count - start)), "--skip", str(start), "--json"]
        command = "import sys; from headwater_cli import main; sys.exit(main())"
        words, env = own_python("-c", command, *sys.argv[1:], *part), own_environment()
        children.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env))
    _stop_on_term()
    outs: list[str] = []
    try:
        outs = [child.communicate()[0] for child in children]
    except KeyboardInterrupt:
        for child in children:
            child.send_signal(signal.SIGTERM)
        outs = [child.communicate()[0] for child in children]
    failed = [child.returncode for child in children if child.returncode != 0]
    if failed:
        kind = {3: ConnectError, 4: RefusedError, 5: ConfigError}.get(failed[0], HeadwaterError)
        raise kind(f"{len(failed)} of {len(children)} parts of the fleet failed; see their errors above")
    sums: Counter[str] = Counter()
    events: Counter[str] = Counter()
    for out in outs:
        found = json_.loads(out)
        events.update(found.pop("events"))
        sums.update(found)
    return {**sums, "events": dict(events)}


@app.command("run")
def run_(
    device_id: Annotated[str, typer.Argument(metavar="ID", help="Device id, also its client id.", show_default=False)],
    state: Annotated[Path, typer.Option(help="Folder for its flash and journal.", show_default=False)],
    mqtt: MqttOption = DEFAULT_MQTT,
    node: NodesOption = None,
    trust: TrustOption = None,
    allow_unsigned: UnsignedOption = False,
    root: RootOption = None,
    product: ProductOption = None,
    hardware: HardwareOption = None,
    floor: FloorOption = None,
    firmware: FirmwareOption = "1.0.0",
    uplink: Annotated[
        str | None, typer.Option("--uplink", metavar="TENANT", help="Report status in the format of Bytebeam's uplink.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run one device: executes commands and updates, and restarts itself when an update needs it."""
    _need_gmqtt()
    from broker_edge.device import UplinkWords
    from broker_edge.device.standalone import StandaloneSettings, run

    at = parse_mqtt(mqtt)
    others = _others(at, node)
    guards = guards_of(root, product, hardware, floor, other_trust=bool(trust or allow_unsigned))
    if len(guards) > 1:
        raise typer.BadParameter("--hardware: one device has one hardware id")
    user, password = _login()
    settings = StandaloneSettings(
        device_id=device_id,
        folder=state,
        host=at.host,
        port=at.port,
        scheme=at.scheme,
        path=at.path,
        tls=_certificates(at),
        others=others,
        policy=_policy(trust, allow_unsigned),
        guard=guards[0] if guards else None,
        firmware=firmware,
        words=None if uplink is None else UplinkWords(tenant=uplink),
        user=user,
        password=password,
    )
    say(f"device {device_id} connects to {at}")
    with _link_errors():
        starts_anew = asyncio.run(run(settings, on_told=lambda said: _show(said, json)))
    if starts_anew:
        sys.stdout.flush()
        # Like a reboot: nothing of this process survives except its arguments.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _show(said: Said, json: bool) -> None:
    if json:
        put_json({name: value for name, value in asdict(said).items() if value is not None})
        return
    progress = None if said.progress is None else f"{said.progress} %"
    words = (said.state, said.action_id, said.step, progress, said.message)
    put_fields(*(word for word in words if word))


def _policy(trust: list[Path] | None, allow_unsigned: bool) -> UpdatePolicy:
    from broker_edge.artifacts import Trust
    from broker_edge.device import UpdatePolicy

    return UpdatePolicy(Trust.load(trust or []), allow_unsigned=allow_unsigned)


def _certificates(at: MqttAddress) -> TlsReferences:
    return TlsReferences.from_environment() if at.is_tls else TlsReferences()


def _login() -> tuple[str | None, str | None]:
    shown = Credentials.from_environment()
    return shown.mqtt()


@contextlib.contextmanager
def _link_errors() -> Iterator[None]:
    """Gives a failed link the exit code of any failed connection."""
    from broker_edge.device import ConnectRefused, LinkError, SubscribeRefused

    try:
        yield
    except (ConnectRefused, SubscribeRefused) as error:
        raise RefusedError(str(error)) from error
    except LinkError as error:
        raise ConnectError(str(error)) from error


def _need_gmqtt() -> None:
    require("a device", "gmqtt", "websockets")
    # gmqtt warns about each interrupted connection, and many simulated devices interrupt theirs on purpose.
    logging.getLogger("gmqtt").setLevel(logging.ERROR)
    logging.getLogger("gmqtt.mqtt.handler").addFilter(_is_failure)


def _is_failure(record: logging.LogRecord) -> bool:
    """Whether gmqtt reports an exception. A refused connection, its other error, is our own sentence."""
    return record.exc_info is not None


def _series(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        require("the default series (in place of --series FILE)", "vega_datasets")
        from pipelines.demo.series import hourly_temperatures

        return [{"temperature_c": celsius} for celsius in hourly_temperatures()]
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            value = json_.loads(line)
        except ValueError as error:
            raise typer.BadParameter(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise typer.BadParameter(f"{path}:{number} is not a JSON object")
        found.append(value)
    return found


def register(parent: typer.Typer) -> None:
    inventory.add_to(app)
    selectors.add_to(app)
    parent.add_typer(app, name="devices")
