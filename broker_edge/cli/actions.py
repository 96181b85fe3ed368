"""`headwater actions`: insert an action, look what became of it, cancel it. Works on the Delta tables, not on a
broker."""

from __future__ import annotations

import getpass
import json as json_
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.cli._options import JsonOption
from broker_edge.cli._output import put, put_json, put_rows, say
from broker_edge.errors import ConfigError, DeadlineError, NotFoundError

if TYPE_CHECKING:
    from pipelines.fleet_desk import FleetDesk

_POLL_S = 0.3

app = typer.Typer(help="Actions: a row in a table that devices carry out.", no_args_is_help=True)

RootOption = Annotated[
    str, typer.Option("--root", envvar="HEADWATER_TABLES", metavar="FOLDER", help="Folder of the action tables.")
]
ActionArgument = Annotated[str, typer.Argument(metavar="ACTION_ID")]
DEFAULT_ROOT = "data/tables"


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="COMMAND", help="Which command, for example echo.")],
    root: RootOption = DEFAULT_ROOT,
    params: Annotated[str, typer.Option(metavar="JSON", help="An object for the command.")] = "{}",
    device: Annotated[list[str] | None, typer.Option(metavar="ID", help="Select this device; repeatable.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Select by label; repeatable.")] = None,
    percentage: Annotated[float | None, typer.Option(help="Select this share, by a hash.")] = None,
    timeout_queued: Annotated[int | None, typer.Option(metavar="SECONDS", help="Until a device has it.")] = None,
    action_id: Annotated[str | None, typer.Option("--id", help="Default: a new one.")] = None,
    wait: Annotated[float | None, typer.Option(metavar="SECONDS", help="Wait until it has ended.")] = None,
    json: JsonOption = False,
) -> None:
    """Insert an action. All selectors given must hold. With --wait: exit code 1 unless every device succeeded."""
    with _desk(root) as desk:
        from pipelines.fleet_desk import Order

        order = Order(
            name=name,
            params=_params(params),
            device_ids=device or None,
            labels=_labels(label) if label else None,
            percentage=percentage,
            timeout_queued_s=timeout_queued,
        )
        id_ = desk.order(order, action_id=action_id)
        if wait is None:
            _answer("action_id", id_, json)
            return
        say(f"inserted {id_}")
        row = _wait(desk, id_, wait)
        if json:
            put_json(_plain(row))
        else:
            put(row["message"])
        if row["counts"].get("SUCCEEDED", 0) != row["targets"] or row["targets"] == 0:
            raise typer.Exit(1)


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
def cancel(
    action_id: ActionArgument,
    root: RootOption = DEFAULT_ROOT,
    device: Annotated[str | None, typer.Option(metavar="ID", help="Only this device.")] = None,
    reason: Annotated[str, typer.Option(help="Written into the tables.")] = "",
    json: JsonOption = False,
) -> None:
    """Ask for a cancel; the engine answers in the table action_events."""
    with _desk(root) as desk:
        request_id = desk.cancel(action_id, device_id=device, reason=reason)
    _answer("request_id", request_id, json)


@contextmanager
def _desk(root: str) -> Iterator[FleetDesk]:
    if find_spec("deltalake") is None:
        raise ConfigError("this command works on Delta tables: install headwater with the extra `spark`")
    from pipelines.errors import PipelineError
    from pipelines.fleet_desk import FleetDesk

    try:
        yield FleetDesk(root, by=getpass.getuser())
    except PipelineError as error:
        raise ConfigError(str(error)) from error


def _wait(desk: FleetDesk, action_id: str, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        row = desk.action(action_id)
        if row is not None and row["phase"] != "RUNNING":
            return row
        time.sleep(_POLL_S)
    raise DeadlineError(f"action {action_id} has not ended within {seconds:g} s; is the action engine running?")


def _params(text: str) -> dict[str, Any]:
    try:
        value = json_.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--params is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("--params must be a JSON object")
    return value


def _labels(texts: list[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"--label {text}: write KEY=VALUE")
        labels[key] = value
    return labels


def _answer(name: str, value: str, json: bool) -> None:
    if json:
        put_json({name: value})
    else:
        put(value)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """For JSON: without what is null; times are Unix microseconds, as everywhere in the command line."""
    return {name: value for name, value in row.items() if value is not None}


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="actions")
