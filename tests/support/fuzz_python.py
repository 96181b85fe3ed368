"""The readers in Python of bytes from outside under atheris, which is libFuzzer: `make fuzz` starts it for each target.

The readers, their errors and the bounds are those of tests/unit/test_fuzz_readers.py; here coverage of our packages
guides the inputs. HEADWATER_FUZZ_TARGET names the target; `list` prints the names.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

import atheris  # noqa: E402

OURS = ["actions", "broker_edge", "pipelines", "sinks", "yaml", "csv", "json"]

with atheris.instrument_imports(include=OURS, enable_loader_override=False):
    from unit.test_fuzz_readers import READERS, check

TARGETS = {"py_" + name.replace(".", "_").replace(" ", "_"): reader for name, reader in READERS.items()}


def main() -> None:
    wanted = os.environ.get("HEADWATER_FUZZ_TARGET", "list")
    if wanted == "list":
        print("\n".join(TARGETS))
        return
    reader = TARGETS[wanted]
    with tempfile.TemporaryDirectory() as folder:
        atheris.Setup(sys.argv, lambda payload: check(reader, Path(folder), payload))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
