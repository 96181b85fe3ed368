"""Tables in S3, against a real server and without a JVM: options, environment, commits, orphans, plans, the desk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.programs import headwater
from support.s3 import SECRET, CarelessStore, S3Server, s3_server

from actions.event_log import EventLog
from actions.fleet_desk import FleetDesk, Order
from actions.store import DeltalakeStore
from broker_edge.errors import ConfigError, SinkError
from headwater_cli import main
from pipelines.silver.plan import BatchPlan, PlanStore
from pipelines.spark.checkpoint import has_finished_a_batch
from sinks.folder import TableFolder
from sinks.orphans import sweep_orphans
from sinks.probe import FOLDER, require_safe_commits
from sinks.rows import rows_of
from sinks.store import StoreAccess
from sinks.table import Table
from sinks.tables import create_by_path

TRIALS = int(os.environ.get("HEADWATER_RACES", "15"))
"""Commits of each of the racing writers; `make test-long` runs 1,000."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def test_a_file_is_written_read_listed_and_removed_in_both_spellings(s3: S3Server) -> None:
    written = TableFolder.of(f"{s3.root}/folder", s3.access)
    with written.open("a/b.bin") as file:
        file.write(b"content")
    other = TableFolder.of(f"{s3.root.replace('s3://', 's3a://')}/folder/", s3.access)
    assert other.read("a/b.bin") == b"content"
    assert other.names("a") == ["b.bin"]
    assert time.time() - (other.modified_s("a/b.bin") or 0) < 600
    other.remove("a/b.bin")
    other.remove("a/b.bin")
    assert (written.read("a/b.bin"), written.names("a"), written.names("none")) == (None, [], [])


def test_the_jobs_without_a_jvm_work_in_s3(s3: S3Server) -> None:
    root = f"{s3.root}/actions"
    desk = FleetDesk(root, by="ann", create=True, access=s3.access)
    desk.describe_devices({"d1": {"site": "a"}})
    id_ = desk.order(Order(name="echo", device_ids=("d1",)))
    options = s3.access.deltalake()
    store = DeltalakeStore(root, storage_options=options)
    store.claim()
    assert [action.action_id for action in store.news().actions] == [id_]
    assert EventLog(root, access=s3.access).places() == {}


def test_the_command_line_takes_the_usual_environment(s3: S3Server) -> None:
    root = f"{s3.root}/by-cli"
    create_by_path(root, storage_options=s3.access.deltalake())
    FleetDesk(root, access=s3.access).describe_devices({"d1": {}})
    done = headwater(
        *("actions", "create", "echo", "--root", root, "--by", "ann", "--device", "d1"),
        environment=s3.environment,
    )
    assert done.code == 0, done.err
    assert len(FleetDesk(root, access=s3.access)._query("actions", "SELECT * FROM actions")) == 1


def test_devices_are_imported_changed_and_retired_in_s3(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    root, file = f"{s3.root}/fleet", tmp_path / "fleet.csv"
    file.write_text("device_id,groups,label.site\npump-1,north,roof\npump-2,,cellar\n")

    def asked(*words: str) -> dict[str, list[str]]:
        capsys.readouterr()
        assert main(["devices", words[0], "--root", root, *words[1:], "--by", "ann", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        return {name: ids for name, ids in done.items() if isinstance(ids, list) and ids}

    assert asked("import", str(file), "--create") == {"added": ["pump-1", "pump-2"]}
    assert asked("set", "--where", "site = roof", "--label", "site=yard") == {"changed": ["pump-1"]}
    assert asked("retire", "pump-2", "--remove-max", "100") == {"retired": ["pump-2"]}
    table = DeltaTable(f"{root}/devices", storage_options=s3.access.deltalake())
    rows = {row["device_id"]: row for row in rows_of(table.to_pyarrow_table())}
    assert (rows["pump-1"]["labels"], rows["pump-1"]["retired_at"]) == ({"site": "yard"}, None)
    assert rows["pump-2"]["retired_at"] is not None


def test_racing_commits_lose_nothing(s3: S3Server) -> None:
    """Four processes, each appending its own rows to one table."""
    uri = f"{s3.root}/race"
    options = s3.access.deltalake()
    write_deltalake(uri, pa.table({"who": ["first"], "n": pa.array([0], pa.int64())}), storage_options=options)
    code = (
        "import sys, pyarrow as pa\n"
        "from deltalake import DeltaTable, write_deltalake\n"
        "who, uri, count = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
        "for n in range(count):\n"
        "    rows = pa.table({'who': [who], 'n': pa.array([n], pa.int64())})\n"
        "    write_deltalake(DeltaTable(uri), rows, mode='append')\n"
    )
    environment = {**os.environ, **s3.environment, "AWS_ALLOW_HTTP": "true"}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, f"w{n}", uri, str(TRIALS)], env=environment) for n in range(4)
    ]
    assert [writer.wait(60 + TRIALS) for writer in writers] == [0] * 4
    table = DeltaTable(uri, storage_options=options)
    found = {(row["who"], row["n"]) for row in table.to_pyarrow_table().to_pylist()}
    assert found == {("first", 0)} | {(f"w{who}", n) for who in range(4) for n in range(TRIALS)}
    assert table.version() == 4 * TRIALS


