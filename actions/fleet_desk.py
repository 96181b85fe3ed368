"""What users do with the tables of actions: describe devices, insert actions and requests, follow the results.

SQL or any other Delta writer can do the same; the engine does not depend on this module. Needs no JVM.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from actions.audit import audited
from actions.engine import Action, Artifacts, EngineState, Limits, Logs
from actions.engine.action import shortened
from actions.engine.foresight import Foresight, foresee
from actions.engine.requests import is_creator
from actions.engine.validity import refusal, refusals, unknown_dependency
from actions.history import History
from actions.rows import (
    action_of,
    artifact_of,
    device_state_of,
    devices_of,
    state_of,
    target_of,
    tenant_of,
)
from actions.selectors import Selectors, merged
from broker_edge.errors import RefusedError, SettingsError
from broker_edge.escape import moment
from sinks.probe import require_safe_commits, require_writable
from sinks.rows import Row, arrow_of, now_us
from sinks.sql_text import literal
from sinks.store import StoreAccess
from sinks.tables import (
    ACTION_REQUESTS,
    ACTIONS,
    ARTIFACTS,
    DEFAULT_TENANT,
    DEVICES,
    FieldTable,
    create_by_path,
    update_by_path,
    uri_of,
)
from sinks.torn_commits import repair_tables


@dataclass(frozen=True, slots=True)
class Order:
    """An action as a user orders it; None means not given. The fields are the columns of `actions`, documented there;
    times are Unix µs. `waves` is a list of objects, see docs/actions.md."""

    name: str
    params: Mapping[str, Any] | None = None
    type: str = "command"
    device_ids: Sequence[str] | None = None
    labels: Mapping[str, str] | None = None
    groups: Sequence[str] | None = None
    label_expression: str | None = None
    reported_expression: str | None = None
    selector: str | None = None
    """The name of a saved selector (`actions.selectors`)."""
    percentage: float | None = None
    membership: str | None = None
    waves: Sequence[Mapping[str, Any]] | None = None
    needs_approval: bool | None = None
    rate_per_minute: int | None = None
    max_in_flight: int | None = None
    abort_percentage: float | None = None
    abort_min_reported: int | None = None
    not_before_us: int | None = None
    deadline_us: int | None = None
    maintenance_window: str | None = None
    timeout_queued_s: int | None = None
    timeout_delivered_s: int | None = None
    timeout_in_progress_s: int | None = None
    timeout_step_s: int | None = None
    retries: int | None = None
    retry_backoff_s: int | None = None
    priority: int | None = None
    depends_on: Sequence[str] | None = None
    artifact_name: str | None = None
    artifact_version: str | None = None
    mode: str | None = None
    supersede: bool | None = None
    requires_versions: Sequence[str] | None = None
    target_version: str | None = None

    def row(self) -> dict[str, Any]:
        """The row for the table `actions`, without the fields that only this class uses."""
        row: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = list(value)
            row[field.name.removesuffix("_us")] = value
        row["params"] = json.dumps(self.params or {})
        row["waves"] = None if self.waves is None else json.dumps([dict(wave) for wave in self.waves])
        return row


class FleetDesk:
    """The tables under `root`. Raises SetupError if they do not exist, unless `create` is set. `by` is the user's name,
    `confirmed_by` the log id of the broker that verified it."""

    def __init__(
        self,
        root: Path | str,
        *,
        by: str = "",
        confirmed_by: str | None = None,
        tenant: str = DEFAULT_TENANT,
        create: bool = False,
        access: StoreAccess | None = None,
    ) -> None:
        self._root, self._by, self._tenant = root, by, tenant
        self._confirmed_by = confirmed_by
        # Without options, those of the environment.
        self._access = access or StoreAccess.of({})
        self.history = History(root, self._access)
        """The rows of this action or that, also the archived ones."""
        repair_tables(str(root))
        if create:
            require_safe_commits(str(root), self._access)
            create_by_path(root, storage_options=self._access.deltalake())

    def describe_devices(self, devices: Mapping[str, Mapping[str, str]]) -> int:
        """Adds a row with labels to `devices` for each id that has none. Returns the number of added rows."""
        known = {row["device_id"] for row in self._query("devices", "SELECT device_id FROM devices")}
        rows = [
            {
                "device_id": id_,
                "tenant": self._tenant,
                "labels": labels,
                "created_by": self._by,
                "created_at": now_us(),
            }
            for id_, labels in devices.items()
            if id_ not in known
        ]
        if rows:
            self._append(DEVICES, rows)
        return len(rows)

    def order(self, order: Order, *, action_id: str | None = None) -> str:
        """Insert an action and return its id. Raises RefusedError if the engine would refuse it, whatever artifacts
        there are."""
        row = self._row(order, action_id)
        wrong = refusal(action_of(row, commit_version=0))
        if wrong is not None:
            raise RefusedError(f"the action was not inserted: {wrong}")
        self._append(ACTIONS, [row])
        return str(row["action_id"])

    def plan(
        self, order: Order, *, action_id: str | None = None, logs: Logs | None = None, limits: Limits | None = None
    ) -> Foresight:
        """What the engine would do with this order now, with these brokers and limits (default: those of an engine
        without settings) and beside the open updates of other actions; or all reasons to refuse it. Writes nothing.

        Waves and percentages depend on a hash of the action's id, so they are the same in a later `order` with this id.
        """
        action = action_of(self._row(order, action_id), commit_version=0)
        updates = self._open_updates() if action.is_ota else []
        needed = {*action.rollout.depends_on, *(update.action_id for update in updates)} - {action.action_id}
        rows = [state_of(row) for id_ in needed for row in self._query("action_state", _where("action_state", id_))]
        targets = {id_: {row["device_id"]: target_of(row) for row in self.targets(id_)} for id_ in needed}
        known = self.device_states()
        facts = [device_state_of(row) for row in known if row["log_id"] is not None]
        state = EngineState(
            actions={row.action_id: row for row in rows},
            targets=targets,
            facts={fact.device_id: fact for fact in facts},
        )
        owners = {row["device_id"]: tenant_of(row) for row in known}
        devices = devices_of(self._query("devices", "SELECT * FROM devices"), owners)
        artifacts = self._artifacts()
        wrong = [shortened(one) for one in refusals(action, artifacts, limits)]
        wrong += [unknown_dependency(one) for one in action.rollout.depends_on if one not in state.actions]
        wrong += [late] if (late := _too_late(action)) is not None else []
        if wrong:
            said = f"refused, nothing was sent: {'; '.join(wrong)}"
            return Foresight(refused=said, message=said, devices=())
        return foresee(action, state, devices, artifacts, now_us(), logs=logs, limits=limits, updates=updates)

    def refusal(self, order: Order, *, action_id: str | None = None, limits: Limits | None = None) -> str | None:
        """Why the engine would refuse this order with the artifacts and actions of now, or time out all of its targets;
        or None. Without `limits`, which say whose signatures count, signatures are left to the engine."""
        action = action_of(self._row(order, action_id), commit_version=0)
        wrong = refusal(action, self._artifacts(), limits or Limits(allow_unsigned=True)) or _too_late(action)
        if wrong is not None:
            return wrong
        for needed in action.rollout.depends_on:
            if self.stored(needed) is None and self.action(needed) is None:
                return unknown_dependency(needed)
        return None

    def _artifacts(self) -> Artifacts:
        found = [artifact_of(row) for row in self._query("artifacts", "SELECT * FROM artifacts")]
        return {artifact.key: artifact for artifact in found}

    def _open_updates(self) -> list[Action]:
        """The actions of type ota that have begun and not ended, as they began."""
        begun = self._query("action_state", "SELECT action_id, digest FROM action_state WHERE ended_at IS NULL")
        digests = {row["action_id"]: row["digest"] for row in begun}
        rows = self._query("actions", "SELECT * FROM actions WHERE type = 'ota'") if digests else []
        found = [action_of(row, commit_version=0) for row in rows if row["action_id"] in digests]
        return list({one.action_id: one for one in found if one.digest == digests[one.action_id]}.values())

    def resolved(self, order: Order) -> Order:
        """The order with the criteria for which the name of its saved selector stands now. Raises NotFoundError if
        nobody has saved it."""
        if order.selector is None:
            return order
        saved = Selectors(self._root, tenant=self._tenant, access=self._access).get(order.selector)
        return replace(order, **merged(order.row(), saved))

    def _row(self, order: Order, action_id: str | None) -> dict[str, Any]:
        return {
            **self.resolved(order).row(),
            "action_id": action_id or f"{order.name}-{uuid.uuid4().hex[:12]}",
            "tenant": self._tenant,
            "created_by": self._by,
            "confirmed_by": self._confirmed_by,
            "created_at": now_us(),
        }

    def ask(
        self, kind: str, action_id: str, *, device_id: str | None = None, reason: str = "", wave: int | None = None
    ) -> str:
        """Insert a request (pause, resume, cancel, force, retry, approve, remove) and return its id. `wave`, from 1, is
        the one that an approval is for."""
        request_id = uuid.uuid4().hex
        row = {
            "request_id": request_id,
            "tenant": self._tenant,
            "action_id": action_id,
            "device_id": device_id,
            "kind": kind,
            "by": self._by,
            "confirmed_by": self._confirmed_by,
            "at": now_us(),
            "reason": reason,
            "wave": wave,
        }
        self._append(ACTION_REQUESTS, [row])
        return request_id

    def approve(self, action_id: str, *, wave: int | None = None, reason: str = "") -> str:
        """Insert an approval and return the id of the request. Without `wave` (from 1) it is for the one that waits
        now, so that an approval which is read late does not open the gate after it. Raises RefusedError if `by` created
        the action: the engine would refuse that."""
        stored, row = self.stored(action_id), self.action(action_id)
        if stored is not None and is_creator(self._by, stored["created_by"] or ""):
            raise RefusedError(f"nothing was requested: {self._by} created {action_id}: another person must approve it")
        if wave is None and row is not None and row["phase"] == "WAITING_APPROVAL":
            wave = row["wave"] + 2
        return self.ask("approve", action_id, reason=reason, wave=wave)

    def cancel(self, action_id: str, *, device_id: str | None = None, reason: str = "") -> str:
        """Request a cancel of all targets, or of one. Returns the id of the request."""
        return self.ask("cancel", action_id, device_id=device_id, reason=reason)

    def offer(
        self,
        manifest: Mapping[str, Any],
        *,
        labels: Mapping[str, str] | None = None,
        device_ids: Sequence[str] | None = None,
    ) -> None:
        """Insert a row into `artifacts` for a manifest (format: docs/artifacts.md), which allows devices to install it.
        With `labels` or `device_ids` only those devices may. Raises SettingsError if it is not a manifest, RefusedError
        if the name and version already exist."""
        try:
            what, policy = manifest["artifact"], manifest.get("policy") or {"signatures": []}
            signed: Mapping[str, Any] = manifest.get("signature") or next(iter(policy["signatures"]), {})
            name, version, sha256, size = (
                str(what["name"]),
                str(what["version"]),
                str(what["sha256"]),
                int(what["size"]),
            )
            signature, key_id = signed.get("value"), signed.get("key_id")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SettingsError(f"this is not the manifest of an artifact: {error!r}") from error
        self.require_not_withdrawn(name, version)
        if self._versions(name, version):
            raise RefusedError(f"artifact {name} {version} is already in the table: a version is final")
        row = {
            "name": name,
            "version": version,
            "tenant": self._tenant,
            "size_bytes": size,
            "sha256": sha256,
            "signature": signature,
            "key_id": key_id,
            "labels": labels,
            "device_ids": None if device_ids is None else list(device_ids),
            "created_by": self._by,
            "created_at": now_us(),
        }
        self._append(ARTIFACTS, [row])

    def require_not_withdrawn(self, name: str, version: str) -> None:
        """Raises RefusedError if somebody has withdrawn this version: it is not offered again."""
        for known in self._versions(name, version):
            if known.get("withdrawn_at") is not None:
                who = known["withdrawn_by"] or "somebody"
                raise RefusedError(f"artifact {name} {version} was withdrawn by {who}: push it under another version")

    def has_offered(self, name: str, version: str, sha256: str) -> bool:
        """Whether the table `artifacts` has this version with these bytes, and nobody has withdrawn it."""
        rows = self._versions(name, version)
        return any(row["sha256"] == sha256 and row.get("withdrawn_at") is None for row in rows)

    def _versions(self, name: str, version: str) -> list[dict[str, Any]]:
        where = f"name = {literal(name)} AND version = {literal(version)}"
        rows = self._query("artifacts", f"SELECT * FROM artifacts WHERE {where}")
        return [row for row in rows if (row["tenant"] or DEFAULT_TENANT) == self._tenant]

    def audit(self, action_id: str) -> list[dict[str, Any]]:
        """Requests with their authors and times, the engine's events, and the end, by time. Without reports of devices
        and brokers."""
        made = self._query("actions", _where("actions", action_id))
        asked = self.history.requests(f"action_id = {literal(action_id)}")
        said = self.events(f"action_id = {literal(action_id)} AND source = 'engine'")
        late = self.history.targets(f"action_id = {literal(action_id)} AND late", "SELECT updated_at FROM targets")
        return audited(made, asked, said, self.action(action_id), [target["updated_at"] for target in late])

    def events(self, where: str) -> list[dict[str, Any]]:
        """The events that fulfil this condition, by id, also the archived ones."""
        return self.history.events(where)

    def actions(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """The newest rows of `action_state`, newest first."""
        return self._query("action_state", f"SELECT * FROM action_state ORDER BY started_at DESC LIMIT {int(limit)}")

    def action(self, action_id: str) -> dict[str, Any] | None:
        """The row of `action_state`, or None until an engine has processed the action."""
        return next(iter(self._query("action_state", _where("action_state", action_id))), None)

    def stored(self, action_id: str) -> dict[str, Any] | None:
        """The row of `actions`, or None. If several rows have this id, the earliest one."""
        return next(iter(self.query("actions", f"{_where('actions', action_id)} ORDER BY created_at")), None)

    def query(self, table: str, sql: str) -> list[dict[str, Any]]:
        """The rows of `sql`, which reads one of the tables by its name. Raises SetupError if there is no such table."""
        return self._query(table, sql)

    def device_states(self) -> list[dict[str, Any]]:
        """The rows of `device_state`, by device id: the last report and the firmware of each device."""
        return self._query("device_state", "SELECT * FROM device_state ORDER BY device_id")

    def waves(self, action_id: str) -> list[dict[str, Any]]:
        """The number of targets by wave and state: `wave` (from 0), `state`, `number`."""
        select = "SELECT wave, state, count(*) AS number FROM targets GROUP BY wave, state ORDER BY wave, state"
        return self.history.targets(f"action_id = {literal(action_id)}", select)

    def targets(self, action_id: str) -> list[dict[str, Any]]:
        """The targets of the action, by device id, also the archived ones."""
        return self.history.targets(f"action_id = {literal(action_id)}", "SELECT * FROM targets ORDER BY device_id")

    def _append(self, table: FieldTable, rows: Iterable[Row]) -> None:
        uri = uri_of(self._root, table.name)
        options = self._access.deltalake()
        if not DeltaTable.is_deltatable(uri, storage_options=options):
            raise self.history.missing(table.name)
        require_safe_commits(str(self._root), self._access)
        require_writable(uri)
        # A table of an older version may lack a column.
        update_by_path(DeltaTable(uri, storage_options=options), table)
        write_deltalake(uri, arrow_of(rows, table), mode="append", storage_options=options)

    def _query(self, name: str, sql: str) -> list[dict[str, Any]]:
        return self.history.query(name, sql)


def _too_late(action: Action) -> str | None:
    if action.deadline_us is None or action.deadline_us > now_us():
        return None
    return f"deadline {moment(action.deadline_us)} has passed"


def _where(table: str, action_id: str) -> str:
    return f"SELECT * FROM {table} {_of(action_id)}"


def _of(action_id: str) -> str:
    return f"WHERE action_id = {literal(action_id)}"
