"""Options that the jobs around silver share: tables, schemas and rules. The command line overrides the file."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import ValidationError

from broker_edge.errors import SettingsError
from broker_edge.tls import pem_reference
from pipelines.settings import Settings
from pipelines.settings.brokers import AccessSection, BrokerSection


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Where silver and its companion tables are."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--root", help="folder or object store address of silver and its companion tables")
    place.add_argument("--schema", help="catalog.schema of these tables instead of a folder; needs Spark")


def add_broker_options(parser: argparse.ArgumentParser) -> None:
    """The brokers, and how they are reached: secrets by reference only."""
    reference = "file:PATH, env:NAME or secret:SCOPE/KEY"
    parser.add_argument("--server", action="append", help="Flight address of a broker, grpc://host:port; repeatable")
    parser.add_argument("--user", help="user at every broker; also HEADWATER_USER")
    parser.add_argument(
        "--password-from", metavar="REFERENCE", help=f"its password: {reference}; also HEADWATER_PASSWORD_FROM"
    )
    parser.add_argument("--token-from", metavar="REFERENCE", help="a token in its place; also HEADWATER_TOKEN_FROM")
    for name, what in (
        ("ca", "authority that signed the brokers' certificates"),
        ("cert", "certificate of this job"),
        ("key", "its key"),
    ):
        variable = f"HEADWATER_TLS_{name.upper()}"
        parser.add_argument(f"--tls-{name}", metavar="FILE", help=f"{what}: path or reference; also {variable}")


def with_brokers(settings: Settings, options: argparse.Namespace) -> Settings:
    """The settings with the brokers and the access of the command line, which hold for every broker. Raises
    SettingsError."""
    credentials = {"user": options.user, "password": options.password_from, "token": options.token_from}
    tls = {name: pem_reference(getattr(options, f"tls_{name}")) for name in ("ca", "cert", "key")}
    changes: dict[str, Any] = {}
    if any(value is not None for value in credentials.values()):
        changes |= credentials
    if any(value is not None for value in tls.values()):
        changes["tls"] = tls
    chosen = settings.with_servers(options.server)
    if not changes:
        return chosen
    try:
        access = AccessSection.model_validate(chosen.access.model_dump() | changes)
        brokers = [BrokerSection.model_validate(one.model_dump() | changes) for one in chosen.brokers]
    except ValidationError as error:
        raise SettingsError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    return chosen.model_copy(update={"access": access, "brokers": brokers})


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Folders of schemas and rules."""
    parser.add_argument("--schemas", help="folder of message schemas")
    parser.add_argument("--rules", help="folder of quality rules")


def add_bronze_options(parser: argparse.ArgumentParser) -> None:
    """The bronze table."""
    bronze = parser.add_mutually_exclusive_group()
    bronze.add_argument("--bronze", help="bronze table, catalog.schema.table")
    bronze.add_argument("--bronze-path", help="bronze table, by path")


def with_options(settings: Settings, options: argparse.Namespace) -> Settings:
    """The settings, overridden by the options that were given."""
    if hasattr(options, "password_from"):
        settings = with_brokers(settings, options)
    given = {name: value for name, value in vars(options).items() if value is not None}
    silver: dict[str, Any] = {
        name: given[name] for name in ("schemas", "rules", "checkpoint", "trigger") if name in given
    }
    if "root" in given or "schema" in given:
        silver |= {"root": given.get("root"), "catalog_schema": given.get("schema")}
    changes: dict[str, Any] = {"silver": settings.silver.model_dump() | silver}
    if "bronze" in given or "bronze_path" in given:
        bronze = {"table": given.get("bronze"), "table_path": given.get("bronze_path")}
        changes["telemetry"] = settings.telemetry.model_dump() | bronze
    if "actions_root" in given:
        changes["actions"] = settings.actions.model_dump() | {"root": given["actions_root"]}
    if "tenant" in given:
        changes["tenant"] = given["tenant"]
    try:
        return Settings.model_validate(settings.model_dump() | changes)
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
