"""A rollout file: what it says, what is refused, and that applying it twice inserts one action."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from actions.engine import Limits
from actions.fleet_desk import FleetDesk, Order
from actions.rollout_file import EXAMPLE, FILE_BYTES_MAX, SHOWN_MAX, read_rollout
from actions.rollouts import apply
from broker_edge.errors import RefusedError, SettingsError
from headwater_cli import main

MANIFEST = {"artifact": {"name": "pump", "version": "1.1.0", "size": 1, "sha256": "a" * 64}}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rollout.yaml"
    path.write_text(text)
    return path


def test_the_example_is_an_order_that_the_engine_accepts(tmp_path: Path) -> None:
    rollout = read_rollout(written(tmp_path, EXAMPLE))
    assert rollout.action_id == "pump-110"
    order = rollout.order
    assert (order.type, order.artifact_name, order.artifact_version) == ("ota", "pump", "1.1.0")
    assert order.timeout_queued_s == 7 * 86_400
    assert order.waves == [
        {"percentage": 1.0, "success_percentage": 90.0, "error_percentage": 10.0, "min_reported": 5, "approve": True},
        {"percentage": 10.0, "soak_s": 3_600},
        {"percentage": 100.0},
    ]
    assert FleetDesk(tmp_path / "tables", by="ann", create=True).order(order, action_id="a1") == "a1"


_SAMPLES = {"str": "text", "int": "3", "float": "2.5", "bool": "true", "list": "[a]", "map": "{a: b}"}


def _sample(name: str, hint: object) -> str:
    if name.endswith("_us"):
        return "2027-01-15T22:00+01:00"
    if name == "waves":
        return "[{percentage: 100}]"
    kind = next(part for part in (*typing.get_args(hint), hint) if part is not type(None))
    origin = typing.get_origin(kind)
    if origin is not None:
        return _SAMPLES["map" if "Mapping" in str(origin) else "list"]
    return _SAMPLES[kind.__name__]


@pytest.mark.parametrize("field", [name for name in typing.get_type_hints(Order) if name != "name"])
def test_every_field_of_an_order_can_be_written(tmp_path: Path, field: str) -> None:
    hint = typing.get_type_hints(Order)[field]
    key = field.removesuffix("_us").removesuffix("_s")
    text = f"id: a1\nname: echo\n{key}: {_sample(field, hint)}\n"
    assert getattr(read_rollout(written(tmp_path, text)).order, field) not in (None, Order("x").name)


def test_times_and_durations_are_written_as_people_say_them(tmp_path: Path) -> None:
    text = "id: a\nname: echo\nnot_before: 2027-01-15T22:00:00+01:00\ntimeout_step: 15m\nretry_backoff_s: 90\n"
    order = read_rollout(written(tmp_path, text)).order
    assert order.not_before_us == 1_800_046_800_000_000
    assert (order.timeout_step_s, order.retry_backoff_s) == (900, 90)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("name: echo", ":1: id is missing: write a line such as id: pump-110"),
        ("id: a", ":1: name is missing: write a line such as name: update"),
        ("id: a\nname: b\nlabel: {a: b}", ":3: label: unknown key: did you mean labels?"),
        ("id: a\nname: b\nwhere: x", ":3: where: unknown key: did you mean label_expression?"),
        ("id: a\nname: b\nzzz: x", ":3: zzz: unknown key: the keys are id, name,"),
        ("id: a\nname: b\nnot_before_us: 5", ":3: not_before_us: unknown key"),
        ("id: a\nname: b\nretries: many", ":3: retries: write a whole number, such as 100"),
        ("id: a\nname: b\nretries: true", ":3: retries: write a whole number"),
        ("id: a\nname: b\nretries: 99999999999", ":3: retries: write a whole number"),
        ("id: a\nname: b\npercentage: .nan", ":3: percentage: write a number, such as 12.5"),
        ("id: a\nname: b\nsupersede: 1", ":3: supersede: write true or false"),
        ("id: a\nname: b\nartifact_version: 1.10", ":3: artifact_version: YAML reads this as a number or a truth"),
        ("id: a\nname: b\nlabels:\n  floor: 2", ":4: labels.floor: YAML reads this as a number"),
        ("id: a\nname: b\nlabels:\n  no: x", ":3: labels: YAML reads a key here as False: put the key in quotes"),
        ("id: a\nname: b\ndevice_ids: d1", ":3: device_ids: write a list, such as [a, b]"),
        ("id: a\nname: b\ndevice_ids:\n- d1\n- 7", ":5: device_ids[1]: YAML reads this as a number"),
        ("id: a\nname: b\nlabels: x", ":3: labels: write keys with values"),
        ("id: a\nname: b\nlabels:", ":3: labels: it has no value: write one, or remove the line"),
        ("id: a\nname: b\ndeadline: +3600", ":3: deadline: write a date and a time with its zone"),
        ("id: a\nname: b\ndeadline: 2027-01-15", ":3: deadline: write a date and a time with its zone"),
        ("id: a\nname: b\ndeadline: 2027-01-15T22:00", ":3: deadline: write a date and a time with its zone"),
        ("id: a\nname: b\ntimeout_step: soon", ":3: timeout_step: write a duration such as 90s, 15m, 24h or 7d"),
        ("id: a\nname: b\ntimeout_step: -1", ":3: timeout_step: write a duration"),
        ("id: a\nname: b\ntimeout_step: 999999999d", ":3: timeout_step: write a duration"),
        ("id: a\nname: b\ntimeout_step: 1m\ntimeout_step_s: 9", ":4: timeout_step_s: it is there as timeout_step too"),
        ("id: a\nname: b\nwaves:\n- percentage: 1\n  soack: 1h", ":5: waves[0].soack: unknown key: did you mean soak?"),
        ("id: a\nname: b\nparams: {1: x}", ":3: params: YAML reads a key here as 1"),
        ("id: a\nname: b\nparams: {x: {1: y}}", ":3: params: use what JSON has"),
        ("id: a\nname: b\nparams: {x: .inf}", ":3: params: use what JSON has"),
        ("id: a\nid: b\nname: c", ":2: this is not YAML that can be used: the key 'id' is there twice"),
        ("id: &x a\nname: *x", ":2: this is not YAML that can be used: an alias is not supported"),
        ("id: [a\nname: b", "this is not YAML that can be used"),
        ("id: !!python/object:os.system a", "this is not YAML that can be used"),
        ("- id", ":1: write keys such as id: pump-110"),
        ("", ":1: write keys such as id: pump-110"),
        ("a: " + "[" * 5_000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_with_one_sentence(tmp_path: Path, lines: str, said: str) -> None:
    path = written(tmp_path, lines)
    with pytest.raises(SettingsError) as refused:
        read_rollout(path)
    text = str(refused.value)
    assert text.startswith(str(path))
    assert said in text
    assert "\n" not in text


def test_all_mistakes_of_a_file_are_told_in_the_order_of_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "artifact_version: 1.10\nwaves:\n- {percentag: 1}\ndeadline: +2h\nfoo: 3\ntimeout_queued: 7 days\n"
    file = written(tmp_path, lines)
    with pytest.raises(SettingsError) as refused:
        read_rollout(file)
    said = [line.removeprefix(f"{file}:").partition(":")[::2] for line in str(refused.value).splitlines()]
    assert [int(line) for line, _ in said] == [1, 1, 1, 3, 4, 5, 6]
    for wanted in ("id is missing", "name is missing", "artifact_version", "percentag", "deadline", "foo", "timeout"):
        assert sum(wanted in text for _, text in said) >= 1, wanted
    assert main(["rollout", "apply", str(file), "--root", str(tmp_path)]) == 5
    assert len(capsys.readouterr().err.splitlines()) == len(said)


def test_a_file_with_very_many_mistakes_is_told_in_part(tmp_path: Path) -> None:
    file = written(tmp_path, "id: a\nname: b\n" + "".join(f"zz{number}: 1\n" for number in range(30)))
    with pytest.raises(SettingsError) as refused:
        read_rollout(file)
    told = str(refused.value).splitlines()
    assert (len(told), told[-1]) == (SHOWN_MAX + 1, f"{file}: {30 - SHOWN_MAX} more")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.yaml cannot be read: No such file"):
        read_rollout(tmp_path / "missing.yaml")
    (tmp_path / "latin").write_bytes(b"id: \xff")
    with pytest.raises(SettingsError, match="latin is not UTF-8"):
        read_rollout(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="above the limit of 8,388,608: select by label or group"):
        read_rollout(tmp_path / "large")


def test_applying_a_file_twice_inserts_one_action_and_another_content_is_refused(tmp_path: Path) -> None:
    desk = FleetDesk(tmp_path / "tables", by="ann", create=True)
    desk.offer(MANIFEST)
    rollout = read_rollout(written(tmp_path, EXAMPLE))
    assert apply(desk, rollout)
    assert not apply(FleetDesk(tmp_path / "tables", by="bob"), rollout)
    other = EXAMPLE.replace("soak: 1h", "soak: 2h").replace("p2", "p3")
    with pytest.raises(RefusedError, match="pump-110 exists with other values of labels, waves, and an action does"):
        apply(desk, read_rollout(written(tmp_path, other)))
    assert [row["created_by"] for row in desk.query("actions", "SELECT * FROM actions")] == ["ann"]


def test_a_file_that_the_engine_would_refuse_does_not_use_up_its_id(tmp_path: Path) -> None:
    desk = FleetDesk(tmp_path / "tables", by="ann", create=True)
    rollout = read_rollout(written(tmp_path, EXAMPLE))
    with pytest.raises(RefusedError, match=r"pump-110 was not inserted: artifact pump 1\.1\.0 is not in the table"):
        apply(desk, rollout)
    desk.offer(MANIFEST)
    with pytest.raises(RefusedError, match=r"pump-110 was not inserted: artifact pump 1\.1\.0 is not signed"):
        apply(desk, rollout, limits=Limits())
    assert desk.stored("pump-110") is None
    assert apply(desk, rollout)


def test_every_field_takes_part_in_the_comparison(tmp_path: Path) -> None:
    desk = FleetDesk(tmp_path / "tables", create=True)
    base = "id: {id}\nname: echo\ndevice_ids: [d1]\nnot_before: 2027-01-15T22:00Z\npercentage: 50\npriority: 1\n"
    assert apply(desk, read_rollout(written(tmp_path, base.format(id="a"))))
    assert not apply(desk, read_rollout(written(tmp_path, base.format(id="a"))))
    for old, new in (("22:00Z", "22:01Z"), (": 50", ": 51"), ("priority: 1", "priority: 2"), ("d1", "d2")):
        with pytest.raises(RefusedError, match="exists with other values of"):
            apply(desk, read_rollout(written(tmp_path, base.format(id="a").replace(old, new))))
