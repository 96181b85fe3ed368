"""What the console of a fleet keeps in memory that it does not need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.programs import run

# Each of the threads has its turn while the others still hold theirs, so none takes the memory of another. What stays
# at the end of each is a small piece, as of an answer that is kept.
_FREED = """
import re, threading
from fleet_console import memory
memory.keep_little()
barrier, kept = threading.Barrier(8), []
def ask():
    pieces = [bytes(2_000) for _ in range(4_000)]
    kept.append(bytes(2_000))
    barrier.wait()
    pieces.clear()
def anonymous_mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = anonymous_mib()
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
memory.give_back()
print(anonymous_mib() - before)
"""


def test_no_library_is_loaded_that_no_page_needs() -> None:
    """pandas, which comes with pyarrow.dataset, takes 40 MB; the three others some 20."""
    needless = {"pandas", "pyarrow.dataset", "pyarrow.flight", "obstore", "cryptography"}
    loaded = f"import sys, fleet_console.serve; print({needless} & set(sys.modules))"
    assert run(sys.executable, "-c", loaded).out.strip() == "set()"


def test_what_threads_have_freed_goes_back_to_the_system() -> None:
    """Of 64 MB."""
    assert float(run(sys.executable, "-c", _FREED).out) < 8


@pytest.mark.parametrize("given", [None, "narenas:3"])
def test_an_allocator_that_somebody_has_set_stays_so(given: str | None) -> None:
    told = "import os; from fleet_console import memory; memory.keep_little(); print(os.environ['_RJEM_MALLOC_CONF'])"
    variables = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    variables |= {} if given is None else {"_RJEM_MALLOC_CONF": given}
    found = subprocess.run([sys.executable, "-c", told], env=variables, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(given or "narenas:1,")
