"""The plan of a silver batch: saved beside the checkpoint before the batch writes, and used again by its replay.

An interrupted batch thus continues as it began, even if the files were changed in between. The newest plan also records
the fields that payloads have added so far.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationError

from broker_edge.errors import PlanError, SettingsError, SinkError
from pipelines.settings.yaml_file import Section
from pipelines.silver.rules import Rules
from pipelines.silver.schema import MessageSchema, SchemaField
from sinks.folder import TableFolder
from sinks.store import StoreAccess

KEPT = 20
"""Only the newest batch can be replayed; the other plans are kept for inspection."""


class BatchPlan(Section):
    """The schemas, with the fields they had at that time, and the rules."""

    version: Literal[1] = 1
    batch_id: int
    schemas: list[MessageSchema]
    rules: list[Rules]

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
            return BatchPlan.model_validate_json(text)
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
            self._folder.replace(path, plan.model_dump_json().encode())
            for old in sorted(self._ids())[:-KEPT]:
                self._folder.remove(self._path(old))
        except (OSError, SinkError) as error:
            raise PlanError(
                f"cannot write the plan {self._folder.uri}/{path} ({error}): give the job a checkpoint in a folder "
                "that it may write and that has room"
            ) from error

    def _ids(self) -> list[int]:
        stems = [name.removesuffix(".json") for name in self._folder.names() if name.endswith(".json")]
        return [int(stem) for stem in stems if stem.isdigit()]

    def _path(self, batch_id: int) -> str:
        return f"{batch_id}.json"
