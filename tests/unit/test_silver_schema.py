"""Message schemas and rules: the contents of their files, and that an error is one sentence with its position."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.memory_log import matches

from broker_edge.errors import SettingsError
from pipelines.silver.plan import KEPT, BatchPlan, PlanStore
from pipelines.silver.rules import load_rules
from pipelines.silver.schema import MessageSchema, SchemaField, column_name, load_schemas
from pipelines.silver.topics import topic_pattern

CONF = Path(__file__).parents[2] / "conf"


def test_the_files_of_the_repository_are_right() -> None:
    schemas = load_schemas(CONF / "schemas")
    rules = load_rules(CONF / "quality", schemas)
    assert [schema.table for schema in schemas] == ["silver_telemetry"]
    assert set(rules) == {"telemetry"}


@pytest.mark.parametrize("topic_filter", ["devices/+/telemetry", "#", "+/b", "a/#", "a.c", "+", "a/+/#", "$x/+"])
@pytest.mark.parametrize(
    "topic",
    ["devices/d1/telemetry", "devices/d1/x/telemetry", "a", "a/", "a/b", "b/b", "abc", "a.c", "$x/y", "/", "a\n/b"],
)
def test_a_filter_matches_as_mqtt_says(topic_filter: str, topic: str) -> None:
    found = re.search(topic_pattern(topic_filter).replace(r"\z", r"\Z"), topic) is not None
    assert found == matches(topic_filter, topic)


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "a#", "#/a"])
def test_what_is_no_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(SettingsError, match="is not an MQTT topic filter"):
        topic_pattern(topic_filter)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topics: [a]\n", ":1: name: Field required"),
        ("name: a\ntopic: [a]\n", ":2: unknown key topic: did you mean topics?"),
        ("name: a\ntopics: [a/#/b]\n", ":2: topics: Value error, 'a/#/b' is not an MQTT topic filter"),
        ("name: a\ntopics: [a]\nformat: xml\n", ":3: format: Value error, 'xml' is not one of json, cbor, sparkplug_b"),
        (
            "name: a\ntopics: [a]\nevolution: maybe\n",
            ":3: evolution: Value error, 'maybe' is not one of add_new_columns",
        ),
        (
            "name: a\ntopics: [a]\nfields:\n- {name: x, type: number}\n",
            ":4: fields.0.type: Value error, 'number' is not",
        ),
        (
            "name: a\ntopics: [a]\nfields:\n- {name: x, typ: int}\n",
            "unknown key fields.0.typ: did you mean fields.0.type?",
        ),
        ("name: a\ntopics: [a]\nfields:\n- {name: offset, type: int}\n", "'offset' is a column that every silver"),
        ("name: a\ntopics: [a]\nfields:\n- {name: x, type: int}\n- {name: X, type: int}\n", "two fields are named x"),
        ("name: a\ntopics: [a]\nfields: [{name: x, type: 'decimal(3,5)'}]\n", "has an invalid precision or scale"),
        (
            "name: a\ntopics: [a]\nfields: [{name: x, type: int}, {name: y, path: x.z, type: int}]\n",
            "y is inside x, so x must be json, not int",
        ),
        (
            "name: a\ntopics: [a]\nformat: sparkplug_b\nfields: [{name: x, path: aliases.flow, type: int}]\n",
            "x is at aliases.flow, but an alias is a number, such as aliases.7",
        ),
    ],
)
def test_a_wrong_schema_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(SettingsError) as error:
        load_schemas(tmp_path)
    assert says in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "a.yaml"))


def test_two_schemas_of_one_name_and_none_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no \*.yaml with a message schema"):
        load_schemas(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("name: a\ntopics: [a]\n")
    with pytest.raises(SettingsError, match="both describe a"):
        load_schemas(tmp_path)
    with pytest.raises(SettingsError, match="there is no folder"):
        load_schemas(tmp_path / "none")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("{name: r, column: y, check: not_null}", "there is no column y: declare it"),
        ("{name: r, column: t, check: between, min: 1}", "between is for numbers, but t is string"),
        ("{name: r, column: n, check: matches, pattern: a}", "matches is for texts, but n is bigint"),
        ("{name: r, column: n, check: in_set, values: [a]}", "'a' is not a valid bigint"),
        ("{name: r, column: n, check: in_set, values: [true]}", "True is not a valid bigint"),
        ("{name: r, column: n, check: at_most_column, other: t}", "n is bigint and t is string"),
        ("{name: r, column: n, check: between}", "between needs one of min, max"),
        ("{name: r, column: n, check: between, min: 2, max: 1}", "min 2 is above max 1"),
        ("{name: r, column: n, check: not_null, min: 2}", "not_null does not use min"),
        ("{name: r, column: n, check: in_set}", "in_set needs values"),
        ("{name: r, column: t, check: matches, pattern: '('}", "'(' is not a regular expression"),
        ("{name: r, column: t, check: guess}", "rules.0.check: Input should be"),
    ],
)
def test_a_rule_that_cannot_judge_is_named(tmp_path: Path, rule: str, says: str) -> None:
    fields = [{"name": "n", "type": "bigint"}, {"name": "t", "type": "string"}]
    schema = MessageSchema.model_validate({"name": "a", "topics": ["a"], "fields": fields})
    (tmp_path / "a.yaml").write_text(f"message: a\nrules:\n- {rule}\n")
    with pytest.raises(SettingsError) as error:
        load_rules(tmp_path, [schema])
    assert says in str(error.value)


def test_rules_for_nobody_and_rules_in_two_files_are_refused(tmp_path: Path) -> None:
    schema = MessageSchema.model_validate({"name": "a", "topics": ["a"]})
    (tmp_path / "b.yaml").write_text("message: b\nrules: []\n")
    with pytest.raises(SettingsError, match="has rules for b, but no message schema has that name"):
        load_rules(tmp_path, [schema])
    for name in ("b", "c"):
        (tmp_path / f"{name}.yaml").write_text("message: a\nrules: []\n")
    with pytest.raises(SettingsError, match="is the second file with rules for a"):
        load_rules(tmp_path, [schema])


def test_a_column_name_is_made_of_any_path() -> None:
    assert column_name(["a", "b c"]) == "a_b_c"
    assert column_name(["Node Control/Rebirth"]) == "Node_Control_Rebirth"
    assert column_name(["1st"]) == "f_1st"
    assert column_name(["__"]) == "field"


def test_a_plan_comes_back_as_it_was_saved_and_old_ones_go(tmp_path: Path) -> None:
    added = SchemaField(name="x", type="double", path=["a", "x"], inferred=True)
    schema = load_schemas(CONF / "schemas")[0].with_fields([added])
    rules = load_rules(CONF / "quality", [schema])
    store = PlanStore(str(tmp_path))
    assert store.load(0) is None
    assert store.newest_before(5) is None
    for batch_id in range(KEPT + 3):
        store.save(BatchPlan(batch_id=batch_id, schemas=[schema], rules=list(rules.values())))
    found = store.load(KEPT + 2)
    assert found == BatchPlan(batch_id=KEPT + 2, schemas=[schema], rules=list(rules.values()))
    assert found.inferred("telemetry") == [added]
    assert store.load(2) is None
    newest = store.newest_before(KEPT + 2)
    assert newest is not None
    assert newest.batch_id == KEPT + 1
    with pytest.raises(SettingsError, match="is not a folder of a known file system"):
        PlanStore("hdfs2://bucket/checkpoint")


def test_a_plan_keeps_quotas_and_the_previous_release_can_read_it(tmp_path: Path) -> None:
    """It refuses keys that it does not know, so they are in a file of their own."""
    added = SchemaField(name="x", type="double", path=["x"], inferred=True, device="d1", day="2026-01-02")
    schema = load_schemas(CONF / "schemas")[0].model_copy(update={"nodes_max": 7}).with_fields([added])
    plan = BatchPlan(batch_id=3, schemas=[schema], rules=[], over_quota={"telemetry": 5})
    PlanStore(str(tmp_path)).save(plan)
    assert PlanStore(str(tmp_path)).load(3) == plan
    text = (tmp_path / "plans" / "3.json").read_text()
    new = ("over_quota", "nodes_max", "depth_max", "json_bytes_max", "new_columns_per_device_max", "d1", "day")
    assert [key for key in new if f'"{key}"' in text] == []
    (tmp_path / "plans" / "3.newer").unlink()
    older = PlanStore(str(tmp_path)).load(3)
    assert older is not None
    assert older.inferred("telemetry") == [added.model_copy(update={"device": None, "day": None})]
