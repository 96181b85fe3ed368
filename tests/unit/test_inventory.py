"""The inventory on real tables, through the command line: import, mass removal, changes, retirement, look-ups; and the
engine, for which a retired device is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from actions.inventory import Inventory
from actions.inventory_csv import FILE_BYTES_MAX, read_inventory
from actions.inventory_values import Selection
from actions.job import ActionJob
from actions.store import DeltalakeStore
from broker_edge import Place, Row
from broker_edge.errors import SettingsError, TableStoreError
from headwater_cli import main
from sinks import tables
from sinks.conflicts import COMMIT_ATTEMPTS
from sinks.rows import arrow_of, now_us, rows_of

HOUR_US = 3_600_000_000
FLEET = """\
device_id,time_zone,groups,log,label.site,labels.fw
pump-1,Europe/Berlin,north;old,edge-1,roof,1.2
pump-2,,north,,roof,1.3
pump-3,,,,cellar,
"""


class World:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = folder / "tables"
        self.file = folder / "fleet.csv"
        self._capsys = capsys
        tables.create_by_path(self.root)

    def run(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main(["devices", words[0], "--root", str(self.root), *words[1:]])
        out, err = self._capsys.readouterr()
        return code, out, err

    def asked(self, *words: str) -> dict[str, Any]:
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        return dict(json.loads(out))

    def imported(self, text: str, *words: str) -> dict[str, Any]:
        self.file.write_text(text)
        return self.asked("import", str(self.file), "--by", "ann", *words)

    def refused(self, text: str, *words: str) -> tuple[int, str]:
        """The exit code and the sentence of an import that writes nothing."""
        self.file.write_text(text)
        before = self.version()
        code, _, err = self.run("import", str(self.file), *words)
        assert self.version() == before
        assert code != 0
        return code, err

    def version(self) -> int:
        return int(DeltaTable(str(self.root / "devices")).version())

    def insert(self, table: tables.FieldTable, *rows: Mapping[str, Any]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def rows(self) -> dict[str, dict[str, Any]]:
        found = rows_of(DeltaTable(str(self.root / "devices")).to_pyarrow_table())
        return {row["device_id"]: row for row in found}


@pytest.fixture
def world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> World:
    return World(tmp_path, capsys)


def counts(done: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: ids for name, ids in done.items() if isinstance(ids, list) and ids}


def test_an_import_adds_then_changes_only_what_differs(world: World) -> None:
    assert counts(world.imported(FLEET, "--dry-run")) == {"added": ["pump-1", "pump-2", "pump-3"]}
    assert world.rows() == {}, "a dry run writes nothing"
    assert counts(world.imported(FLEET)) == {"added": ["pump-1", "pump-2", "pump-3"]}
    row = world.rows()["pump-1"]
    assert (row["time_zone"], row["groups"], row["log"]) == ("Europe/Berlin", ["north", "old"], "edge-1")
    assert (row["labels"], row["tenant"]) == ({"site": "roof", "fw": "1.2"}, "default")
    assert row["created_by"] == "ann"
    assert abs(now_us() - row["created_at"]) < HOUR_US
    version = world.version()
    again = world.imported(FLEET)
    assert counts(again) == {"unchanged": ["pump-1", "pump-2", "pump-3"]}
    assert (again["version"], world.version()) == (None, version)

    # A column that the file lacks stays; an empty cell removes the value.
    done = world.imported("device_id,label.site,groups\npump-1,cellar,\npump-4,roof,\n")
    assert counts(done) == {"added": ["pump-4"], "changed": ["pump-1"], "missing": ["pump-2", "pump-3"]}
    row = world.rows()["pump-1"]
    assert (row["labels"], row["groups"]) == ({"site": "cellar", "fw": "1.2"}, [])
    assert (row["time_zone"], row["log"]) == ("Europe/Berlin", "edge-1")
    assert (row["created_by"], row["updated_by"]) == ("ann", "ann")
    assert world.rows()["pump-2"]["updated_at"] is None, "other devices were not touched"


def test_five_thousand_devices_are_one_commit(world: World) -> None:
    world.imported(FLEET)
    before = world.version()
    text = "device_id,label.site,time_zone\n" + "".join(f"dev-{n},roof,Europe/Berlin\n" for n in range(5_000))
    done = world.imported(text)
    assert (len(done["added"]), done["missing"]) == (5_000, ["pump-1", "pump-2", "pump-3"])
    assert (world.version(), len(world.rows())) == (before + 1, 5_003)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no header row"),
        ("log,groups\na,b\n", "there is no column device_id"),
        ("device_id,timezone\na,b\n", "column 2 is called 'timezone': did you mean time_zone?"),
        ("device_id,lable.site\na,b\n", "column 2 is called 'lable.site': did you mean label.<name>?"),
        ("device_id,colour\na,b\n", "column 2 is called 'colour': Columns are device_id,"),
        ("device_id,label.a,labels.a\na,b,c\n", "column label.a is there twice"),
        ("device_id,groups\na,x\nb,y\na,z\n", "fleet.csv:4: device a is in line 2 too"),
        ("device_id,time_zone\na,Europe/Berlin\nb,Europe/Berlim\n", "fleet.csv:3: 'Europe/Berlim' is not a time zone"),
        ("device_id,time_zone\na,../zone\n", "fleet.csv:2: '../zone' is not a time zone"),
        ("device_id,groups\na,b,c\n", "fleet.csv:2: it has 3 fields, and the header 2"),
        ("device_id,groups\n,b\n", "fleet.csv:2: device_id is empty"),
        ("device_id\na/b\n", "fleet.csv:2: device id 'a/b' cannot be a level of a topic"),
        ('device_id,groups\na,"b\nc"\n\n+,d\n', "fleet.csv:5: device id '+' cannot"),
        ('device_id\n"a\n', "this is not CSV"),
        ("device_id\n+\n#\n/\n+a\n+b\n", "2 more lines are wrong"),
    ],
)
def test_a_wrong_file_is_refused_with_its_lines_and_writes_nothing(world: World, text: str, said: str) -> None:
    code, sentence = world.refused(text)
    assert code == 5
    assert said in sentence


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_inventory(bad)
    bad.write_bytes(b"device_id\n\xff\n")
    with pytest.raises(SettingsError, match=r"is not UTF-8 \(byte 10\)"):
        read_inventory(bad)
    with bad.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(SettingsError, match="above the limit of 67,108,864: split it"):
        read_inventory(bad)
    bad.write_bytes(b"\xef\xbb\xbfdevice_id\r\na\r\n")
    assert [device.device_id for device in read_inventory(bad)] == ["a"], "as spreadsheets write it"


def test_a_mass_removal_needs_a_word(world: World) -> None:
    header = "device_id\n"
    world.imported(header + "".join(f"d{n}\n" for n in range(20)))
    fewer = header + "".join(f"d{n}\n" for n in range(17))
    code, said = world.refused(fewer, "--remove-missing")
    assert code == 4
    assert "3 of 20 devices in use (15 %) are not in the file and would be retired, above the limit of 10 %" in said
    assert "--remove-max 15" in said
    assert world.refused(header, "--remove-missing")[0] == 4, "an empty file"
    # At the limit it is allowed, and without the option nobody is retired.
    assert counts(world.imported(header + "".join(f"d{n}\n" for n in range(18))))["missing"] == ["d18", "d19"]
    done = world.imported(header + "".join(f"d{n}\n" for n in range(18)), "--remove-missing")
    assert done["retired"] == ["d18", "d19"]
    done = world.imported(fewer, "--remove-missing", "--remove-max", "15")
    assert done["retired"] == ["d17"]
    assert {id_ for id_, row in world.rows().items() if row["retired_at"]} == {"d17", "d18", "d19"}
    # A device that the file names again is in use again.
    assert counts(world.imported(header + "d18\n"))["returned"] == ["d18"]
    assert world.rows()["d18"]["retired_at"] is None


def test_ids_that_are_there_twice_and_those_of_others_are_told(world: World) -> None:
    world.insert(
        tables.DEVICES,
        {"device_id": "d1", "labels": {"site": "roof"}},
        {"device_id": "d1", "groups": ["old"]},
        {"device_id": "d2", "tenant": "other"},
    )
    for words in (["import", str(world.file)], ["set", "d1", "--label", "a=b"], ["retire", "d1"]):
        world.file.write_text("device_id\nd3\n")
        code, _, err = world.run(*words)
        assert code == 5
        assert 'device d1 is in the table devices twice, as {"labels": {"site": "roof"}}' in err
        assert '{"groups": ["old"]}' in err
    code, out, err = world.run("list", "--json")
    assert (code, json.loads(out)["twice"], err) == (0, ["d1"], "in the table twice: d1\n")
    assert len(json.loads(out)["devices"]) == 2, "none of another tenant"
    DeltaTable(str(world.root / "devices")).delete("device_id = 'd1'")
    assert "device d2 belongs to tenant other" in world.refused("device_id\nd2\n")[1]
    assert world.run("show", "d2")[0] == 4


def test_list_selects_by_labels_groups_and_when_a_device_was_seen(world: World) -> None:
    world.imported(FLEET)
    now = now_us()
    seen = {"pump-1": now - HOUR_US // 2, "pump-2": now - 50 * HOUR_US}
    states = [{"device_id": id_, "last_seen_at": at, "version": "2", "log_id": "l"} for id_, at in seen.items()]
    world.insert(tables.DEVICE_STATE, *states)

    def ids(*words: str) -> list[str]:
        return [row["device_id"] for row in world.asked("list", *words)["devices"]]

    assert ids() == ["pump-1", "pump-2", "pump-3"]
    assert ids("--where", "site = roof and not fw = 1.2") == ["pump-2"]
    assert ids("--group", "old", "--group", "north") == ["pump-1", "pump-2"]
    assert ids("--seen-within", "1h") == ["pump-1"]
    assert ids("--silent-for", "2d") == ["pump-2", "pump-3"]
    assert ids("--silent-for", "3d") == ["pump-3"], "it never reported"
    world.asked("retire", "pump-2")
    assert ids() == ["pump-1", "pump-3"]
    assert ids("--retired") == ["pump-1", "pump-2", "pump-3"]
    code, out, _ = world.run("list", "--group", "old")
    assert (code, out.splitlines()[1].split("\t")[:3]) == (0, ["pump-1", "fw=1.2, site=roof", "north, old"])
    assert world.run("list", "--where", "site =")[0] == 5
    assert world.run("list", "--silent-for", "1y")[0] == 2


def test_list_and_show_say_what_a_device_reports_to_be(world: World) -> None:
    world.imported(FLEET)
    world.insert(tables.DEVICE_STATE, {"device_id": "pump-2", "version": "2", "product": "pump", "hardware": "p3"})
    rows = {row["device_id"]: row for row in world.asked("list")["devices"]}
    assert (rows["pump-2"]["product"], rows["pump-2"]["hardware"]) == ("pump", "p3")
    assert "product" not in rows["pump-1"]
    lines = {line.split("\t")[0]: line.split("\t") for line in world.run("list")[1].splitlines()}
    assert lines["pump-2"][5:8] == ["2", "pump", "p3"]
    assert lines["pump-1"][5:8] == ["-", "-", "-"]
    assert "product\tpump\nhardware\tp3\n" in world.run("show", "pump-2")[1]


def test_show_has_all_that_is_known_of_a_device(world: World) -> None:
    world.imported(FLEET)
    target = {"device_id": "pump-2", "attempt": 1, "created_at": 1}
    world.insert(
        tables.ACTION_TARGETS,
        {**target, "action_id": "a1", "state": "QUEUED"},
        {**target, "action_id": "a2", "state": "SUCCEEDED"},
    )
    state = {"device_id": "pump-2", "version": "2.0", "log_id": "log-b", "last_seen_at": 5}
    world.insert(tables.DEVICE_STATE, state, {**state, "device_id": "stray"})
    found = world.asked("show", "pump-2")
    assert (found["log"], found["log_from"]) == ("log-b", "device_state")
    assert found["rows"][0]["labels"] == {"site": "roof", "fw": "1.3"}
    assert (found["state"]["version"], [row["action_id"] for row in found["targets"]]) == ("2.0", ["a1"])
    assert world.asked("show", "pump-1")["log_from"] == "devices"
    code, out, _ = world.run("show", "pump-2")
    assert code == 0
    assert "log\tlog-b (from the table device_state)" in out
    assert "open\ta1\tQUEUED\t1\t-" in out
    assert "it is not in the table devices, but it reported" in world.run("show", "stray")[2]
    assert world.run("show", "nobody")[0] == 4


def test_set_changes_the_selected_devices_alone(world: World) -> None:
    world.imported(FLEET)
    done = world.asked(
        "set",
        "--where",
        "site = roof",
        "--label",
        "ring=canary",
        "--remove-label",
        "fw",
        "--add-group",
        "south",
        "--remove-group",
        "north",
        "--log",
        "edge-2",
        "--by",
        "bob",
    )
    assert counts(done) == {"changed": ["pump-1", "pump-2"]}
    rows = world.rows()
    assert rows["pump-1"]["labels"] == {"site": "roof", "ring": "canary"}
    assert (rows["pump-1"]["groups"], rows["pump-2"]["groups"]) == (["old", "south"], ["south"])
    assert (rows["pump-1"]["log"], rows["pump-1"]["updated_by"], rows["pump-3"]["updated_by"]) == (
        "edge-2",
        "bob",
        None,
    )
    assert counts(world.asked("set", "pump-1", "--time-zone", "")) == {"changed": ["pump-1"]}
    assert world.rows()["pump-1"]["time_zone"] is None
    assert counts(world.asked("set", "pump-1", "--time-zone", "")) == {"unchanged": ["pump-1"]}
    for words, code in (
        (["set", "--label", "a=b"], 2),
        (["set", "pump-1"], 2),
        (["set", "pump-1", "--time-zone", "Mars"], 2),
        (["set", "pump-9", "--label", "a=b"], 4),
        (["set", "--where", "site = sea", "--label", "a=b"], 4),
    ):
        assert world.run(*words)[0] == code, words


def test_retire_keeps_rows_and_is_undone(world: World) -> None:
    world.imported(FLEET)
    code, _, err = world.run("retire", "--where", "site = roof")
    assert code == 4
    assert "2 of 3 devices in use (66.7 %) are selected and would be retired" in err
    assert counts(world.asked("retire", "pump-1", "pump-2")) == {"retired": ["pump-1", "pump-2"]}, "named by id"
    assert counts(world.asked("retire", "pump-1")) == {"unchanged": ["pump-1"]}
    assert world.rows()["pump-1"]["labels"] == {"site": "roof", "fw": "1.2"}
    assert counts(world.asked("retire", "--where", "site = roof", "--undo")) == {"returned": ["pump-1", "pump-2"]}
    assert world.run("retire")[0] == 2


class NoBroker:
    """Accepts every command."""

    name = None

    def log_id(self) -> str:
        return "log"

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        return [Place(0, at, duplicate=False) for at, _ in enumerate(rows)]


def test_for_the_engine_a_retired_device_is_gone(world: World) -> None:
    world.imported(FLEET)
    world.insert(tables.ACTIONS, {"action_id": "a1", "name": "echo", "label_expression": "site = roof"})
    job = ActionJob(DeltalakeStore(world.root), NoBroker())
    job.turn()

    def states() -> dict[str, str]:
        rows = DeltaTable(str(world.root / "action_targets")).to_pyarrow_table().to_pylist()
        return {row["device_id"]: row["state"] for row in rows}

    assert set(states()) == {"pump-1", "pump-2"}
    assert set(states().values()) <= {"PENDING", "QUEUED"}
    world.asked("retire", "pump-1")
    job.turn()
    job.turn()
    assert states()["pump-1"] in ("REMOVED", "CANCELLING")
    assert states()["pump-2"] not in ("REMOVED", "CANCELLING")
    world.insert(tables.ACTIONS, {"action_id": "a2", "name": "echo", "label_expression": "site = roof"})
    job.turn()
    rows = DeltaTable(str(world.root / "action_targets")).to_pyarrow_table().to_pylist()
    assert {row["device_id"] for row in rows if row["action_id"] == "a2"} == {"pump-2"}


def test_a_change_is_planned_again_when_somebody_else_commits_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another person inserts the same device between the plan and the commit: it is there once in the end."""
    inventory, tries = Inventory(world.root), 0
    merge: Callable[..., None] = inventory._merge

    def other_first(table: DeltaTable, rows: Any, *, always: bool = False) -> None:
        nonlocal tries
        tries += 1
        if tries == 1 or always:
            world.insert(tables.DEVICES, {"device_id": "d1" if not always else f"e{tries}", "labels": {"by": "other"}})
        merge(table, rows)

    monkeypatch.setattr(inventory, "_merge", other_first)
    world.file.write_text("device_id,label.a\nd1,b\n")
    done = inventory.import_devices(read_inventory(world.file))
    assert (tries, done.changed, done.added) == (2, ["d1"], [])
    assert [row["labels"] for row in inventory.devices(Selection())] == [{"by": "other", "a": "b"}]

    tries = 0
    monkeypatch.setattr(inventory, "_merge", lambda table, rows: other_first(table, rows, always=True))
    world.file.write_text("device_id\nd9\n")
    with pytest.raises(TableStoreError, match="others keep changing the table devices"):
        inventory.import_devices(read_inventory(world.file))
    assert tries == COMMIT_ATTEMPTS


