"""`headwater artifacts withdraw|revoke`: take firmware back that devices were allowed to install."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.errors import HeadwaterError, NotFoundError
from broker_edge.escape import moment
from headwater_cli._author import ByOption, SignInOption, author
from headwater_cli._options import JsonOption, ServersOption, TimeoutOption, retries_of
from headwater_cli._output import put_fields, put_json, say
from headwater_cli._tables import Tables, brokers_of, require_tables

if TYPE_CHECKING:
    from actions.offers import Withdrawn
    from broker_edge.access import BrokerAccess

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", show_default=False)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Reason, written into the tables.")]


def withdraw(
    name: NameArgument,
    version: VersionArgument,
    tables: Tables,
    reason: ReasonOption = "",
    by: ByOption = None,
    admin: SignInOption = None,
    json: JsonOption = False,
) -> None:
    """Send no command for it any more: commands that are due are cancelled. Commands that were sent continue; `revoke`
    cancels them too."""
    done = _withdrawn(tables, name, version, author(by, admin).name, reason)
    if json:
        put_json({**_of_withdrawn(name, version, done), "open_actions": list(done.open_actions)})
        return
    say(_said_withdrawn(name, version, done))
    if done.open_actions:
        say(f"not over: {', '.join(done.open_actions)}; `headwater artifacts revoke {name} {version}` cancels them")


def revoke(
    name: NameArgument,
    version: VersionArgument,
    tables: Tables,
    reason: ReasonOption = "",
    by: ByOption = None,
    admin: SignInOption = None,
    server: ServersOption = None,
    every: Annotated[bool, typer.Option("--all", help="Remove it from every broker of the settings.")] = False,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Withdraw it, cancel the actions that install it, and remove it from brokers, so that no device can fetch it.

    Devices that run it already keep it. Repeat it for brokers that did not answer: the exit code is that of the first
    one that failed."""
    require_tables()
    from actions.fleet_desk import FleetDesk

    brokers, who = brokers_of(server, every=every, settings=tables.settings), author(by, admin)
    done = _withdrawn(tables, name, version, who.name, reason)
    desk = FleetDesk(
        tables.root, by=who.name, confirmed_by=who.confirmed_by, access=tables.access, tenant=tables.tenant
    )
    why = f"revoked {name} {version}" + (f": {reason}" if reason else "")
    for action_id in done.open_actions:
        desk.cancel(action_id, reason=why)
    if not json:
        say(_said_withdrawn(name, version, done))
        if done.open_actions:
            say(f"asked to cancel {', '.join(done.open_actions)}; the engine answers in action_events, see `audit`")
    removed, failed = _removed(brokers, name, version, timeout)
    if json:
        put_json({**_of_withdrawn(name, version, done), "cancelled": list(done.open_actions), "brokers": removed})
    else:
        for one in removed:
            put_fields(f"{one['broker']}: {one.get('error') or one['what']}")
    if failed is not None:
        raise failed


def _removed(
    brokers: tuple[BrokerAccess, ...], name: str, version: str, timeout_s: float
) -> tuple[list[dict[str, str]], HeadwaterError | None]:
    """What happened at each broker, and the first error."""
    from broker_edge.artifacts import ArtifactStore

    rows: list[dict[str, str]] = []
    failed: HeadwaterError | None = None
    for broker in brokers:
        where = {"broker": broker.name or broker.server}
        try:
            with broker.client(timeout_s=timeout_s, retries=retries_of(broker.server)) as client:
                ArtifactStore(client).remove(name, version)
            rows.append({**where, "what": f"{name} {version} removed"})
        except NotFoundError:
            rows.append({**where, "what": f"does not have {name} {version}"})
        except HeadwaterError as error:
            failed = failed or error
            rows.append({**where, "error": str(error)})
    return rows, failed


def _withdrawn(tables: Tables, name: str, version: str, by: str, reason: str) -> Withdrawn:
    require_tables()
    from actions.offers import Offers

    offers = Offers(tables.root, by=by, tenant=tables.tenant, access=tables.access)
    return offers.withdraw(name, version, reason=reason)


def _said_withdrawn(name: str, version: str, done: Withdrawn) -> str:
    if done.is_new:
        return f"no command for {name} {version} is sent from now on"
    return f"{name} {version} was withdrawn before, by {done.by or 'somebody'} at {moment(done.at_us)}"


def _of_withdrawn(name: str, version: str, done: Withdrawn) -> dict[str, Any]:
    return {"name": name, "version": version, "withdrawn_by": done.by, "withdrawn_us": done.at_us, "new": done.is_new}


def add_to(app: typer.Typer) -> None:
    app.command()(withdraw)
    app.command()(revoke)
