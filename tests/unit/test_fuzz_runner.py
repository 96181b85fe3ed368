"""`make fuzz` goes on from earlier runs, counts what it ran, and shows what crashed and how to see it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import fuzz

PROGRAM = """\
#!/usr/bin/env python3
import os, pathlib, sys
if os.environ["HEADWATER_FUZZ_TARGET"] == "list":
    print("acl\\nmqtt"); sys.exit()
corpus = pathlib.Path(sys.argv[1])
(corpus / str(len(list(corpus.iterdir())))).write_bytes(b"new")
print("#7\\tNEW cov: 12 ft: 3 corp: 1/1b")
print("stat::number_of_executed_units: 1000")
place = next(word for word in sys.argv if word.startswith("-artifact_prefix=")).partition("=")[2]
if "-runs=13" in sys.argv:
    pathlib.Path(place + "crash-1").write_bytes(b"bad"); sys.exit(77)
if "-runs=14" in sys.argv:
    sys.exit(1)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    tree = tmp_path / "corpus"
    tree.mkdir()
    (tree / "acl.hex").write_text("00ff\n61\n")
    (tmp_path / "acl.rs").write_text("fn acl() {}")
    (tmp_path / "targets.tsv").write_text("acl\tpure\t512\tacl.rs\n")
    monkeypatch.setattr(fuzz, "ROOT", tmp_path)
    monkeypatch.setattr(fuzz, "TREE", tree)
    monkeypatch.setattr(fuzz, "PROGRAM", program)
    return tmp_path


def test_a_second_run_goes_on_from_the_corpus_of_the_first_and_adds_to_its_executions(project: Path) -> None:
    first, second = fuzz.run("acl", "-runs=1"), fuzz.run("acl", "-runs=1")
    assert (first.executions, first.coverage, first.corpus, second.corpus) == (1000, 12, 1, 2)
    assert fuzz.ledger.entry(fuzz.known_target("acl"), project, project).executions == 2000
    assert sorted(path.read_bytes() for path in fuzz.unpacked("acl").iterdir()) == [b"\x00\xff", b"a"]


def test_a_crash_is_shown_with_the_command_that_repeats_it(project: Path) -> None:
    figures = fuzz.run("acl", "-runs=13")
    assert [crash.read_bytes() for crash in figures.crashes] == [b"bad"]
    assert f"make fuzz ARGS='--target acl --input {figures.crashes[0]}'" in fuzz.line(figures)


def test_a_fuzzer_that_ends_without_a_finding_and_without_success_ends_the_run(project: Path) -> None:
    with pytest.raises(SystemExit, match="acl: the fuzzer ended with status 1; see"):
        fuzz.run("acl", "-runs=14")


def test_an_unknown_target_is_refused_with_the_known_ones(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz.py", "--target", "mqqt"])
    with pytest.raises(SystemExit):
        fuzz.main()
    assert "unknown target 'mqqt'; the targets are acl, mqtt" in capsys.readouterr().err
