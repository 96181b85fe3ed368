"""`make audit` says what is known against the parts, and says so when it knows nothing; over real HTTP on loopback."""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from supply.audit import BAD, CLEAN, FOUND, UNCHECKED, main
from supply.shipped import Part

TODAY = date(2026, 11, 25)
PARTS = [
    Part("cargo", "ring", "0.17.14", ("0" * 64,), "Apache-2.0 AND ISC", "required", "headwaterd"),
    Part("pypi", "pyyaml", "6.0.3", ("0" * 64,), "MIT", "optional", "spark"),
    Part("maven", "org.wildfly.openssl:wildfly-openssl", "2.2.5.Final", ("0" * 64,), None, "optional", "jobs on S3"),
]


def record(name: str, ecosystem: str, package: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    kind = "SEMVER" if ecosystem == "crates.io" else "ECOSYSTEM"
    affected = {"package": {"ecosystem": ecosystem, "name": package}, "ranges": [{"type": kind, "events": [*events]}]}
    return {"id": name, "summary": f"{package} is broken", "affected": [affected], **more}


RING = record("RUSTSEC-1", "crates.io", "ring", {"introduced": "0.17.0"}, {"fixed": "0.17.15"}, aliases=["CVE-1"])
YAML = record("PYSEC-1", "PyPI", "PyYAML", {"introduced": "0"}, {"fixed": "6.0.4"})
JAR = record("GHSA-1", "Maven", PARTS[2].name, {"introduced": "2.2"}, {"last_affected": "2.2.5.Final"})
OLD = record("RUSTSEC-0", "crates.io", "ring", {"introduced": "0"}, {"fixed": "0.17.12"})


class FakeOsv:
    """A server that finds advisories by the rules of the test: ecosystem, name and version to ids."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, str, str], list[str]] = {}
        self.records: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.answer: Callable[[str], tuple[int, bytes]] | None = None
        self.page_size = 1000

    def knows(self, found: dict[str, Any], part: Part) -> None:
        package = found["affected"][0]["package"]
        self.ids.setdefault((package["ecosystem"], part.name, part.version), []).append(found["id"])
        self.records[found["id"]] = found

    def of_query(self, query: dict[str, Any]) -> dict[str, Any]:
        package = query["package"]
        ids = self.ids.get((package["ecosystem"], package["name"], query["version"]), [])
        start = int(query.get("page_token", "0"))
        page = ids[start : start + self.page_size]
        following = {"next_page_token": str(start + self.page_size)} if start + self.page_size < len(ids) else {}
        return {"vulns": [{"id": one, "modified": "2026-01-01T00:00:00Z"} for one in page], **following} if ids else {}


@pytest.fixture
def osv() -> Iterator[tuple[FakeOsv, str]]:
    fake = FakeOsv()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.asked.append(self.path)
            if fake.answer is not None:
                return self._send(*fake.answer(self.path))
            assert self.path == "/v1/querybatch"
            return self._send(200, json.dumps({"results": [fake.of_query(one) for one in body["queries"]]}).encode())

        def do_GET(self) -> None:
            fake.asked.append(self.path)
            if fake.answer is not None:
                return self._send(*fake.answer(self.path))
            found = fake.records.get(self.path.removeprefix("/v1/vulns/"))
            return self._send(200 if found else 404, json.dumps(found).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield fake, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ignored(tmp_path: Path) -> Path:
    path = tmp_path / "ignored.toml"
    path.write_text("")
    return path


def audit(*words: str | Path, found: list[Part] = PARTS) -> int:
    return main(list(map(str, words)), found=found, today=TODAY)


def test_an_advisory_for_each_kind_of_part_is_reported(
    osv: tuple[FakeOsv, str], ignored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, url = osv
    for found, part in zip((RING, YAML, JAR), PARTS, strict=True):
        fake.knows(found, part)
    assert audit("--url", url, "--ignored", ignored) == FOUND
    told = capsys.readouterr()
    assert [line.split("\t")[:4] for line in told.out.splitlines()] == [
        ["RUSTSEC-1", "crates.io", "ring", "0.17.14"],
        ["PYSEC-1", "PyPI", "pyyaml", "6.0.3"],
        ["GHSA-1", "Maven", PARTS[2].name, "2.2.5.Final"],
    ]
    assert "fixed in 0.17.15" in told.out
    assert "3 findings in 1 crates, 1 Python packages, 1 jars" in told.err


def test_without_advisories_it_is_clean(osv: tuple[FakeOsv, str], ignored: Path) -> None:
    fake, url = osv
    fake.knows(RING, Part("cargo", "ring", "0.17.13", (), None, "required", ""))
    fake.knows({**YAML, "withdrawn": "2026-02-01T00:00:00Z"}, PARTS[1])
    assert audit("--url", url, "--ignored", ignored) == CLEAN
    assert fake.asked == ["/v1/querybatch", "/v1/vulns/PYSEC-1"]


def test_every_page_of_an_answer_is_read(
    osv: tuple[FakeOsv, str], ignored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, url = osv
    fake.page_size = 2
    for number in range(5):
        fake.knows({**RING, "id": f"RUSTSEC-{number}"}, PARTS[0])
    assert audit("--url", url, "--ignored", ignored) == FOUND
    assert len(capsys.readouterr().out.splitlines()) == 5
    # A server whose pages never end is given up.
    fake.page_size = 0
    assert audit("--url", url, "--ignored", ignored) == UNCHECKED
    assert "over 100 pages" in capsys.readouterr().err


def test_an_ignored_advisory_is_not_reported_until_its_end(
    osv: tuple[FakeOsv, str], ignored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, url = osv
    fake.knows(RING, PARTS[0])
    for name, until, code in (
        ("RUSTSEC-1", "2026-11-25", CLEAN),
        ("CVE-1", "2027-01-01", CLEAN),
        ("RUSTSEC-1", "2026-11-24", FOUND),
        ("RUSTSEC-2", "2027-01-01", FOUND),
    ):
        ignored.write_text(f'[[ignore]]\nid = "{name}"\nreason = "not called"\nuntil = {until}\n')
        assert audit("--url", url, "--ignored", ignored) == code, (name, until)
        told = capsys.readouterr()
        assert ("RUSTSEC-1" in told.out) == (code == FOUND)
        assert ("was ignored until 2026-11-24: remove the entry" in told.err) == (until < "2026-11-25")
        assert ("RUSTSEC-2 is ignored and was not found" in told.err) == (name == "RUSTSEC-2")


def test_an_entry_that_has_ended_fails_also_where_nothing_is_found_or_reached(
    osv: tuple[FakeOsv, str], ignored: Path
) -> None:
    ignored.write_text('[[ignore]]\nid = "RUSTSEC-1"\nreason = "not called"\nuntil = 2026-11-24\n')
    assert audit("--url", osv[1], "--ignored", ignored) == FOUND
    assert audit("--url", "http://127.0.0.1:1", "--ignored", ignored) == FOUND


@pytest.mark.parametrize(
    "text",
    [
        '[[ignore]]\nid = "A"\nuntil = 2027-01-01\n',
        '[[ignore]]\nid = "A"\nreason = " "\nuntil = 2027-01-01\n',
        '[[ignore]]\nid = "A"\nreason = "b"\n',
        '[[ignore]]\nid = "A"\nreason = "b"\nuntil = "soon"\n',
        '[[ignore]]\nid = "A"\nreason = "b"\nuntil = 2027-01-01T00:00:00\n',
        '[[ignore]]\nid = "A"\nreason = "b"\nuntil = 2027-01-01\nforever = true\n',
        'ignored = "A"\n',
        "[[ignore]\n",
    ],
)
def test_an_entry_needs_a_reason_and_an_end(
    osv: tuple[FakeOsv, str], ignored: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    ignored.write_text(text)
    assert audit("--url", osv[1], "--ignored", ignored) == BAD
    assert str(ignored) in capsys.readouterr().err
    assert osv[0].asked == []


def test_a_server_that_is_away_is_one_sentence_about_what_was_not_checked(
    ignored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit("--url", "http://127.0.0.1:1", "--ignored", ignored) == UNCHECKED
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "http://127.0.0.1:1 was not reached" in told.err
    assert "nothing was checked of 1 crates, 1 Python packages, 1 jars" in told.err


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>welcome</html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"results": []}'),
        (200, b'{"results": [{"vulns": 7}, {}, {}]}'),
        (200, b'{"results": [{"vulns": [{"name": "x"}]}, {}, {}]}'),
        (200, b'{"results": ["", "", ""]}'),
        (500, b"no"),
        (404, b"{}"),
    ],
)
def test_garbage_is_not_taken_for_no_findings(
    osv: tuple[FakeOsv, str], ignored: Path, capsys: pytest.CaptureFixture[str], status: int, body: bytes
) -> None:
    fake, url = osv
    fake.answer = lambda _: (status, body)
    assert audit("--url", url, "--ignored", ignored) == UNCHECKED
    assert f"audit: {url} " in capsys.readouterr().err


def test_an_advisory_that_cannot_be_fetched_is_not_taken_for_no_finding(
    osv: tuple[FakeOsv, str], ignored: Path
) -> None:
    fake, url = osv
    fake.knows(RING, PARTS[0])
    del fake.records["RUSTSEC-1"]
    assert audit("--url", url, "--ignored", ignored) == UNCHECKED
    fake.records["RUSTSEC-1"] = {"id": "RUSTSEC-1", "affected": "all"}
    assert audit("--url", url, "--ignored", ignored) == UNCHECKED


def _folder(path: Path, *records: dict[str, Any]) -> Path:
    path.mkdir()
    for one in records:
        (path / f"{one['id']}.json").write_text(json.dumps(one))
    return path


def test_a_folder_with_records_is_read_without_a_network(
    tmp_path: Path, ignored: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path / "db", OLD, YAML)
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("GHSA-1.json", json.dumps(JAR))
    monkeypatch.setenv("AUDIT_DB", str(folder))
    assert audit("--ignored", ignored) == FOUND
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["PYSEC-1", "GHSA-1"]


def test_a_record_about_a_repository_is_passed_over(tmp_path: Path, ignored: Path) -> None:
    of_git = {"ranges": [{"type": "GIT", "repo": "https://example.com/ring", "events": [{"introduced": "0"}]}]}
    folder = _folder(tmp_path / "db", OLD, {"id": "GIT-1", "affected": [of_git]}, {"id": "NONE-1"})
    assert audit("--db", folder, "--ignored", ignored, found=PARTS[:1]) == CLEAN


def test_parts_of_which_a_folder_has_no_record_are_named(
    tmp_path: Path, ignored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit("--db", _folder(tmp_path / "db", OLD), "--ignored", ignored) == UNCHECKED
    assert "1 Python packages, 1 jars were not checked" in capsys.readouterr().err
    assert audit("--db", tmp_path / "db", "--ignored", ignored, found=PARTS[:1]) == CLEAN


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("README.md", b"no advisory", "put OSV's all.zip"),
        ("RUSTSEC-1.md", b"no TOML", "RUSTSEC-1.md is not an advisory"),
        ("RUSTSEC-1.md", b"```toml\n[advisory]\n```", "RUSTSEC-1.md is not an advisory"),
        ("a.json", b"{", "a.json is not an advisory"),
        ("a.json", b'{"affected": 7}', "a.json is not an advisory"),
        ("all.zip", b"PK", "all.zip cannot be read"),
    ],
)
def test_a_folder_without_records_is_not_taken_for_no_findings(
    tmp_path: Path, ignored: Path, capsys: pytest.CaptureFixture[str], name: str, body: bytes, says: str
) -> None:
    folder = _folder(tmp_path / "db")
    (folder / name).write_bytes(body)
    assert audit("--db", folder, "--ignored", ignored) == UNCHECKED
    assert says in capsys.readouterr().err


def test_what_an_advisory_says_to_a_terminal_is_shown_and_not_done(
    tmp_path: Path, ignored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(tmp_path / "db", {**RING, "summary": "\x1b[2Jgone"})
    assert audit("--db", folder, "--ignored", ignored, found=PARTS[:1]) == FOUND
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "gone" in told


def test_the_list_of_the_project_is_valid_and_its_entries_have_not_ended() -> None:
    fixtures = Path(__file__).parents[1] / "fixtures" / "advisories"
    code = main(["--db", str(fixtures)], found=PARTS)
    assert code == CLEAN, "an entry of supply/ignored.toml has ended, or is wrong"
