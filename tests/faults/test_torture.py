"""`headwater torture` in a short form: no acknowledged record is lost, whatever happens (I1 to I5).

HEADWATER_FAULT_CYCLES sets the number of kills and power cuts (default 10 each), HEADWATER_FAULT_SEED repeats a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_edge.torture.faults import FAULTS
from broker_edge.torture.process import binary
from broker_edge.torture.report import Finding
from broker_edge.torture.runner import Outcome, Run, run
from broker_edge.torture.sabotage import SABOTAGES

# A few of each here; `kill` and `power` have their own count.
CYCLES = {
    "failpoints": 16,
    "tears": 3,
    "errors": 10,
    "full": 2,
    "slow": 1,
    "bits": 25,
    "index": 7,
    "clock": 3,
    "fds": 2,
    "copy": 2,
    "stop": 2,
    "pause": 2,
}
SABOTAGE_CYCLES = 40


def _run(folder: Path, faults: list[str], *, seed: int, cycles: int, sabotage: str | None = None) -> Outcome:
    faults_program = binary().with_name("headwaterd-faults")
    wanted = Run(
        folder=folder,
        program=binary(),
        faults_program=faults_program if faults_program.exists() else None,
        faults={name: FAULTS[name] for name in faults},
        seed=seed,
        cycles=cycles,
        sabotage=sabotage,
    )
    return run(wanted, lambda outcome: None)


@pytest.fixture
def can_run(need):
    """Says what a fault needs and lacks here."""

    def check(fault: str, *, with_faults: bool) -> None:
        lacks = FAULTS[fault].lacks()
        if with_faults and not binary().with_name("headwaterd-faults").exists():
            lacks.append(f"{binary()}-faults is missing: run `make faults-build`")
        need(lacks if binary().exists() else [f"{binary()} is missing: run `make build`"])

    return check


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_acknowledged_survives(tmp_path, can_run, seed, cycles, note, fault):
    can_run(fault, with_faults=FAULTS[fault].needs_fault_build)
    outcome = _run(tmp_path, [fault], seed=seed, cycles=CYCLES.get(fault, cycles))
    report = outcome.tallies[fault].report
    note(report)
    assert outcome.clean, outcome.to_json()
    assert report.acked > 0, outcome.to_json()
    if fault in ("kill", "power"):
        assert report.recycled > 0, "no segment was recycled: retention was not tested"
        assert report.qos2_completed > 0, "no QoS 2 publish completed"
    assert outcome.tallies[fault].cycles == CYCLES.get(fault, cycles)


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_control_mistake_is_found(tmp_path, can_run, seed, note, sabotage):
    known = SABOTAGES[sabotage]
    can_run(known.fault, with_faults=True)
    outcome = _run(tmp_path, [known.fault], seed=seed, cycles=SABOTAGE_CYCLES, sabotage=sabotage)
    note(outcome.tallies[known.fault].report)
    found = {word for word, count in outcome.counts().items() if count}
    assert found & known.words, f"{sabotage} was found as {found or 'nothing'}, seed {seed}"


def test_control_fault_build_has_what_releases_must_not_have(can_run):
    can_run("failpoints", with_faults=True)
    traces = [b"HEADWATER_FAULTS", b"checksum-ignored", b"batch-written"]
    default, faulty = binary().read_bytes(), binary().with_name("headwaterd-faults").read_bytes()
    assert [trace for trace in traces if trace in default] == []
    assert [trace for trace in traces if trace not in faulty] == []


def test_finding_says_where_it_is_kept_and_how_to_repeat_it(tmp_path, can_run, seed):
    can_run("bits", with_faults=True)
    outcome = _run(tmp_path, ["bits"], seed=seed, cycles=SABOTAGE_CYCLES, sabotage="checksum-ignored")
    kept = outcome.kept[-1]
    assert (kept.folder / "data").is_dir()
    text = (kept.folder / "findings.txt").read_text()
    assert Finding.CHANGED in text
    assert f"--seed {seed} --life {kept.life}" in text
