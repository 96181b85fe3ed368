"""`headwater actions`: insert actions, see what would and what did become of them, steer them. Works on the Delta
tables, without a JVM; only `offer` asks a broker."""

from __future__ import annotations

import getpass
import json as json_
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.errors import ConfigError, DeadlineError, NotFoundError, RefusedError
from broker_edge.escape import moment
from headwater_cli._options import DEFAULT_SERVER, JsonOption, ServerOption, connect
from headwater_cli._order import labels_of, with_order
from headwater_cli._output import put_fields, put_json, put_rows, say
from headwater_cli._watch import is_over, watched

if TYPE_CHECKING:
    from actions.fleet_desk import FleetDesk, Order

_POLL_S = 0.3

app = typer.Typer(help="Actions: a row in a table that devices carry out.", no_args_is_help=True)

RootOption = Annotated[
    str, typer.Option("--root", envvar="HEADWATER_TABLES", metavar="FOLDER", help="Folder of the action tables.")
]
ActionArgument = Annotated[str, typer.Argument(metavar="ACTION_ID")]
DeviceOption = Annotated[str | None, typer.Option("--device", metavar="ID", help="Only this device.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Written into the tables.")]
ByOption = Annotated[str | None, typer.Option("--by", envvar="HEADWATER_BY", help="Who asks; default: your login.")]
DEFAULT_ROOT = "data/tables"
_BROKER_S = 10.0


@app.command()
@with_order
def create(
    order: Order,
    root: RootOption = DEFAULT_ROOT,
    by: ByOption = None,
    action_id: Annotated[str | None, typer.Option("--id", help="Default: a new one.")] = None,
    wait: Annotated[float | None, typer.Option(metavar="SECONDS", help="Wait until it has ended.")] = None,
    json: JsonOption = False,
) -> None:
    """Insert an action. All selectors given must hold. With --wait: exit code 1 unless every device succeeded."""
    with _desk(root, by) as desk:
        id_ = desk.order(order, action_id=action_id)
        if wait is None:
            _answer("action_id", id_, json)
            return
        say(f"inserted {id_}")
        row = _wait(desk, id_, wait)
        if json:
            put_json(_plain(row))
        else:
            put_fields(row["message"])
        if row["counts"].get("SUCCEEDED", 0) != row["targets"] or row["targets"] == 0:
            raise typer.Exit(1)


@app.command()
@with_order
def plan(
    order: Order,
    root: RootOption = DEFAULT_ROOT,
    by: ByOption = None,
    action_id: Annotated[str | None, typer.Option("--id", help="The id that the action will have.")] = None,
    json: JsonOption = False,
) -> None:
    """Who would be selected, in which wave, and who would be skipped and why. Sends and writes nothing."""
    with _desk(root, by) as desk:
        found = desk.plan(order, action_id=action_id)
    if found.refused is not None:
        raise RefusedError(found.refused)
    if json:
        put_json({"message": found.message, "devices": [_plain(asdict(planned)) for planned in found.devices]})
        return
    skipped = sum(1 for planned in found.devices if planned.skipped is not None)
    say(found.message or f"{len(found.devices) - skipped} devices would be sent to, {skipped} skipped")
    rows = [(p.device_id, p.wave + 1, p.skipped or ("waits" if p.waits else "at once")) for p in found.devices]
    put_rows(("device_id", "wave", "what"), rows)


@app.command("list")
def list_(
    root: RootOption = DEFAULT_ROOT,
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 50,
    json: JsonOption = False,
) -> None:
    """The newest actions and how far they are."""
    with _desk(root) as desk:
        rows = desk.actions(limit=limit)
    if json:
        put_json({"actions": [_plain(row) for row in rows]})
    else:
        names = ("action_id", "phase", "targets", "open", "message")
        put_rows(names, [[row[name] for name in names] for row in rows])


@app.command()
def show(action_id: ActionArgument, root: RootOption = DEFAULT_ROOT, json: JsonOption = False) -> None:
    """One action with the state of each of its devices."""
    with _desk(root) as desk:
        row, targets = desk.action(action_id), desk.targets(action_id)
    if row is None:
        raise NotFoundError(f"no engine has seen an action {action_id} under {root}")
    if json:
        put_json({**_plain(row), "devices": [_plain(target) for target in targets]})
    else:
        say(f"{row['phase']}: {row['message']}")
        names = ("device_id", "state", "attempt", "progress", "message", "result")
        put_rows(names, [[target[name] for name in names] for target in targets])


