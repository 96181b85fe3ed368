"""`headwater devices select`: saved selectors, which actions name with --selector. Works on Delta tables, without a
JVM."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from broker_edge.escape import moment
from headwater_cli._author import ByOption
from headwater_cli._options import JsonOption, finite
from headwater_cli._order import labels_of
from headwater_cli._output import put_json, put_rows, say
from headwater_cli._tables import Tables, require_tables

if TYPE_CHECKING:
    from actions.selectors import Selectors

app = typer.Typer(help="Saved selectors of actions.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the selector.")]


@app.command()
def save(
    name: NameArgument,
    tables: Tables,
    device: Annotated[list[str] | None, typer.Option(metavar="ID", help="This device; repeatable.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="By label; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Members of any of these groups; repeatable.")] = None,
    where: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="By labels: site = roof and not old.")] = None,
    reported: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="By what devices report: version < 2.0.0 and seen < 7d.")
    ] = None,
    percentage: Annotated[
        float | None, typer.Option(callback=finite, help="This percentage, by a hash of action and device.")
    ] = None,
    by: ByOption = None,
) -> None:
    """Save criteria under a name, in place of those that it stands for now. Actions that exist do not change."""
    from actions.engine import Selector

    selector = Selector(
        device_ids=tuple(device) if device else None,
        labels=labels_of(label) if label else None,
        groups=tuple(group) if group else None,
        label_expression=where,
        reported_expression=reported,
        percentage=percentage,
    )
    _selectors(tables, by).save(name, selector)
    say(f"saved {name}")


@app.command("list")
def list_(tables: Tables, json: JsonOption = False) -> None:
    """List the saved selectors with their criteria, and who saved them when."""
    found = _selectors(tables).all()
    if json:
        rows = [{"name": one.name, "by": one.saved_by, "at": one.saved_us, **one.row()} for one in found]
        put_json({"selectors": [{key: value for key, value in row.items() if value is not None} for row in rows]})
        return
    shown = [(one.name, one.sentence, one.saved_by, moment(one.saved_us, "seconds")) for one in found]
    put_rows(("name", "criteria", "by", "at"), shown, empty=f"there are no saved selectors under {tables.root}")


@app.command()
def remove(name: NameArgument, tables: Tables, by: ByOption = None) -> None:
    """Remove a saved selector. Actions that were ordered with it keep their criteria."""
    _selectors(tables, by).remove(name)
    say(f"removed {name}")


def _selectors(tables: Tables, by: str | None = None) -> Selectors:
    require_tables()
    from actions.selectors import Selectors

    return Selectors(tables.root, tenant=tables.tenant, by=by or getpass.getuser(), access=tables.access)


def add_to(group: typer.Typer) -> None:
    """Adds the commands to the group `devices`."""
    group.add_typer(app, name="select")
