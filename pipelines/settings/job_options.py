"""Options that the jobs around silver share: tables, schemas and rules. The command line overrides the file."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import ValidationError

from broker_edge.errors import SettingsError
from pipelines.settings import Settings


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Where silver and its companion tables are."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--root", help="folder or object store address of silver and its companion tables")
    place.add_argument("--schema", help="catalog.schema of these tables instead of a folder; needs Spark")


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
    changes |= {name: given[key] for key, name in (("tenant", "tenant"), ("server", "servers")) if key in given}
    try:
        return Settings.model_validate(settings.model_dump() | changes)
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