@app.command()
def watch(
    action_id: ActionArgument,
    root: RootOption = DEFAULT_ROOT,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Give up (exit code 124).")] = None,
    json: JsonOption = False,
) -> None:
    """Follow an action until it is over: bars on a terminal, else a line for each change."""
    with _desk(root) as desk:
        watched(desk, action_id, seconds=timeout, json=json)


@app.command()
def audit(action_id: ActionArgument, root: RootOption = DEFAULT_ROOT, json: JsonOption = False) -> None:
    """Who asked for what and when, and what the engine said."""
    with _desk(root) as desk:
        rows = desk.audit(action_id)
    if not rows:
        raise NotFoundError(f"there is no action {action_id} under {root}")
    if json:
        put_json({"events": [_plain(row) for row in rows]})
    else:
        names = ("at", "who", "what", "device_id", "text")
        put_rows(names, [[_moment(row["at"]), *(row[name] for name in names[1:])] for row in rows])


@app.command()
def offer(
    name: Annotated[str, typer.Argument(help="The artifact's name.")],
    version: Annotated[str, typer.Argument(help="And version.")],
    root: RootOption = DEFAULT_ROOT,
    server: ServerOption = DEFAULT_SERVER,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only for these; repeatable.")] = None,
    device: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only for this one; repeatable.")] = None,
    by: ByOption = None,
) -> None:
    """Let devices install an artifact that a broker has: a row in the table artifacts."""
    topic = f"artifacts/{name}/{version}/manifest"
    value = b""
    with connect(server, _BROKER_S) as client:
        for number, bounds in client.offsets(filters=topic).partitions.items():
            table = client.fetch(number, bounds.log_start, bounds.high_watermark, filters=topic).to_table()
            value = (table.column("value").to_pylist() or [value])[-1]
    if not value:
        raise NotFoundError(f"the broker at {server} has no artifact {name} {version}; push it first")
    with _desk(root, by) as desk:
        desk.offer(json_.loads(value), labels=labels_of(label) if label else None, device_ids=device or None)
    say(f"devices may install {name} {version} from now on")


def _request(kind: str, about: str, *, of_one: bool = False) -> None:
    """Adds the command that inserts such a request; `of_one`: it may name a device."""

    def ask(action_id: str, root: str, by: str | None, reason: str, json: bool, *, device: str | None = None) -> None:
        with _desk(root, by) as desk:
            request_id = desk.ask(kind, action_id, device_id=device, reason=reason)
        _answer("request_id", request_id, json)

    def ask_for_one(
        action_id: ActionArgument,
        root: RootOption = DEFAULT_ROOT,
        device: DeviceOption = None,
        by: ByOption = None,
        reason: ReasonOption = "",
        json: JsonOption = False,
    ) -> None:
        ask(action_id, root, by, reason, json, device=device)

    def ask_for_all(
        action_id: ActionArgument,
        root: RootOption = DEFAULT_ROOT,
        by: ByOption = None,
        reason: ReasonOption = "",
        json: JsonOption = False,
    ) -> None:
        ask(action_id, root, by, reason, json)

    said = f"{about} The engine answers in action_events; see `audit`."
    app.command(kind, help=said)(ask_for_one if of_one else ask_for_all)


_request("pause", "Send nothing more until it is resumed.")
_request("resume", "Go on after a pause.")
_request("cancel", "Ask devices to stop, and send nothing more.", of_one=True)
_request("force", "Make soft updates forced ones, ignore windows, end cancels that hang.", of_one=True)
_request("retry", "Give devices that ended in error another attempt.", of_one=True)
_request("approve", "Let the next wave begin; not for who made the action.")


@contextmanager
def _desk(root: str, by: str | None = None) -> Iterator[FleetDesk]:
    if find_spec("deltalake") is None:
        raise ConfigError("this command works on Delta tables: install headwater with the extra `spark`")
    from actions.fleet_desk import FleetDesk
    from broker_edge.errors import PipelineError

    try:
        yield FleetDesk(root, by=by or getpass.getuser())
    except PipelineError as error:
        raise ConfigError(str(error)) from error


def _wait(desk: FleetDesk, action_id: str, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        row = desk.action(action_id)
        if row is not None and is_over(row):
            return row
        time.sleep(_POLL_S)
    raise DeadlineError(f"action {action_id} has not ended within {seconds:g} s; is the action engine running?")


def _answer(name: str, value: str, json: bool) -> None:
    if json:
        put_json({name: value})
    else:
        put_fields(value)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """For JSON: without what is null; times are Unix microseconds, as everywhere in the command line."""
    return {name: value for name, value in row.items() if value is not None}


def _moment(at_us: int | None) -> str | None:
    return None if at_us is None else moment(at_us, "milliseconds")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="actions")
