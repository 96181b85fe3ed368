"""The promises of an OTA beyond those of a command: permissions, versions, one at a time, modes. The pure function
only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Artifact, Limits, Ota, Rollout, Selector, TargetState

S = TargetState
SIGNED = Artifact(
    name="fw", version="2.0", tenant="default", sha256="a" * 64, size_bytes=10, signature="b" * 128, key_id="k1"
)


def catalogue(*artifacts: Artifact) -> Mapping[tuple[str, str, str], Artifact]:
    return {artifact.key: artifact for artifact in artifacts}


def updating(*ids: str, artifact: Artifact = SIGNED, **ota: object) -> Engine:
    engine = Engine(devices=devices_of(*(ids or ("d1",))), artifacts=catalogue(artifact))
    order(engine, "a1", **ota)
    engine.tick()
    return engine


def order(engine: Engine, action_id: str, *, rollout: Rollout | None = None, **ota: object) -> None:
    wanted = Ota(**{"artifact_name": "fw", "artifact_version": "2.0", **ota})  # type: ignore[arg-type]
    rollout = rollout or Rollout()
    engine.actions.append(
        action_of(action_id, type="ota", selector=Selector(percentage=100), ota=wanted, rollout=rollout)
    )


def online(engine: Engine, offset: int, version: str, device_id: str = "d1") -> None:
    engine.tick(engine.report("ONLINE", offset, device_id=device_id, action_id="", attempt=0, version=version))


def test_command_names_the_artifact_the_mode_and_the_version_to_prove() -> None:
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(SIGNED), broker_up=False)
    order(engine, "a1", mode="soft")
    (publish,) = engine.tick().publishes
    body = json.loads(publish.value)
    assert (body["type"], body["mode"], body["target_version"]) == ("ota", "soft", "2.0")
    assert body["artifact"] == {"name": "fw", "version": "2.0", "sha256": "a" * 64, "size_bytes": 10}


def test_success_without_the_target_version_waits_for_the_version() -> None:
    engine = updating()
    engine.tick(engine.report("SUCCEEDED", 1))
    assert engine.target().state is S.IN_PROGRESS
    assert "it must still report version 2.0" in (engine.target().message or "")
    online(engine, 2, "1.0")
    assert engine.target().state is S.IN_PROGRESS
    online(engine, 3, "2.0")
    assert engine.target().state is S.SUCCEEDED


def test_success_with_the_target_version_is_success_and_with_another_a_failure() -> None:
    engine = updating("d1", "d2")
    engine.tick(
        engine.report("SUCCEEDED", 1, version="2.0"), engine.report("SUCCEEDED", 2, device_id="d2", version="1.9")
    )
    assert (engine.target("d1").state, engine.target("d2").state) == (S.SUCCEEDED, S.FAILED)
    assert "it runs version 1.9, not 2.0" in (engine.target("d2").message or "")


def test_download_only_needs_no_version() -> None:
    engine = updating(mode="download_only")
    engine.tick(engine.report("SUCCEEDED", 1, version="1.0"))
    assert engine.target().state is S.SUCCEEDED


def test_device_without_the_right_to_the_artifact_is_skipped() -> None:
    engine = Engine(devices={**devices_of("d1", labels={"hw": "b"}), **devices_of("d2", labels={"hw": "a"})})
    engine.artifacts = catalogue(replace(SIGNED, labels={"hw": "b"}))
    order(engine, "a1")
    engine.tick()
    assert engine.sent() == ["d1"]
    assert engine.target("d2").message == "not allowed to install artifact fw 2.0: it is for devices with hw=b"
    engine = updating("d1", "d2", artifact=replace(SIGNED, device_ids=frozenset({"d2"})))
    assert engine.sent() == ["d2"]


def test_preconditions_look_at_what_the_device_runs() -> None:
    engine = Engine(devices=devices_of("d1", "d2", "d3", "d4"), artifacts=catalogue(SIGNED))
    online(engine, 1, "1.0", "d1")
    online(engine, 2, "0.9", "d2")
    online(engine, 3, "2.0", "d3")
    order(engine, "a1", requires_versions=("1.0",))
    engine.tick()
    said = {id_: target.message for id_, target in engine.state.targets["a1"].items()}
    assert engine.sent() == ["d1"]
    assert said["d2"] == "version 1.0 is required, but it runs 0.9"
    assert said["d3"] == "it already runs version 2.0"
    assert said["d4"] == "version 1.0 is required, but it has not reported its version"


def test_one_ota_is_under_way_per_device() -> None:
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(SIGNED, replace(SIGNED, version="3.0")))
    order(engine, "a1")
    order(engine, "a2", artifact_version="3.0")
    engine.tick()
    engine.tick()
    assert engine.published == ["a1/d1/1"]
    engine.tick(engine.report("SUCCEEDED", 1, version="2.0"))
    assert engine.published == ["a1/d1/1", "a2/d1/1"]


def test_superseding_ota_cancels_the_older_one_and_waits_for_its_end() -> None:
    engine = Engine(devices=devices_of("d1", "d2"), artifacts=catalogue(SIGNED, replace(SIGNED, version="3.0")))
    order(engine, "a1")
    engine.tick()
    engine.tick(engine.report("IN_PROGRESS", 1))
    order(engine, "a2", artifact_version="3.0", supersede=True)
    engine.tick()
    assert engine.target("d1").message == "superseded by a2"
    engine.tick()
    # d2 never had the old command, and its cancel is in the log: the new one may follow. d1 has to answer first.
    assert engine.published[2:] == ["a1/d1/1/cancel", "a1/d2/1/cancel", "a2/d2/1"]
    engine.tick(engine.report("CANCELLED", 2))
    assert engine.published[-1] == "a2/d1/1"


def test_force_turns_a_soft_update_into_a_forced_one_once() -> None:
    engine = updating("d1", "d2", mode="soft")
    engine.tick(engine.report("ACCEPTED", 1))
    engine.ask("force")
    engine.tick()
    engine.tick(engine.report("IN_PROGRESS", 2))
    engine.ask("force")
    engine.tick()
    assert engine.published == ["a1/d1/1", "a1/d2/1", "a1/d1/1/force", "a1/d2/1/force"]
    assert (engine.target().mode, engine.target().force_log_id) == ("soft", ""), "the command keeps its bytes"


def test_force_of_a_command_on_its_way_keeps_its_bytes_and_follows_it() -> None:
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(SIGNED), broker_up=False)
    order(engine, "a1", mode="soft")
    (first,) = engine.tick().publishes
    engine.ask("force")
    (again,) = engine.tick().publishes
    assert again == first
    engine.broker_up = True
    engine.tick()
    engine.tick()
    assert engine.published == ["a1/d1/1", "a1/d1/1/force"]


@pytest.mark.parametrize("broker_up", [True, False])
def test_a_device_that_had_downloaded_before_it_learnt_of_the_force_gets_another_attempt(broker_up: bool) -> None:
    """It did what it was told. That is no error, and no use of `retries`; what is wanted now is another command."""
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(SIGNED))
    order(engine, "a1", mode="download_only", rollout=Rollout(abort_percentage=10))
    engine.tick()
    engine.ask("force")
    engine.broker_up = broker_up
    engine.tick(engine.report("IN_PROGRESS", 1))
    engine.broker_up = True
    engine.tick(engine.report("SUCCEEDED", 2, version="1.0"))
    target = engine.target()
    assert (target.attempt, target.mode, target.erred, engine.phase()) == (2, "forced", False, "RUNNING")
    engine.tick(engine.report("SUCCEEDED", 3, version="1.0"))
    assert engine.target().attempt == 2, "the first attempt reports once more"
    engine.tick(engine.report("SUCCEEDED", 4, version="1.0", attempt=2))
    assert engine.target().state is S.FAILED, "an attempt that was to install has no such excuse"


@pytest.mark.parametrize(("version", "state"), [("1.0", S.CANCELLED), ("2.0", S.SUCCEEDED)])
def test_a_device_that_had_downloaded_before_its_cancel_is_no_error(version: str, state: TargetState) -> None:
    engine = updating(mode="download_only")
    engine.ask("force")
    engine.tick()
    engine.cancel()
    engine.tick()
    engine.tick(engine.report("SUCCEEDED", 2, version=version))
    target = engine.target()
    assert (target.attempt, target.state, engine.phase()) == (1, state, "ENDED")
    late = "succeeded before it could be stopped (cancelled by ann)"
    assert target.message == ("cancelled by ann: it had only downloaded" if version == "1.0" else late)


def test_a_device_that_leaves_after_its_download_is_removed() -> None:
    engine = updating(mode="download_only")
    engine.ask("force")
    engine.tick()
    engine.devices = devices_of("d2")
    engine.broker_up = False
    engine.tick()
    engine.tick(engine.report("SUCCEEDED", 2, version="1.0"))
    assert engine.target().state is S.REMOVED


@pytest.mark.parametrize(
    ("artifact", "limits", "said"),
    [
        (replace(SIGNED, version="9"), Limits(), "artifact fw 2.0 is not in the table artifacts of tenant default"),
        (replace(SIGNED, tenant="other"), Limits(), "is not in the table artifacts of tenant default"),
        (replace(SIGNED, sha256="short"), Limits(), "artifact fw 2.0 has no valid sha256"),
        (replace(SIGNED, signature=None), Limits(), "artifact fw 2.0 is not signed"),
        (replace(SIGNED, signature="bm8="), Limits(), "has a signature that is not 64 bytes"),
        (SIGNED, Limits(trusted_keys=frozenset({"k2"})), "is signed with key k1, which is not among"),
    ],
)
def test_artifact_that_cannot_be_trusted_refuses_the_action(artifact: Artifact, limits: Limits, said: str) -> None:
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(artifact), limits=limits)
    order(engine, "a1")
    engine.tick()
    assert (engine.phase(), engine.published) == ("REFUSED", [])
    assert said in engine.state.actions["a1"].message


def test_unsigned_artifact_is_installed_where_the_operator_allows_it() -> None:
    engine = Engine(
        devices=devices_of("d1"),
        artifacts=catalogue(replace(SIGNED, signature=None)),
        limits=Limits(allow_unsigned=True),
    )
    order(engine, "a1")
    engine.tick()
    assert engine.sent() == ["d1"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "ota"}, "type 'ota' needs artifact_name"),
        ({"type": "ota", "ota": Ota("fw", "2.0", mode="gentle")}, "mode must be one of forced, soft, download_only"),
        ({"ota": Ota("fw", "2.0")}, "artifact_name and artifact_version are only for type 'ota'"),
        ({"ota": Ota(supersede=True)}, "supersede is only for type 'ota'"),
        ({"type": "dance"}, "type 'dance' is not supported"),
    ],
)
def test_columns_that_do_not_fit_the_type_are_refused(fields: dict[str, object], said: str) -> None:
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(SIGNED))
    engine.actions.append(action_of(**fields))
    engine.tick()
    assert said in engine.state.actions["a1"].message


def test_status_of_a_device_that_nobody_described_leaves_no_row() -> None:
    engine = Engine(devices=devices_of("d1"))
    online(engine, 1, "1.0", "stranger")
    online(engine, 2, "1.0", "d1")
    assert list(engine.state.facts) == ["d1"]


def test_what_a_device_runs_comes_from_its_newest_status() -> None:
    engine = Engine(devices=devices_of("d1"))
    online(engine, 9, "2.0")
    online(engine, 5, "1.0")
    assert engine.state.facts["d1"].version == "2.0"


@pytest.mark.parametrize("says", ["SUCCEEDED", "ONLINE"])
def test_device_that_runs_the_target_version_after_its_attempt_was_given_up_has_succeeded(says: str) -> None:
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(SIGNED), limits=Limits(queued_s=30))
    order(engine, "a1", rollout=Rollout(retries=1, retry_backoff_s=60))
    engine.tick()
    engine.tick(after_s=30)
    assert (engine.target().state, engine.target().attempt) == (S.PENDING, 2)
    engine.tick(engine.report("SUCCEEDED", 1, attempt=1))
    online(engine, 2, "1.9")
    assert engine.target().state is S.PENDING, "it has not reported the version"
    if says == "ONLINE":
        online(engine, 3, "2.0")
    else:
        engine.tick(engine.report("SUCCEEDED", 3, attempt=1, version="2.0"))
    assert (engine.target().state, engine.target().late, engine.phase()) == (S.SUCCEEDED, True, "ENDED")
    engine.tick(after_s=120)
    assert engine.published == ["a1/d1/1"]


def test_download_that_is_done_late_needs_no_version() -> None:
    engine = Engine(devices=devices_of("d1"), artifacts=catalogue(SIGNED), limits=Limits(queued_s=30))
    order(engine, "a1", mode="download_only", rollout=Rollout(retries=1))
    engine.tick()
    engine.tick(after_s=30)
    online(engine, 1, "2.0")
    assert engine.target().state is S.PENDING
    engine.tick(engine.report("SUCCEEDED", 2, attempt=1, version="1.0"))
    assert engine.target().state is S.SUCCEEDED