def test_a_table_of_an_older_version_and_columns_of_others_stay(tmp_path: Path, world: World) -> None:
    old = pa.schema([("device_id", pa.string()), ("labels", pa.map_(pa.string(), pa.string())), ("rack", pa.int32())])
    root = tmp_path / "old"
    tables.create_by_path(root, tables=[tables.DEVICE_STATE])
    DeltaTable.create(str(root / "devices"), old)
    rows = [{"device_id": "d1", "labels": [("site", "roof")], "rack": 7}]
    write_deltalake(str(root / "devices"), pa.Table.from_pylist(rows, old), mode="append")
    world.root = root
    assert [row["device_id"] for row in world.asked("list")["devices"]] == ["d1"]
    assert counts(world.imported("device_id,groups\nd1,a\nd2,b\n")) == {"added": ["d2"], "changed": ["d1"]}
    found = world.rows()
    assert (found["d1"]["rack"], found["d1"]["labels"], found["d1"]["groups"]) == (7, {"site": "roof"}, ["a"])
    assert found["d2"]["rack"] is None


def test_tables_are_made_only_when_asked(tmp_path: Path, world: World) -> None:
    world.root = tmp_path / "none"
    world.file.write_text(FLEET)
    code, _, err = world.run("import", str(world.file))
    assert (code, "there is no table devices under" in err) == (5, True)
    assert not world.root.exists()
    assert world.asked("import", str(world.file), "--create")["added"] == ["pump-1", "pump-2", "pump-3"]
