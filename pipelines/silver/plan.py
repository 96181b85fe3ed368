"""The plan of a silver batch: saved beside the checkpoint before the batch writes, and used again by its replay.

An interrupted batch thus continues as it began, even if the files were changed in between. The newest plan also records
the fields that payloads have added so far. Works with folders of a file system only, which includes volumes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from broker_edge.errors import PlanError, SettingsError
from pipelines.settings.yaml_file import Section
from pipelines.silver.rules import Rules
from pipelines.silver.schema import MessageSchema, SchemaField

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

    def __init__(self, checkpoint: str) -> None:
        if "://" in checkpoint:
            raise SettingsError(
                f"the checkpoint {checkpoint} is not a folder of a file system: silver keeps its plans beside it and "
                "needs one (on Databricks, a folder of a volume)"
            )
        self._folder = Path(checkpoint) / "plans"

    def load(self, batch_id: int) -> BatchPlan | None:
        path = self._path(batch_id)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PlanError(
                f"cannot read the plan {path}: {error.strerror}; let the job read the folder of its checkpoint"
            ) from error
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
        scratch = path.with_suffix(".new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with scratch.open("wb") as file:
                file.write(plan.model_dump_json().encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
            _sync_folder(self._folder)
            for old in sorted(self._ids())[:-KEPT]:
                self._path(old).unlink(missing_ok=True)
        except OSError as error:
            raise PlanError(
                f"cannot write the plan {path}: {error.strerror}; give the job a checkpoint in a folder that it may "
                "write and that has room"
            ) from error

    def _ids(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit()]

    def _path(self, batch_id: int) -> Path:
        return self._folder / f"{batch_id}.json"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
