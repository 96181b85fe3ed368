"""The plan of a silver batch: saved beside the checkpoint before the batch writes, and used again by its replay.

An interrupted batch thus continues as it began, even if the files were changed in between. The newest plan also records
the fields that payloads have added so far.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, ValidationError

from broker_edge.errors import PlanError, SettingsError, SinkError
from pipelines.settings.yaml_file import Section
from pipelines.silver.rules import Rules
from pipelines.silver.schema import MessageSchema, SchemaField
from sinks.folder import TableFolder
from sinks.store import StoreAccess

_NEWER_KEYS = ("new_columns_per_device_max", "depth_max", "nodes_max", "json_bytes_max")
_NEWER_FIELD_KEYS = ("device", "day")
KEPT = 20
"""Only the newest batch can be replayed; the other plans are kept for inspection."""


class BatchPlan(Section):
    """The schemas, with the fields they had at that time, and the rules."""

    version: Literal[1] = 1
    batch_id: int
    schemas: list[MessageSchema]
    rules: list[Rules]
    over_quota: dict[str, int] = Field(default={})
    """By schema, the new fields of the batch that stay rescued because their devices have used their quota."""

    def inferred(self, name: str) -> list[SchemaField]:
        """The fields that payloads have added to a schema."""
        found = next((schema for schema in self.schemas if schema.name == name), None)
        return [field for field in found.fields if field.inferred] if found is not None else []


class PlanStore:
    """The folder `plans` of a checkpoint. Only the query of this checkpoint writes to it."""

    def __init__(self, checkpoint: str, access: StoreAccess | None = None) -> None:
        try:
            self._folder = TableFolder.of(f"{checkpoint.rstrip('/')}/plans", access)
        except SinkError as error:
            raise SettingsError(
                f"the checkpoint {checkpoint} is not a folder of a known file system: silver keeps its plans beside "
                "it, in a folder (on Databricks, of a volume), s3://, gs:// or abfss://"
            ) from error

    def load(self, batch_id: int) -> BatchPlan | None:
        path = self._path(batch_id)
        try:
            text = self._folder.read(path)
        except OSError as error:
            raise PlanError(
                f"cannot read the plan {self._folder.uri}/{path} ({error}): let the job read the folder of its "
                "checkpoint"
            ) from error
        if text is None:
            return None
        try:
            return BatchPlan.model_validate_json(self._with_newer(batch_id, text))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(key) for key in first["loc"])
            raise PlanError(
                f"the plan {path} was not written by this version ({place}: {first['msg']}): finish the batch with the "
                "version that wrote it, or begin with a new checkpoint and empty silver tables"
            ) from error

    def newest_before(self, batch_id: int) -> BatchPlan | None:
        """The plan of the newest earlier batch."""
        ids = [id_ for id_ in self._ids() if id_ < batch_id]
        return self.load(max(ids)) if ids else None

    def save(self, plan: BatchPlan) -> None:
        """Returns when the plan is completely on disk. Removes old plans."""
        path = self._path(plan.batch_id)
        try:
            plain, newer = _split(plan)
            # First, because the plan counts as saved as soon as its main file exists.
            self._folder.replace(self._newer_path(plan.batch_id), json.dumps(newer).encode())
            self._folder.replace(path, json.dumps(plain).encode())
            for old in sorted(self._ids())[:-KEPT]:
                self._folder.remove(self._path(old))
                self._folder.remove(self._newer_path(old))
        except (OSError, SinkError) as error:
            raise PlanError(
                f"cannot write the plan {self._folder.uri}/{path} ({error}): give the job a checkpoint in a folder "
                "that it may write and that has room"
            ) from error

    def _with_newer(self, batch_id: int, text: bytes) -> str | bytes:
        newer = self._folder.read(self._newer_path(batch_id))
        if newer is None:
            return text  # An older version wrote the plan.
        try:
            return json.dumps(_merged(json.loads(text), json.loads(newer)))
        except (ValueError, KeyError, TypeError, AttributeError):
            return text  # The main file is no plan, which its reader reports; or the older version wrote it again.

    def _ids(self) -> list[int]:
        stems = [name.removesuffix(".json") for name in self._folder.names() if name.endswith(".json")]
        return [int(stem) for stem in stems if stem.isdigit()]

    def _path(self, batch_id: int) -> str:
        return f"{batch_id}.json"

    def _newer_path(self, batch_id: int) -> str:
        return f"{batch_id}.newer"


def _split(plan: BatchPlan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan as older versions know it, and what only this one knows: they refuse unknown keys, and somebody may go
    back to them."""
    plain = plan.model_dump(mode="json")
    newer: dict[str, Any] = {"over_quota": plain.pop("over_quota"), "schemas": {}}
    for schema in plain["schemas"]:
        keys = {key: schema.pop(key) for key in _NEWER_KEYS}
        fields = {field["name"]: {key: field.pop(key) for key in _NEWER_FIELD_KEYS} for field in schema["fields"]}
        newer["schemas"][schema["name"]] = {"keys": keys, "fields": fields}
    return plain, newer


def _merged(plain: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    for schema in plain["schemas"]:
        found = newer["schemas"].get(schema["name"], {"keys": {}, "fields": {}})
        schema.update(found["keys"])
        for field in schema["fields"]:
            field.update(found["fields"].get(field["name"], {}))
    return {**plain, "over_quota": newer["over_quota"]}
