"""`headwater torture --cluster 3` in a short form: nothing acknowledged is lost by a cluster, and mistakes are found.

HEADWATER_FAULT_SEED repeats a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_edge.torture.cluster.faults import CLUSTER_FAULTS
from broker_edge.torture.cluster.sabotage import CLUSTER_SABOTAGES
from broker_edge.torture.process import binary, faults_binary
from broker_edge.torture.runner import Outcome, Run, run

RECORDS_MAX = 1_000
SABOTAGE_CYCLES = 40


def _run(folder: Path, faults: list[str], *, seed: int, cycles: int, sabotage: str | None = None) -> Outcome:
    faults_program = faults_binary(binary())
    wanted = Run(
        folder=folder,
        program=binary(),
        faults_program=faults_program if faults_program.exists() else None,
        faults={name: CLUSTER_FAULTS[name] for name in faults},
        seed=seed,
        cycles=cycles,
        sabotage=sabotage,
        records_max=RECORDS_MAX,
        nodes=3,
        sabotages=CLUSTER_SABOTAGES,
    )
    return run(wanted, lambda outcome: None)


@pytest.fixture
def can_run(need):
    """Says what a fault needs and lacks here."""

    def check(fault: str, *, with_faults: bool) -> None:
        lacks = CLUSTER_FAULTS[fault].lacks()
        if with_faults and not faults_binary(binary()).exists():
            lacks.append(f"{faults_binary(binary())} is missing: run `make faults-build`")
        need(lacks if binary().exists() else [f"{binary()} is missing: run `make build`"])

    return check


@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_what_a_cluster_acknowledged_survives(tmp_path, can_run, seed, note, fault):
    can_run(fault, with_faults=False)
    outcome = _run(tmp_path, [fault], seed=seed, cycles=3)
    report = outcome.tallies[fault].report
    note(report)
    assert outcome.clean, outcome.to_json()
    assert report.faults == 3
    assert report.acked > 0, outcome.to_json()
    assert report.qos2_completed > 0, "no QoS 2 publish completed"
    assert list(tmp_path.iterdir()) == [], "folders of lives without findings are removed"


def test_control_a_mistake_of_a_leader_is_found(tmp_path, can_run, seed, note):
    known = CLUSTER_SABOTAGES["ack-at-leader"]
    can_run(known.fault, with_faults=True)
    outcome = _run(tmp_path, [known.fault], seed=seed, cycles=SABOTAGE_CYCLES, sabotage="ack-at-leader")
    note(outcome.tallies[known.fault].report)
    found = {word for word, count in outcome.counts().items() if count}
    assert found & known.words, f"found as {found or 'nothing'}, seed {seed}"
    kept = outcome.kept[-1]
    assert "cut" in (kept.folder / "history.txt").read_text()
    assert "--cluster 3 --cycles" in (kept.folder / "findings.txt").read_text()