def test_a_store_with_conditional_put_is_accepted_and_left_clean(s3: S3Server) -> None:
    require_safe_commits(f"{s3.root}/accepted", s3.access)
    left = [path for path in (s3.folder / "tables" / "accepted").rglob("*") if path.is_file()]
    assert left == [], f"the probe left files in {FOLDER}"


def test_a_store_that_ignores_the_header_is_refused_by_name(s3: S3Server) -> None:
    with CarelessStore(s3) as careless:
        access = StoreAccess.of(s3.options(careless.endpoint))
        with pytest.raises(SinkError, match=r"s3://tables/refused has no conditional PUT \(If-None-Match\)"):
            require_safe_commits(f"{s3.root}/refused", access)
    assert careless.ignored > 0


def test_a_missing_bucket_and_a_wrong_key_are_one_sentence(s3: S3Server, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"cannot write to s3://nothing/here .*404 Not Found\): check the bucket"):
        require_safe_commits("s3://nothing/here", s3.access)
    wrong = tmp_path / "wrong"
    wrong.write_text("not-it")
    access = StoreAccess.of(s3.options() | {"aws_secret_access_key": f"file:{wrong}"})
    with pytest.raises(SinkError, match="cannot write to s3://tables/x") as caught:
        require_safe_commits(f"{s3.root}/x", access)
    assert "not-it" not in str(caught.value)


def test_orphans_are_swept_in_s3(s3: S3Server) -> None:
    uri, access = f"{s3.root}/orphans", s3.access
    write_deltalake(uri, pa.table({"a": [1]}), storage_options=access.deltalake())
    folder = TableFolder.of(uri, access)
    for name in ("ingest_date=2026-01-01/bronze-old.parquet", "ingest_date=2026-01-01/other-old.parquet"):
        with folder.open(name) as file:
            file.write(b"left behind")
        path = s3.folder / "tables" / "orphans" / name
        os.utime(path, (time.time() - 90_000,) * 2)
    with folder.open("ingest_date=2026-01-01/bronze-new.parquet") as file:
        file.write(b"of a running batch")
    assert sweep_orphans(uri, access=access, older_than=timedelta(days=1)) == [
        "ingest_date=2026-01-01/bronze-old.parquet"
    ]
    assert folder.names("ingest_date=2026-01-01") == ["bronze-new.parquet", "other-old.parquet"]
    assert folder.table().to_pyarrow_table().num_rows == 1


def test_a_remote_checkpoint_says_whether_a_batch_is_finished(s3: S3Server) -> None:
    folder = TableFolder.of(f"{s3.root}/checkpoint", s3.access)
    assert not has_finished_a_batch("s3a://tables/checkpoint", s3.access)
    folder.replace("commits/0", b"v1")
    assert has_finished_a_batch("s3a://tables/checkpoint", s3.access)
    assert not has_finished_a_batch("other://somewhere", s3.access)


def test_plans_of_silver_are_kept_in_s3(s3: S3Server) -> None:
    store = PlanStore("s3a://tables/silver-checkpoint", s3.access)
    assert store.load(0) is None
    for number in range(25):
        store.save(BatchPlan(batch_id=number, schemas=[], rules=[]))
    assert store.load(24) is not None
    assert store.load(1) is None, "old plans are removed"


def test_the_secret_is_in_no_value_that_travels(s3: S3Server) -> None:
    access = s3.access
    folder = TableFolder.of(f"{s3.root}/x", access)
    assert SECRET not in repr(folder)
    assert access.deltalake()["aws_secret_access_key"] == SECRET
    assert access.hadoop()["fs.s3a.secret.key"] == SECRET


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"aws_secret_access_key": "literal", "aws_access_key_id": "a"},
            "aws_secret_access_key is a secret: write file:",
        ),
        ({"aws_session_token": "literal"}, "aws_session_token is a secret"),
        ({"aws_endpont": "x"}, "unknown option aws_endpont: did you mean aws_endpoint?"),
        ({"aws_allow_http": "yes"}, "aws_allow_http is true or false"),
        ({"azure_storage_account_key": "literal"}, "other stores are reached with their environment: GOOGLE_"),
        ({"google_service_account": "literal"}, "AZURE_TENANT_ID and AZURE_CLIENT_SECRET for abfss://"),
        ({"aws_access_key_id": "a"}, "belong together"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        StoreAccess.of(options)
    assert "literal" not in str(caught.value)


def test_the_environment_gives_endpoint_and_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    found = StoreAccess.of({"aws_region": "eu-north-1"})
    assert found.object_store() == {
        "aws_endpoint": "http://store:9000",
        "aws_region": "eu-north-1",
        "aws_allow_http": "true",
    }
    assert found.hadoop() == {
        "fs.s3a.endpoint": "http://store:9000",
        "fs.s3a.endpoint.region": "eu-north-1",
        "fs.s3a.path.style.access": "true",
    }


def test_other_stores_read_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server: both libraries refuse credentials that cannot be."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/none/key.json")
    with pytest.raises(OSError, match=r"/none/key\.json"):
        Table.at("gs://bucket/t").is_there()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not base64")
    with pytest.raises(OSError, match="Invalid Access Key"):
        Table.at("abfss://container@account.dfs.core.windows.net/t").is_there()
