"""`headwater devices import`, `list`, `show`, `set` and `retire`: the table `devices`, without a JVM."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.errors import ConfigError
from broker_edge.escape import moment
from broker_edge.extras import require
from headwater_cli._author import ByOption
from headwater_cli._options import JsonOption, finite
from headwater_cli._order import labels_of
from headwater_cli._output import put_fields, put_json, put_rows, say
from headwater_cli._tables import Tables

if TYPE_CHECKING:
    from actions.inventory import Inventory
    from actions.inventory_values import Selection, Summary

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_REMOVE_MAX = 10.0

IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False, help="These devices.")]
WhereOption = Annotated[
    str | None, typer.Option("--where", metavar="EXPRESSION", help="By labels, such as: site = roof and not old.")
]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Members of any of these groups; repeatable.")
]
WithinOption = Annotated[
    str | None, typer.Option("--seen-within", metavar="TIME", help="Reported in this time: 90s, 15m, 24h, 7d.")
]
SilentOption = Annotated[
    str | None, typer.Option("--silent-for", metavar="TIME", help="Did not report for this time, or never.")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")]
MaxOption = Annotated[
    float,
    typer.Option(
        "--remove-max", min=0.0, max=100.0, callback=finite, metavar="PERCENT", help="Refuse to retire a larger share."
    ),
]


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="Columns device_id, time_zone, groups, log, label.*.")
    ],
    tables: Tables,
    remove_missing: Annotated[
        bool, typer.Option("--remove-missing", help="Retire the devices that the file does not name.")
    ] = False,
    remove_max: MaxOption = _REMOVE_MAX,
    create: Annotated[bool, typer.Option("--create", help="Create the tables if there are none.")] = False,
    dry_run: DryOption = False,
    by: ByOption = None,
    json: JsonOption = False,
) -> None:
    """Insert and change devices as a CSV file says. What the file has no column for stays as it is."""
    with _inventory(tables, by, create=create and not dry_run, writes=not dry_run) as inventory:
        from actions.inventory_csv import read_inventory

        done = inventory.import_devices(
            read_inventory(file), remove_missing=remove_missing, remove_max_percent=remove_max, dry_run=dry_run
        )
    _report(done, dry_run=dry_run, json=json)


def list_(
    tables: Tables,
    where: WhereOption = None,
    group: GroupOption = None,
    seen_within: WithinOption = None,
    silent_for: SilentOption = None,
    retired: Annotated[bool, typer.Option("--retired", help="Retired devices too.")] = False,
    json: JsonOption = False,
) -> None:
    """List devices with their labels, groups, log, firmware, product, hardware and when they were last seen."""
    with _inventory(tables) as inventory:
        rows = inventory.devices(_selection((), where, group, seen_within, silent_for, retired=retired))
    ids = [row["device_id"] for row in rows]
    twice = sorted({id_ for at, id_ in enumerate(ids) if at and ids[at - 1] == id_})
    if twice:
        say(f"in the table twice: {', '.join(twice[:5])}{' and others' if len(twice) > 5 else ''}")
    if json:
        put_json({"devices": [_plain(row) for row in rows], "twice": twice})
        return
    said = ("device_id", "labels", "groups", "time_zone", "log")
    reported = ("version", "product", "hardware", "last_seen_at")
    names = (*said, *reported, "retired_at")
    cells = [[_cell(row, name) for name in names] for row in rows]
    put_rows(names, cells, empty=f"there are no such devices under {tables.root}")


def show(
    device_id: Annotated[str, typer.Argument(metavar="ID")],
    tables: Tables,
    json: JsonOption = False,
) -> None:
    """Show one device: what people say about it, its log, its last state and its open actions."""
    with _inventory(tables) as inventory:
        found = inventory.device(device_id)
    if len(found["rows"]) != 1:
        rows = len(found["rows"])
        say(f"it is in the table devices {rows} times" if rows else "it is not in the table devices, but it reported")
    if json:
        state = None if found["state"] is None else _plain(found["state"])
        rows_ = {name: [_plain(row) for row in found[name]] for name in ("rows", "targets")}
        put_json({**found, **rows_, "state": state})
        return
    route = found["log"] and f"{found['log']} (from the table {found['log_from']})"
    for row in found["rows"]:
        for name in (
            "labels",
            "groups",
            "time_zone",
            "created_by",
            "created_at",
            "updated_by",
            "updated_at",
            "retired_at",
        ):
            put_fields(name, _cell(row, name))
    put_fields("log", route)
    for name in ("version", "product", "hardware", "last_seen_at", "last_status", "last_action_id"):
        put_fields(name, _cell(found["state"] or {}, name))
    for target in found["targets"]:
        put_fields("open", target["action_id"], target["state"], target["attempt"], target["message"])


def set_(
    tables: Tables,
    ids: IdsArgument = None,
    where: WhereOption = None,
    group: GroupOption = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Set this label; repeatable.")] = None,
    remove_label: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Remove it; repeatable.")] = None,
    add_group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Add to this group; repeatable.")] = None,
    remove_group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Remove from it; repeatable.")] = None,
    time_zone: Annotated[str | None, typer.Option(metavar="NAME", help="IANA name; empty: none.")] = None,
    log: Annotated[str | None, typer.Option(metavar="LOG", help="Log id or name of a broker; empty: none.")] = None,
    dry_run: DryOption = False,
    by: ByOption = None,
    json: JsonOption = False,
) -> None:
    """Change devices, by id or by --where and --group."""
    _need_selection(ids, where, group)
    if not any((label, remove_label, add_group, remove_group)) and time_zone is None and log is None:
        raise typer.BadParameter("nothing to change: give --label, --add-group, --time-zone, --log or another option")
    with _inventory(tables, by, writes=not dry_run) as inventory:
        from actions.inventory_csv import Wanted, checked_time_zone
        from actions.inventory_values import Change

        try:
            checked_time_zone(time_zone or "")
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        labels = {**labels_of(label or []), **dict.fromkeys(remove_label or [], "")}
        change = Change(Wanted("", time_zone=time_zone, log=log, labels=labels), add_group or (), remove_group or ())
        done = inventory.set(_selection(ids or (), where, group), change, dry_run=dry_run)
    _report(done, dry_run=dry_run, json=json)


def retire(
    tables: Tables,
    ids: IdsArgument = None,
    where: WhereOption = None,
    group: GroupOption = None,
    silent_for: SilentOption = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take them into use again.")] = False,
    remove_max: MaxOption = _REMOVE_MAX,
    dry_run: DryOption = False,
    by: ByOption = None,
    json: JsonOption = False,
) -> None:
    """Take devices out of use: actions no longer select them, and their open targets are removed. Rows stay."""
    _need_selection(ids, where, group, silent_for)
    with _inventory(tables, by, writes=not dry_run) as inventory:
        selection = _selection(ids or (), where, group, None, silent_for)
        done = inventory.retire(selection, undo=undo, remove_max_percent=remove_max, dry_run=dry_run)
    _report(done, dry_run=dry_run, json=json)


def _need_selection(ids: list[str] | None, *criteria: object) -> None:
    if not ids and not any(criteria):
        raise typer.BadParameter("no device is selected: give ids, or select with --where or --group")


def _selection(
    ids: list[str] | tuple[str, ...],
    where: str | None,
    group: list[str] | None,
    seen_within: str | None = None,
    silent_for: str | None = None,
    *,
    retired: bool = False,
) -> Selection:
    from actions.inventory_values import Selection

    return Selection(
        ids=tuple(ids),
        expression=where,
        groups=tuple(group or ()),
        seen_within_s=_seconds(seen_within),
        silent_for_s=_seconds(silent_for),
        retired=retired,
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(f"`{text}` is not a time: write a number and s, m, h or d, for example 24h")
    return int(found[1]) * _UNITS[found[2]]


def _report(done: Summary, *, dry_run: bool, json: bool) -> None:
    if json:
        put_json({**asdict(done), "dry_run": dry_run})
        return
    if dry_run:
        say("nothing was written")
    for name in ("added", "changed", "returned", "retired", "unchanged", "missing"):
        put_fields(name, len(getattr(done, name)))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _cell(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None:
        return None
    if name == "labels":
        return ", ".join(f"{key}={label}" for key, label in sorted(value.items()))
    if name == "groups":
        return ", ".join(value)
    return moment(value, "milliseconds") if name.endswith("_at") else str(value)


@contextmanager
def _inventory(
    tables: Tables, by: str | None = None, *, create: bool = False, writes: bool = False
) -> Iterator[Inventory]:
    require("a Delta table", "deltalake")
    from actions.inventory import Inventory
    from broker_edge.errors import PipelineError
    from sinks.probe import require_safe_commits
    from sinks.tables import create_by_path

    try:
        options = tables.access.deltalake()
        if create or writes:
            require_safe_commits(tables.root, tables.access)
        if create:
            create_by_path(tables.root, storage_options=options)
        yield Inventory(tables.root, by=by or getpass.getuser(), storage_options=options, tenant=tables.tenant)
    except PipelineError as error:
        raise ConfigError(str(error)) from error


def add_to(group: typer.Typer) -> None:
    """Adds the commands to the group `devices`."""
    for name, command in (("import", import_), ("list", list_), ("show", show), ("set", set_), ("retire", retire)):
        group.command(name)(command)
