"""`headwater trace NAME:OFFSET`: where one record is, and which sessions and groups have passed it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from broker_edge.admin import DEFAULT_ADMIN, Admin
from broker_edge.escape import moment
from headwater_cli._options import JsonOption, TimeoutOption
from headwater_cli._output import payload_text, put_fields, put_json, put_rows, say
from headwater_cli.clients import AdminOption


def trace(
    at: Annotated[
        str, typer.Argument(metavar="NAME:OFFSET", help="The record, such as telemetry-0:4711.", show_default=False)
    ],
    admin: AdminOption = DEFAULT_ADMIN,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Show what became of one record: when it was appended, whether it is there, and whose place has passed it.
    Whether it was delivered is recorded nowhere."""
    found = Admin(admin, timeout_s=timeout).trace(at)
    if json:
        put_json(found)
        return
    put_fields("place", f"{found['name']}:{found['offset']}")
    put_fields("state", found["state"], found["reason"])
    if found["batch"] is not None:
        batch = found["batch"]
        put_fields("batch", f"offsets {batch['first']} to {batch['next'] - 1}", f"epoch {batch['epoch']}")
    if found["record"] is not None:
        _put_record(found["record"])
        rows = [
            (one["client_id"], _passed(one), one["next"], "connected" if one["connected"] else "away", one["filter"])
            for one in found["sessions"]
        ]
        put_rows(("client", "record", "next", "state", "filter"), rows, empty="no session has a filter that matches")
        if found["sessions_left_out"]:
            say("there are more sessions than were looked at")
    groups = [(one["group"], _passed(one), one["next"], "idle" if one["is_idle"] else None) for one in found["groups"]]
    put_rows(("group", "record", "next", "state"), groups, empty="no consumer group reads this partition")


def _put_record(record: Mapping[str, Any]) -> None:
    put_fields("time", moment(record["time_us"]))
    put_fields("client", record["client_id"])
    put_fields("topic", record["topic"])
    put_fields("qos", record["qos"], "retained" if record["retain"] else "not retained")
    if record.get("is_hidden"):
        put_fields("payload", f"{record['size']} bytes, for users who may replay the topic")
        return
    cut = ", of which this is the beginning" if record["is_cut"] else ""
    put_fields("payload", f"{record['size']} bytes{cut}", payload_text(base64.b64decode(record["value"])))


def _passed(one: Mapping[str, Any]) -> str | None:
    if one["has_passed"] is None:
        return None
    if one.get("without_match"):
        return "passed, no match"
    return "passed" if one["has_passed"] else "not yet"


def register(app: typer.Typer) -> None:
    app.command()(trace)
