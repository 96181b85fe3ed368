"""Saved selectors: an action gets a copy of the criteria, keeps the name, and never changes with the selector."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Selector
from actions.fleet_desk import FleetDesk, Order
from actions.rollout_file import Rollout
from actions.rollouts import apply
from actions.rows import action_of as action_of_row
from actions.selectors import Selectors
from actions.store import DeltalakeStore
from broker_edge.errors import NotFoundError, RefusedError, SettingsError
from headwater_cli import main

OLD = Selector(label_expression="site = roof", reported_expression="version < 2.0.0")


@pytest.fixture
def desk(tmp_path: Path) -> FleetDesk:
    return FleetDesk(tmp_path, by="ann", create=True)


@pytest.fixture
def selectors(tmp_path: Path, desk: FleetDesk) -> Selectors:
    return Selectors(tmp_path, tenant="default", by="ann")


def test_action_gets_a_copy_of_the_criteria_and_the_audit_says_what_the_name_stood_for(
    desk: FleetDesk, selectors: Selectors
) -> None:
    selectors.save("old-roofs", OLD)
    id_ = desk.order(Order("echo", selector="old-roofs", percentage=10.0))
    row = desk.stored(id_)
    assert row is not None
    stored = action_of_row(row, commit_version=0).selector
    assert (stored.label_expression, stored.reported_expression) == ("site = roof", "version < 2.0.0")
    assert (stored.percentage, stored.saved) == (10.0, "old-roofs")
    (created,) = desk.audit(id_)
    what = "label_expression site = roof and reported_expression version < 2.0.0 and percentage 10"
    assert created["text"] == f"echo; selector old-roofs: {what}"


def test_selector_that_is_saved_again_changes_later_actions_only(desk: FleetDesk, selectors: Selectors) -> None:
    selectors.save("roofs", Selector(labels={"site": "roof"}, groups=("a", "b")))
    first = desk.order(Order("echo", selector="roofs"))
    selectors.save("roofs", Selector(device_ids=("d1",)))
    second = desk.order(Order("echo", selector="roofs"))
    rows = [desk.stored(first), desk.stored(second)]
    found = [action_of_row(row, commit_version=0).selector for row in rows if row is not None]
    assert found[0] == Selector(labels={"site": "roof"}, groups=("a", "b"), saved="roofs")
    assert found[1] == Selector(device_ids=("d1",), saved="roofs")


def test_unknown_removed_or_foreign_name_is_refused_in_a_sentence_and_inserts_nothing(
    tmp_path: Path, desk: FleetDesk, selectors: Selectors
) -> None:
    selectors.save("roofs", OLD)
    selectors.save("gone", OLD)
    selectors.remove("gone")
    Selectors(tmp_path, tenant="north").save("norths", OLD)
    for name in ("gone", "norths", "rofs"):
        with pytest.raises(NotFoundError) as error:
            desk.order(Order("echo", selector=name), action_id=name)
        assert str(error.value) == f"there is no saved selector {name} of tenant default; there are: roofs"
        assert desk.stored(name) is None
    with pytest.raises(NotFoundError):
        selectors.remove("gone")


def test_criterion_in_both_places_is_refused(desk: FleetDesk, selectors: Selectors) -> None:
    selectors.save("roofs", OLD)
    with pytest.raises(RefusedError, match="the saved selector roofs has label_expression already: leave it out"):
        desk.order(Order("echo", selector="roofs", label_expression="old"))


@pytest.mark.parametrize(
    ("name", "selector", "said"),
    [
        ("x", Selector(), "the selector was not saved: no selector: give device_ids"),
        ("x", Selector(reported_expression="site = roof"), "reported_expression has 'site' where version"),
        ("", OLD, "1 to 256 printable characters"),
        ("a\nb", OLD, "1 to 256 printable characters"),
        ("n" * 257, OLD, "1 to 256 printable characters"),
    ],
)
def test_wrong_selector_is_not_saved(selectors: Selectors, name: str, selector: Selector, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        selectors.save(name, selector)
    assert said in str(error.value)
    assert selectors.all() == []


def test_row_that_has_only_the_name_is_refused() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of(selector=Selector(saved="roofs")))
    engine.tick()
    assert engine.state.actions["a1"].phase == "REFUSED"
    assert "selector is only the name 'roofs': insert its criteria too" in engine.state.actions["a1"].message


def test_tables_of_an_older_version_work_without_the_table(tmp_path: Path, desk: FleetDesk) -> None:
    shutil.rmtree(tmp_path / "selectors")
    DeltalakeStore(tmp_path).claim()
    selectors = Selectors(tmp_path, tenant="default")
    assert selectors.all() == []
    selectors.save("roofs", OLD)
    assert [one.name for one in selectors.all()] == ["roofs"]


def test_rollout_file_with_a_selector_is_applied_once_and_another_meaning_is_refused(
    desk: FleetDesk, selectors: Selectors
) -> None:
    selectors.save("roofs", OLD)
    rollout = Rollout(action_id="r1", order=Order("echo", selector="roofs"))
    assert apply(desk, rollout)
    assert not apply(desk, rollout)
    selectors.save("roofs", Selector(label_expression="site = yard", reported_expression="version < 2.0.0"))
    with pytest.raises(RefusedError, match="exists with other values of label_expression"):
        apply(desk, rollout)


def test_name_changes_the_digest_only_where_it_is_given() -> None:
    row = {"action_id": "a1", "name": "echo", "percentage": 100.0}
    before = action_of_row(row, commit_version=0).digest
    assert before == action_of_row({**row, "selector": None}, commit_version=0).digest
    assert before != action_of_row({**row, "selector": "roofs"}, commit_version=0).digest


def test_commands_save_list_use_and_remove(
    tmp_path: Path, desk: FleetDesk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_TABLES", str(tmp_path))
    desk.describe_devices({"d1": {"site": "roof"}, "d2": {"site": "yard"}})
    assert main(["devices", "select", "save", "roofs", "--label", "site=roof", "--by", "ann"]) == 0
    capsys.readouterr()
    assert main(["devices", "select", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["selectors"]
    assert (listed["name"], listed["labels"], listed["by"]) == ("roofs", {"site": "roof"}, "ann")
    assert main(["devices", "select", "list"]) == 0
    assert "labels site=roof" in capsys.readouterr().out
    assert main(["actions", "plan", "echo", "--selector", "roofs", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["devices"]
    assert [one["device_id"] for one in planned] == ["d1"]
    assert main(["devices", "select", "remove", "roofs"]) == 0
    capsys.readouterr()
    assert main(["actions", "create", "echo", "--selector", "roofs"]) != 0
    err = capsys.readouterr().err
    assert "there is no saved selector roofs of tenant default; there are: none" in err
