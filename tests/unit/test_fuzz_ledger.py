"""Runs of `make fuzz` add up while a target's code stays as it is, and each target is listed with code that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import fuzz_ledger as ledger
from unit.test_fuzz_readers import READERS

CORE = ledger.ROOT / "broker_edge/core"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src/tests").mkdir(parents=True)
    (tmp_path / "src/acl.rs").write_text("fn acl() {}")
    (tmp_path / "src/tests/more.rs").write_text("")
    (tmp_path / "Cargo.lock").write_text(
        '[[package]]\nname = "a"\nversion = "1"\n\n[[package]]\nname = "b"\nversion = "1"\n'
    )
    (tmp_path / "targets.tsv").write_text("# words\nacl\tpure\t512\tsrc Cargo.lock#a\nslow\tother\t64\tsrc\n")
    return tmp_path


def run(tree: Path, name: str, executions: int, cpu_s: float = 1, found: int = 0) -> ledger.Entry:
    return ledger.add(ledger.targets(tree)[name], executions, cpu_s, found, tree, tree)


def test_runs_on_the_same_code_add_up(tree: Path) -> None:
    run(tree, "slow", 3)
    run(tree, "acl", 1000, 2.6)
    added = run(tree, "acl", 500, 0.4, found=1)
    assert (added.executions, added.cpu_s, added.found) == (1500, 3, 1)
    assert [line.split("\t")[0] for line in (tree / "ledger.tsv").read_text().splitlines()[3:]] == ["acl", "slow"]


@pytest.mark.parametrize(
    ("path", "text", "begins_again"),
    [
        ("src/acl.rs", "fn acl() { }", True),
        ("src/new.rs", "", True),
        ("Cargo.lock", '[[package]]\nname = "a"\nversion = "2"\n', True),
        ("Cargo.lock", '[[package]]\nname = "a"\nversion = "1"\n\n[[package]]\nname = "b"\nversion = "2"\n', False),
        ("src/tests/more.rs", "fn more() {}", False),
        ("src/acl_tests.rs", "fn more() {}", False),
        ("src/notes.md", "words", False),
    ],
)
def test_a_change_of_the_code_begins_the_count_again(tree: Path, path: str, text: str, begins_again: bool) -> None:
    run(tree, "acl", 1000, found=2)
    (tree / path).write_text(text)
    entry = ledger.entry(ledger.targets(tree)["acl"], tree, tree)
    assert (entry.executions, entry.found) == (0 if begins_again else 1000, 2)


def test_a_pure_parser_owes_ten_million_executions_and_another_a_million_or_two_hours(tree: Path) -> None:
    pure, slow = ledger.targets(tree)["acl"], ledger.targets(tree)["slow"]
    assert ledger.owed(pure, run(tree, "acl", 9_999_990, 9000)) == 10
    assert ledger.owed(pure, run(tree, "acl", 20)) == 0
    assert ledger.owed(slow, run(tree, "slow", 10)) == 999_990
    assert ledger.owed(slow, run(tree, "slow", 10, 7200)) == 0


def test_code_that_is_not_there_is_named(tree: Path) -> None:
    (tree / "targets.tsv").write_text("acl\tpure\t512\tsrc/acl.rs Cargo.lock#c\n")
    with pytest.raises(ValueError, match=r"acl: there is no Cargo\.lock#c"):
        run(tree, "acl", 1)


def test_every_target_is_listed_with_code_that_exists_and_a_corpus() -> None:
    listed = ledger.targets()
    for target in listed.values():
        assert ledger.digest(target)
    texts = [(CORE / place).read_text() for place in ("broker/src/fuzz/mod.rs", "log/src/fuzz.rs", "fuzz/src/main.rs")]
    names = {
        name for text in texts for name in re.findall(r'^\s+\("(\w+)", [\w:]+\),$|\[\("(mqtt)"', text, re.MULTILINE)
    }
    expected = {a or b for a, b in names} | {"py_" + re.sub("[ .]", "_", name) for name in READERS}
    expected |= set(re.findall(r'"(mqtt)", mqtt', texts[2]))
    assert set(listed) == expected
    assert {path.stem for path in (CORE / "fuzz/corpus").iterdir()} == expected
    assert sum(path.stat().st_size for path in (CORE / "fuzz/corpus").iterdir()) < 1 << 20
