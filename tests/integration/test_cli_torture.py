"""`headwater torture` as a command: exit codes, the JSON at the end, and Ctrl-C in the middle."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from support.programs import headwater, headwaterd, start_headwater

END_S = 240


@pytest.mark.parametrize("option", ["--faults", "--hurts"])
def test_run_without_findings_ends_with_0_and_counts(tmp_path: Path, option: str) -> None:
    arguments = [option, "kill", "--cycles", "2", "--records", "200", "--json", "--data-dir", str(tmp_path)]
    done = headwater("torture", "--broker", headwaterd(), *arguments)
    assert done.code == 0, done.err
    (counts,) = done.documents
    assert counts["cycles"] == 2
    assert counts["acknowledged"] > 0
    assert counts["faults"]["kill"]["cycles"] == counts["hurts"]["kill"]["cycles"] == 2
    assert ("--hurts is now --faults" in done.err) == (option == "--hurts")
    assert not any(counts["findings"].values())
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_are_usage_errors() -> None:
    of_cluster = (
        ["--cluster", "2"],
        ["--cluster", "3", "--faults", "fds"],
        ["--cluster", "3", "--sabotage", "kindness"],
    )
    for arguments in (["--faults", "thunder"], ["--sabotage", "kindness"], ["--for", "soon"], *of_cluster):
        done = headwater("torture", "--broker", headwaterd(), *arguments)
        assert done.code == 2, done.err
        assert done.err.count("\n") == 1, done.err


def test_missing_broker_is_named(tmp_path: Path) -> None:
    done = headwater("torture", "--broker", str(tmp_path / "nowhere"))
    assert done.code == 5
    assert str(tmp_path / "nowhere") in done.err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_with_the_counts_so_far(tmp_path: Path, how: signal.Signals) -> None:
    arguments = ["--faults", "kill", "--cycles", "20", "--records", "50", "--for", "60s", "--data-dir", str(tmp_path)]
    running = start_headwater("torture", "--broker", headwaterd(), "--json", *arguments)
    assert running.stderr is not None
    while "1 cycles" not in running.stderr.readline():
        assert running.poll() is None
    running.send_signal(how)
    out, err = running.communicate(timeout=END_S)
    assert running.returncode == 130, err
    assert json.loads(out)["interrupted"]
