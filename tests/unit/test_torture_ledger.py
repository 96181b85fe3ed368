"""The ledger of cluster torture: runs add up for the code that they ran on, and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import torture_ledger as ledger

OUTCOME = {
    "seed": 7,
    "sabotage": None,
    "acknowledged": 400_000,
    "seconds": 600.0,
    "findings": {"lost": 0, "two leaders": 0},
    "faults": {"kill": {"cycles": 40, "cluster_faults": 40}, "cut": {"cycles": 0}},
}


def test_runs_add_up_on_the_same_code(tmp_path: Path) -> None:
    path = tmp_path / "ledger.tsv"
    one = ledger.entry(OUTCOME)
    assert (one.faults, one.minutes, one.findings, one.each) == (40, 10, "-", "kill 40")
    ledger.add(one, path)
    ledger.add(one, path)
    ledger.add(replace(one, code="other"), path)
    done = ledger.entries(path)
    assert done == [one, one, replace(one, code="other")]
    assert ledger.owed(done, one.code) == (920, 200_000)
    assert ledger.owed(done, "newer") == (1_000, 1_000_000)


def test_findings_stand_in_the_line_and_mistakes_on_purpose_do_not_count() -> None:
    found = ledger.entry({**OUTCOME, "findings": {"lost": 2, "two leaders": 1}})
    assert found.findings == "2 lost, 1 two leaders"
    with pytest.raises(ValueError, match="on purpose"):
        ledger.entry({**OUTCOME, "sabotage": "no-sync"})


def test_the_code_changes_with_sources_and_not_with_tests(tmp_path: Path) -> None:
    for source in ledger.SOURCES:
        folder = tmp_path / "broker_edge/core" / source
        folder.mkdir(parents=True)
        (folder / "one.rs").write_text("fn one() {}")
    before = ledger.digest(tmp_path)
    (folder / "one_tests.rs").write_text("")
    assert ledger.digest(tmp_path) == before
    (folder / "one.rs").write_text("fn two() {}")
    assert ledger.digest(tmp_path) != before
