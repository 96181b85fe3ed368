"""What the native module does alone, with its own arguments, output, signals and exit codes."""

from __future__ import annotations

import signal

from broker_edge.native import native


def run_native(name: str, *words: str) -> int:
    """`--version`, `broker` or `bench`. Returns the exit code; raises StartError without the native module."""
    core = native()
    if name == "--version":
        print(f"headwater {core.version()}", flush=True)
        return 0
    # The native signal handling also calls the previous handler: Python's would turn a clean stop into an interrupt.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = core.bench if name == "bench" else core.run
    return int(run(list(words)))
