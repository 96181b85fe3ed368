"""`headwater actions`: insert actions, preview and follow them, change running ones. Works on the Delta tables, without
a JVM; only `offer`, and `plan` with settings, contact brokers."""

from __future__ import annotations

import json as json_
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.errors import ConfigError, DeadlineError, NotFoundError, RefusedError
from broker_edge.escape import moment
from headwater_cli._author import ByOption, SignInOption, author
from headwater_cli._export import write_csv, write_json
from headwater_cli._missing import require_action, require_free, unprocessed
from headwater_cli._options import DEFAULT_SERVER, JsonOption, ServerOption, connect, finite, time_of
from headwater_cli._order import labels_of, with_order
from headwater_cli._output import put_fields, put_json, put_rows, say
from headwater_cli._show import show_action, show_csv, show_device
from headwater_cli._tables import Tables, require_tables
from headwater_cli._watch import is_over, watched

if TYPE_CHECKING:
    from actions.engine import Limits, Logs
    from actions.engine.foresight import Planned
    from actions.fleet_desk import FleetDesk, Order
    from pipelines.settings import Settings

_POLL_S = 0.3

app = typer.Typer(help="Actions: rows in a table that devices execute.", no_args_is_help=True)

ActionArgument = Annotated[str, typer.Argument(metavar="ACTION_ID")]
DeviceOption = Annotated[str | None, typer.Option("--device", metavar="ID", help="Only this device.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Reason, written into the tables.")]
_BROKER_S = 10.0


