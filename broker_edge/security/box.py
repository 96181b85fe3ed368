"""What the settings of a broker and the files on its machine say about its security. Reads, and never writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from broker_edge.security.certificates import certificates
from broker_edge.security.check import Check, severe
from broker_edge.security.doors import Door, doors_of_settings
from broker_edge.security.modes import modes
from broker_edge.security.tokens import tokens
from broker_edge.security.users import users


def box(settings: Mapping[str, Any], folder: Path | None = None) -> list[Check]:
    """All checks of the settings and of the files that they name; `folder` is that of the settings file, whose keys and
    passwords are looked at too."""
    doors = doors_of_settings(settings)
    is_beyond = any(door.is_beyond for door in doors)
    return [
        *modes(settings, folder),
        *users(settings, is_beyond=is_beyond),
        *_anonymous(settings["auth"], is_beyond=is_beyond),
        *tokens(settings["auth"]["token"]),
        *certificates(settings),
        *_limits(settings, doors),
        *_retention(settings["log"]),
    ]


def _anonymous(auth: Mapping[str, Any], *, is_beyond: bool) -> Iterator[Check]:
    if auth["allow_anonymous"]:
        yield Check(
            severe(is_beyond),
            "anonymous clients",
            "auth.allow_anonymous",
            "clients without credentials are let in",
            "set auth.allow_anonymous to false and give each client a user (headwater users generate)",
        )
    else:
        yield Check("ok", "anonymous clients", "auth.allow_anonymous", "false")
    if auth["open_metrics"]:
        found = "/metrics needs no credentials"
        yield Check("warn", "metrics", "auth.open_metrics", found, "set it to false and give the scraper a user")
    if auth["client_ids"] == "any":
        found = "every client id is believed, so users with %c rules can act as each other"
        yield Check("warn", "client ids", "auth.client_ids", found, "set it to auto, and add `client-id` lines")


def _limits(settings: Mapping[str, Any], doors: list[Door]) -> Iterator[Check]:
    """Limits that are off by default, because they depend on the devices; they matter where strangers come."""
    beyond = sorted({door.listener for door in doors if door.is_beyond})
    mqtt = settings["mqtt"]
    unset = []
    if {*beyond} - {"flight", "admin"}:
        unset += [] if settings["broker"]["max_connections_per_ip"] else ["broker.max_connections_per_ip"]
        is_paced = mqtt["max_messages_per_second"] or mqtt["max_bytes_per_second"]
        unset += [] if is_paced else ["mqtt.max_messages_per_second"]
    for name in ("flight", "admin"):
        if name in beyond and not settings[name]["max_connections_per_ip"]:
            unset.append(f"{name}.max_connections_per_ip")
    for key in unset:
        yield Check("warn", "limits", key, "no limit, and other machines can connect", f"set {key}")
    if not unset:
        found = "limits for each address and client are set" if beyond else "only this machine can connect"
        yield Check("ok", "limits", "broker, mqtt, flight, admin", found)
    for door in doors:
        if door.needs_proxy and door.is_beyond:
            found = "whoever connects here names the address of the client, so limits for an address can be evaded"
            remedy = f"bind listeners.{door.listener} to the address that only the proxy reaches"
            yield Check("warn", "proxy header", f"listeners.{door.listener}.proxy_protocol", found, remedy)


def _retention(log: Mapping[str, Any]) -> Iterator[Check]:
    """Artifacts are kept until somebody removes them, which is what they are for."""
    open_ended = []
    for name in sorted(set(log["classes"]) - {"artifacts"}):
        retention = log["classes"][name]["retention"]
        if not retention["age"] and not retention["bytes"]:
            open_ended.append((name, "age", "no record is ever deleted, so devices can fill the disk"))
        elif retention["hold_for_groups"] and not retention["hard_bytes"] and not log["group_idle"]:
            open_ended.append((name, "hard_bytes", "an idle consumer group holds records until the disk is full"))
    for name, key, found in open_ended:
        setting = f"log.classes.{name}.retention.{key}"
        yield Check("warn", "retention", setting, found, f"set {setting}")
    if not open_ended:
        yield Check("ok", "retention", "log.classes", "telemetry and control have bounds")
