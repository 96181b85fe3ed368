"""Coverage-guided fuzzing of every reader of bytes from outside, one target after the other, on the corpus of earlier
runs in .cache/fuzz. Each run is added to the ledger in the tree (fuzz_ledger.py).

    make fuzz                                              60 seconds for each target
    make fuzz ARGS='--goal'                                what each target still owes
    make fuzz ARGS='--status'                              runs nothing: what has been run, and what is owed
    make fuzz ARGS='--executions 10000000 --target mqtt'
    make fuzz ARGS='--target mqtt --input FILE'            one input again
    make fuzz ARGS='--merge'                               puts what reaches new code into the corpus of the tree

Ctrl-C ends the run after the target's figures; the next run goes on from there. The status is 1 if a target crashed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import fuzz_ledger as ledger

ROOT = ledger.ROOT
PROGRAM = ROOT / ".cache/fuzz/build/fuzz/headwater-fuzz"
PYTHON = ROOT / ".cache/fuzz/python"
"""atheris; empty where it has no wheel for this Python."""
TREE = ROOT / "broker_edge/core/fuzz/corpus"
LIMITS = ["-timeout=60", "-report_slow_units=60", "-rss_limit_mb=2048", "-malloc_limit_mb=1024"]
"""Of one input: seconds, which count on while a busy machine does not run it; memory of the process, one allocation.
The program bounds the memory of an input closely."""
INPUT_BYTES_MAX, INPUTS_BYTES_MAX = 4096, 20 * 1024
"""Of an input in the tree, and of a target's inputs together, so that the corpora stay below 1 MB."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of a target did."""

    target: str
    executions: int
    cpu_s: float
    coverage: int
    corpus: int
    crashes: tuple[Path, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers of bytes from outside.")
    parser.add_argument("--seconds", type=int, help="time for each target (default 60)")
    parser.add_argument("--executions", type=int, help="inputs for each target, instead of a time")
    parser.add_argument("--goal", action="store_true", help="the executions that each target still owes")
    parser.add_argument("--status", action="store_true", help="show what has been run on the present code")
    parser.add_argument("--target", action="append", help="only this target; may be given several times")
    parser.add_argument("--input", type=Path, help="run one input of one target again")
    parser.add_argument("--merge", action="store_true", help="put the smallest inputs with all coverage into the tree")
    args = parser.parse_args()
    if args.status:
        status()
        return 0
    known = names()
    unknown = sorted(set(args.target or ()) - set(known))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; the targets are {', '.join(known)}")
    targets = args.target or known
    if args.input is not None:
        if len(targets) != 1:
            parser.error("--input needs one --target")
        return subprocess.call([*command_of(targets[0]), *limits(targets[0]), args.input], env=environment(targets[0]))
    if args.merge:
        for target in targets:
            merge(target)
        return 0
    stop = f"-runs={args.executions}" if args.executions else f"-max_total_time={args.seconds or 60}"
    done: list[Figures] = []
    try:
        for target in targets:
            if args.goal:
                left = ledger.owed(known_target(target), ledger.entry(known_target(target), TREE.parent, ROOT))
                if left == 0:
                    continue
                stop = f"-runs={left}"
            done.append(run(target, stop))
            print(line(done[-1]), flush=True)
    except KeyboardInterrupt:
        print("stopped; the next run goes on from this corpus", flush=True)
    table(done)
    return int(any(figures.crashes for figures in done))


def names() -> list[str]:
    """The targets in Rust, then those in Python."""
    kinds = ["", "py_"] if (PYTHON / "atheris").exists() else [""]
    if len(kinds) == 1:
        print("atheris has no wheel for this Python: the readers in Python are left out", file=sys.stderr)
    listed = [subprocess.run(command_of(kind), env=environment("list"), capture_output=True, text=True, check=True)
              for kind in kinds]  # fmt: skip
    return [name for one in listed for name in one.stdout.split()]


def command_of(target: str) -> list[Path | str]:
    return [sys.executable, Path(__file__).with_name("fuzz_python.py")] if target.startswith("py_") else [PROGRAM]


def environment(target: str) -> dict[str, str]:
    path = f"{PYTHON}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    # One arena: what the system's allocator keeps for threads that come and go would pass for growth.
    return {**os.environ, "PYTHONPATH": path, "HEADWATER_FUZZ_TARGET": target, "MALLOC_ARENA_MAX": "1"}


def known_target(target: str) -> ledger.Target:
    return ledger.targets(TREE.parent)[target]


def limits(target: str) -> list[str]:
    return [*LIMITS, f"-max_len={known_target(target).input_bytes_max}"]


def work(target: str) -> Path:
    folder = ROOT / ".cache/fuzz" / target
    for part in ("corpus", "crashes"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return folder


def run(target: str, stop: str) -> Figures:
    folder = work(target)
    before = set((folder / "crashes").iterdir())
    command = [*command_of(target), folder / "corpus", unpacked(target), *limits(target), stop, "-print_final_stats=1",
               f"-artifact_prefix={folder / 'crashes'}/"]  # fmt: skip
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(command, env=environment(target), stdout=log, stderr=subprocess.STDOUT)
        interrupted = False
        while True:
            try:
                _, status, used = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
                break
            except KeyboardInterrupt:
                interrupted = True  # libFuzzer got the signal too, and writes its figures.
    text = (folder / "log").read_text(errors="replace")
    crashes = tuple(sorted(set((folder / "crashes").iterdir()) - before))
    figures = Figures(target, found(r"number_of_executed_units: (\d+)", text) or found(r"#(\d+)\t", text),
                      used.ru_utime + used.ru_stime, found(r"cov: (\d+)", text),
                      len(list((folder / "corpus").iterdir())), crashes)  # fmt: skip
    ledger.add(known_target(target), figures.executions, figures.cpu_s, len(crashes), TREE.parent, ROOT)
    if interrupted:
        print(line(figures), flush=True)
        raise KeyboardInterrupt
    if child.returncode != 0 and not crashes:
        sys.exit(f"{target}: the fuzzer ended with status {child.returncode}; see {folder / 'log'}")
    return figures


def found(pattern: str, text: str) -> int:
    """The last number of this kind in the output."""
    numbers = re.findall(pattern, text)
    return int(numbers[-1]) if numbers else 0


def line(figures: Figures) -> str:
    text = f"{figures.target}: {figures.executions:,} executions, coverage {figures.coverage}"
    for crash in figures.crashes:
        text += f"\n  crash: make fuzz ARGS='--target {figures.target} --input {crash}'"
    return text


def table(done: list[Figures]) -> None:
    print(f"\n{'target':<20}{'executions':>14}{'CPU s':>8}{'coverage':>10}{'corpus':>8}{'crashes':>9}")
    for figures in done:
        print(f"{figures.target:<20}{figures.executions:>14,}{figures.cpu_s:>8,.0f}{figures.coverage:>10}"
              f"{figures.corpus:>8}{len(figures.crashes):>9}")  # fmt: skip


def status() -> None:
    print(f"{'target':<20}{'kind':<7}{'executions':>14}{'CPU s':>8}{'last':>12}{'found':>7}{'owed':>14}")
    for target in ledger.targets(TREE.parent).values():
        done = ledger.entry(target, TREE.parent, ROOT)
        kind = "pure" if target.is_pure else "other"
        print(f"{target.name:<20}{kind:<7}{done.executions:>14,}{done.cpu_s:>8,}{done.last:>12}{done.found:>7}"
              f"{ledger.owed(target, done):>14,}")  # fmt: skip


def merge(target: str) -> None:
    """Keeps the inputs of the tree and of the working corpus that together reach what all reach, few and small."""
    folder, tree = work(target), unpacked(target)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        # By places reached, not by how often: a tenth of the inputs.
        options = ["-set_cover_merge=1", "-use_counters=0", f"-artifact_prefix={folder / 'crashes'}/", *limits(target)]
        command = [*command_of(target), *options, place, tree, folder / "corpus"]
        # atheris cannot merge; its corpora are short as they are.
        kept = [tree, folder / "corpus"] if target.startswith("py_") else [Path(place)]
        if kept == [Path(place)]:
            subprocess.run(command, env=environment(target), check=True, capture_output=True)
        found = {path.read_bytes() for one in kept for path in one.iterdir()}
    left, lines = INPUTS_BYTES_MAX, []
    for payload in sorted(found, key=lambda payload: (len(payload), payload)):
        if 0 < len(payload) <= min(left, INPUT_BYTES_MAX):
            left -= len(payload)
            lines.append(payload.hex() + "\n")
    (TREE / f"{target}.hex").write_text("".join(lines))
    print(f"{target}: {len(lines)} of {len(found)} inputs, {INPUTS_BYTES_MAX - left:,} bytes")


def unpacked(target: str) -> Path:
    """The corpus of the tree, one input a line, as a folder."""
    folder = work(target) / "tree"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number, text in enumerate((TREE / f"{target}.hex").read_text().split()):
        (folder / str(number)).write_bytes(bytes.fromhex(text))
    return folder


if __name__ == "__main__":
    sys.exit(main())