@app.command()
@with_order
def create(
    order: Order,
    tables: Tables,
    by: ByOption = None,
    admin: SignInOption = None,
    action_id: Annotated[str | None, typer.Option("--id", help="Id of the action (default: a new one).")] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0.001, callback=finite, metavar="SECONDS", help="Wait until the action has ended."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Insert an action, unless the engine would refuse it. A device must match all selectors given. With --wait, exit
    code 1 unless every device succeeds."""
    with open_desk(tables, by, admin) as desk:
        if action_id is not None:
            require_free(desk, action_id)
        wrong = desk.refusal(order, action_id=action_id, limits=_limits(tables.settings))
        if wrong is not None:
            raise RefusedError(f"the action was not inserted: {wrong}")
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
    tables: Tables,
    by: ByOption = None,
    action_id: Annotated[str | None, typer.Option("--id", help="The id that the action will have.")] = None,
    json: JsonOption = False,
) -> None:
    """Show which devices would be selected, in which wave, and which would be skipped and why. Writes nothing.

    With --config the brokers of the settings are asked which logs they serve, and signatures are judged as the settings
    say. Otherwise firmware must be signed, by any key.
    """
    with open_desk(tables, by) as desk:
        planned(desk, order, action_id, tables.settings, json=json)


def planned(desk: FleetDesk, order: Order, action_id: str | None, settings: Settings | None, *, json: bool) -> None:
    """Prints what the engine would do with the order."""
    logs = None if settings is None else _logs(settings, desk)
    found = desk.plan(order, action_id=action_id, logs=logs, limits=_limits(settings))
    if found.refused is not None:
        raise RefusedError(found.refused)
    if json:
        put_json({"message": found.message, "devices": [_plain(asdict(one)) for one in found.devices]})
        return
    skipped = sum(1 for one in found.devices if one.skipped is not None)
    chosen = len(found.devices) - skipped
    devices = "device" if chosen == 1 else "devices"
    say(found.message or f"{chosen} {devices} would get it, {skipped} would be skipped")
    rows = [(p.device_id, p.wave + 1, p.skipped or _when(p, logs)) for p in found.devices]
    if rows:
        put_rows(("device_id", "wave", "what"), rows)


def _limits(settings: Settings | None) -> Limits | None:
    return None if settings is None else settings.actions.limits()


def _logs(settings: Settings, desk: FleetDesk) -> Logs:
    """The brokers of the settings, and the logs that they serve now and that the engine would believe."""
    from actions.engine import Logs
    from actions.outbound import asked
    from broker_edge.log_owners import LogOwners
    from sinks.devices import Fleet

    brokers = settings.fleet()
    entries = [broker.entry for broker in brokers]
    owners = LogOwners(entries, desk.history.log_owners())
    with closing(Fleet(brokers)) as fleet:
        return Logs(asked(fleet.publishers, _BROKER_S, entries=entries, owners=owners))


def _when(planned: Planned, logs: Logs | None) -> str:
    if planned.waits:
        return f"waits: {planned.message}" if planned.message else "waits"
    also = f"; {planned.message}" if planned.message else ""
    if logs is not None:
        return f"at once{also}"
    which = f"a broker serves {planned.log}" if planned.log else "there is one broker"
    return f"at once, if {which}{also}"


@app.command("list")
def list_(
    tables: Tables,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of actions.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the newest actions and their progress."""
    with open_desk(tables) as desk:
        rows = desk.actions(limit=limit)
    if json:
        put_json({"actions": [_plain(row) for row in rows]})
    else:
        names = ("action_id", "phase", "targets", "open", "message")
        put_rows(
            names, [[row[name] for name in names] for row in rows], empty=f"there are no actions under {tables.root}"
        )


@app.command()
def show(
    action_id: ActionArgument,
    tables: Tables,
    every: Annotated[
        bool, typer.Option("--devices", help="Every device, also when there are many.", show_default=False)
    ] = False,
    device: Annotated[str | None, typer.Option(metavar="ID", help="All about this device, with its events.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="All devices as CSV on stdout.")] = False,
    json: JsonOption = False,
) -> None:
    """Show one action: its devices, or groups of them by state and message if there are more than 50."""
    if sum((every, device is not None, csv)) > 1 or (csv and json):
        raise typer.BadParameter("give one of --devices, --device and --csv, and --csv without --json")
    with open_desk(tables) as desk:
        row = desk.action(action_id)
        if row is None:
            raise NotFoundError(unprocessed(desk, action_id, f"under {tables.root}"))
        if device is not None:
            show_device(desk, row, device, json=json)
        elif csv:
            show_csv(desk, action_id)
        else:
            show_action(desk, row, every=every, json=json)


@app.command()
def watch(
    action_id: ActionArgument,
    tables: Tables,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, callback=finite, metavar="SECONDS", help="Stop after this time (exit code 124)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Follow an action until it is over: bars on a terminal, otherwise one line per change."""
    with open_desk(tables) as desk:
        watched(desk, action_id, seconds=timeout, json=json)


@app.command()
def audit(action_id: ActionArgument, tables: Tables, json: JsonOption = False) -> None:
    """Show who asked for what and when, and the answers of the engine."""
    with open_desk(tables) as desk:
        rows = desk.audit(action_id)
    if not rows:
        raise NotFoundError(f"there is no action {action_id} under {tables.root}")
    if json:
        put_json({"events": [_plain(row) for row in rows]})
    else:
        names = ("at", "who", "what", "device_id", "text")
        put_rows(names, [[_moment(row["at"]), *(row[name] for name in names[1:])] for row in rows])


@app.command()
def export(
    tables: Tables,
    action_id: Annotated[str | None, typer.Argument(metavar="[ACTION_ID]")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="All actions inserted or begun from this time on; -24h: of a day."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only those before this time.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file (default: stdout).")] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a CSV file for each kind of row into this folder.")
    ] = None,
) -> None:
    """Write the complete audit of one action, or of those of a period, as JSON lines: its row, state, requests, targets
    and events, also the archived ones."""
    if (action_id is None) == (since is None and until is None):
        raise typer.BadParameter("give an ACTION_ID, or --since or --until")
    if out is not None and csv is not None:
        raise typer.BadParameter("give one of --out and --csv")
    period = (time_of("--since", since), time_of("--until", until))
    if period[0] is not None and period[1] is not None and period[0] >= period[1]:
        raise typer.BadParameter(f"--since {since} is not before --until {until}")
    with open_desk(tables) as desk:
        from actions.export import Export, actions_between

        ids = actions_between(desk.history, *period) if action_id is None else [action_id]
        found = Export(desk.history, ids)
        if action_id is not None and not desk.audit(action_id):
            raise NotFoundError(f"there is no action {action_id} under {tables.root}")
        if csv is None:
            write_json(found, out)
        else:
            write_csv(found, csv)


@app.command()
def offer(
    name: Annotated[str, typer.Argument(help="The artifact's name.")],
    version: Annotated[str, typer.Argument(help="The artifact's version.")],
    tables: Tables,
    server: ServerOption = DEFAULT_SERVER,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only devices with this label; repeatable.")
    ] = None,
    device: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this device; repeatable.")] = None,
    by: ByOption = None,
) -> None:
    """Allow devices to install an artifact of a broker: adds a row to the table artifacts."""
    topic = f"artifacts/{name}/{version}/manifest"
    value = b""
    with connect(server, _BROKER_S) as client:
        for number, bounds in client.offsets(filters=topic).partitions.items():
            table = client.fetch(number, bounds.log_start, bounds.high_watermark, filters=topic).to_table()
            value = (table.column("value").to_pylist() or [value])[-1]
    if not value:
        raise NotFoundError(f"the broker at {server} has no artifact {name} {version}; push it first")
    with open_desk(tables, by) as desk:
        desk.offer(json_.loads(value), labels=labels_of(label) if label else None, device_ids=device or None)
    say(f"devices may install {name} {version} from now on")


def _request(kind: str, about: str, *, of_one: bool = False) -> None:
    """Adds the command that inserts such a request; with `of_one` it may name a single device."""

    def ask(
        action_id: str,
        tables: Tables,
        by: str | None,
        admin: str | None,
        reason: str,
        json: bool,
        *,
        device: str | None = None,
    ) -> None:
        with open_desk(tables, by, admin) as desk:
            require_action(desk, action_id, tables.root)
            request_id = desk.ask(kind, action_id, device_id=device, reason=reason)
        _requested(action_id, request_id, json)

    def ask_for_one(
        action_id: ActionArgument,
        tables: Tables,
        device: DeviceOption = None,
        by: ByOption = None,
        admin: SignInOption = None,
        reason: ReasonOption = "",
        json: JsonOption = False,
    ) -> None:
        ask(action_id, tables, by, admin, reason, json, device=device)

    def ask_for_all(
        action_id: ActionArgument,
        tables: Tables,
        by: ByOption = None,
        admin: SignInOption = None,
        reason: ReasonOption = "",
        json: JsonOption = False,
    ) -> None:
        ask(action_id, tables, by, admin, reason, json)

    said = f"{about} The engine answers in action_events; see `audit`."
    app.command(kind, help=said)(ask_for_one if of_one else ask_for_all)


_request("pause", "Send nothing more until it is resumed.")
_request("resume", "Continue after a pause.")
_request("cancel", "Ask devices to stop, and send nothing more.", of_one=True)
_request("force", "Turn soft updates into forced ones, ignore windows, end unanswered cancels.", of_one=True)
_request("retry", "Give devices that ended in error another attempt.", of_one=True)
_request("remove", "Confirm that the devices whose removal is held have left.")


@app.command()
def approve(
    action_id: ActionArgument,
    tables: Tables,
    wave: Annotated[
        int | None, typer.Option(min=1, help="The wave that may begin, from 1. Default: the one that waits now.")
    ] = None,
    by: ByOption = None,
    admin: SignInOption = None,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Allow the next wave. Must not be the person who created the action. The engine answers in action_events; see
    `audit`."""
    with open_desk(tables, by, admin) as desk:
        require_action(desk, action_id, tables.root)
        request_id = desk.approve(action_id, wave=wave, reason=reason)
    _requested(action_id, request_id, json)


@contextmanager
def open_desk(tables: Tables, by: str | None = None, admin: str | None = None) -> Iterator[FleetDesk]:
    require_tables()
    from actions.fleet_desk import FleetDesk
    from broker_edge.errors import PipelineError

    who = author(by, admin)
    try:
        yield FleetDesk(
            tables.root, by=who.name, confirmed_by=who.confirmed_by, access=tables.access, tenant=tables.tenant
        )
    except PipelineError as error:
        raise ConfigError(str(error)) from error


def _wait(desk: FleetDesk, action_id: str, seconds: float) -> dict[str, Any]:
    deadline, row = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        row = desk.action(action_id)
        if row is not None and is_over(row):
            return row
        time.sleep(_POLL_S)
    late = f"action {action_id} has not ended within {seconds:g} s"
    if row is None:
        raise DeadlineError(f"{late}; is the action engine running?")
    raise DeadlineError(
        f"{late}: {row['message']}; `headwater actions show {action_id}` says what each device waits for"
    )


def _answer(name: str, value: str, json: bool) -> None:
    if json:
        put_json({name: value})
    else:
        put_fields(value)


def _requested(action_id: str, request_id: str, json: bool) -> None:
    _answer("request_id", request_id, json)
    say(f"requested; `headwater actions audit {action_id}` shows the answer of the engine")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """For JSON: without null fields; times are Unix microseconds, as everywhere in the command line."""
    return {name: value for name, value in row.items() if value is not None}


def _moment(at_us: int | None) -> str | None:
    return None if at_us is None else moment(at_us, "milliseconds")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="actions")
