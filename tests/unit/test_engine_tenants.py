"""A tenant reads the reports at its own brokers, where anybody it trusts may say anything: they count for its own
targets and devices alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of, started

from actions.columns import device_states_in, targets_in
from actions.engine import Device, Logs, Selector, Served, TargetState
from actions.rows import device_state_of, device_states_table, state_of, states_table, target_of, targets_table
from sinks.rows import rows_of

S = TargetState


def reasons(engine: Engine) -> list[str]:
    return [entry.reason for entry in engine.last.quarantine]


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "REJECTED", "CANCELLED", "ACCEPTED"])
def test_a_report_that_another_tenant_has_read_ends_no_target(state: str) -> None:
    engine = started()
    engine.tick(engine.report(state, 7, tenant="north", log_id="of-north"))
    assert engine.target().state is S.QUEUED
    (reason,) = reasons(engine)
    assert "a report that tenant north has read, about a target of tenant default" in reason
    engine.tick(engine.report("SUCCEEDED", 8))
    assert (engine.target().state, reasons(engine)) == (S.SUCCEEDED, [])


def test_a_receipt_that_another_tenant_has_read_delivers_nothing() -> None:
    engine = started()
    engine.tick(engine.receipt(7, tenant="north", command_partition=2, command_offset=100))
    assert engine.target().state is S.QUEUED
    assert len(reasons(engine)) == 1


def test_a_report_that_waited_counts_by_the_same_rule() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.tick(engine.report("SUCCEEDED", 7, tenant="north"))
    engine.actions.append(action_of())
    engine.tick()
    engine.tick()
    assert engine.target().state is S.QUEUED


@pytest.mark.parametrize("state", ["ONLINE", "SUCCEEDED"])
def test_no_device_moves_to_the_broker_of_another_tenant(state: str) -> None:
    """The log of its newest status is where the commands of a device go."""
    brokers = (Served("home", "of-home"), Served("north", "of-north"))
    engine = Engine(devices=devices_of("d1"), logs=Logs(brokers))
    engine.tick(engine.report("ONLINE", 1, log_id="of-home", action_id="", attempt=0, version="1"))
    forged = engine.report(state, 9, log_id="of-north", tenant="north", action_id="", attempt=0, version="2")
    engine.tick(forged)
    fact = engine.state.facts["d1"]
    assert (fact.log_id, fact.version, fact.tenant) == ("of-home", "1", "default")
    engine.actions.append(action_of())
    engine.tick()
    assert list(engine.contents) == ["of-home"]


def test_a_device_away_from_the_table_keeps_its_tenant() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.tick(engine.report("ONLINE", 1, action_id="", attempt=0, version="1"))
    engine.devices = {}
    engine.tick(engine.report("ONLINE", 2, action_id="", attempt=0, version="2", tenant="north"))
    assert engine.state.facts["d1"].version == "1"


def test_what_a_device_reported_to_its_earlier_tenant_counts_no_more() -> None:
    """That tenant could have its broker get the commands of the new one, or say that they are not needed."""
    brokers = (Served("home", "of-home"), Served("north", "of-north"))
    north = {id_: replace(one, tenant="north") for id_, one in devices_of("d1").items()}
    engine = Engine(devices=north, logs=Logs(brokers))
    about_itself = {"action_id": "", "attempt": 0}
    engine.tick(engine.report("ONLINE", 1, tenant="north", log_id="of-north", version="2", **about_itself))
    engine.devices = devices_of("d1")
    engine.actions.append(action_of())
    engine.tick()
    assert engine.contents == {}
    assert "no log known yet" in (engine.target().message or "")
    engine.tick(engine.report("ONLINE", 1, log_id="of-home", **about_itself))
    assert (list(engine.contents), engine.state.facts["d1"].version) == (["of-home"], None)


def test_a_silent_device_away_from_the_table_keeps_its_tenant() -> None:
    """Its rows are away for a moment, and it has not reported yet. Its log would be that of another tenant."""
    ids = [f"d{number}" for number in range(1, 11)]
    engine = Engine(devices=devices_of(*ids))
    engine.actions.append(action_of(selector=Selector(device_ids=tuple(ids))))
    engine.tick()
    engine.devices = {}
    engine.tick()
    about_itself = {"action_id": "", "attempt": 0}
    engine.tick(engine.report("ONLINE", 1, tenant="north", log_id="of-north", **about_itself))
    assert "d1" not in engine.state.facts
    engine.tick(engine.report("ONLINE", 2, **about_itself))
    assert engine.state.facts["d1"].tenant == "default"


def test_each_tenant_ends_its_own_targets() -> None:
    north: Mapping[str, Device] = {id_: replace(one, tenant="north") for id_, one in devices_of("d2").items()}
    engine = Engine(devices={**devices_of("d1"), **north})
    engine.actions += [action_of(), action_of("a2", tenant="north", selector=Selector(device_ids=("d2",)))]
    engine.tick()
    engine.tick(
        engine.report("SUCCEEDED", 1),
        engine.report("SUCCEEDED", 2, device_id="d2", action_id="a2", tenant="north", log_id="of-north"),
    )
    assert (engine.target().state, engine.target("d2", "a2").state) == (S.SUCCEEDED, S.SUCCEEDED)
    assert engine.state.facts["d2"].tenant == "north"


def test_null_is_the_default_tenant_in_every_row_of_the_engine() -> None:
    """Rows of an older version, and of people, may have null."""
    engine = started()
    engine.tick(engine.report("ONLINE", 1, action_id="", attempt=0))
    target, state, fact = engine.target(), engine.state.actions["a1"], engine.state.facts["d1"]
    tables = (
        targets_table([replace(target, tenant=None)]),  # type: ignore[arg-type]
        states_table([replace(state, tenant=None)]),  # type: ignore[arg-type]
        device_states_table([replace(fact, tenant=None)]),  # type: ignore[arg-type]
    )
    targets, states, facts = ([dict(row) for row in rows_of(table)] for table in tables)
    assert target_of(targets[0]) == target
    assert state_of(states[0]) == state
    assert device_state_of(facts[0]) == fact
    (batch,), (of_facts,) = tables[0].to_batches(), tables[2].to_batches()
    assert list(targets_in(batch, str)) == [target]
    assert list(device_states_in(of_facts, str)) == [fact]
