"""The `headwater` command: one file per noun, data on stdout, messages on stderr.

Exit codes: 0 ok, 1 failed, 2 usage, 3 cannot connect, or trouble of an object store, 4 refused, 5 config invalid, 124
timed out, 130 interrupted. Bad input and an unreachable broker end with a one-sentence message; `--debug` shows the
traceback.

Only `main` is here: what the native module does alone, such as `headwater broker`, starts without the library for
command lines, which takes two thirds of the time and some memory for as long as the broker runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater_cli._native import run_native

if TYPE_CHECKING:
    from headwater_cli._app import app

__all__ = ["app", "main"]

_NATIVE = ("broker", "bench")

# Not for type checkers, which would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from headwater_cli._app import app

        return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; the console script exits with it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or bool(os.environ.get("HEADWATER_DEBUG"))
    given = [word for word in given if word != "--debug"]
    if given == ["--version"] or (given and given[0] in _NATIVE):
        try:
            return run_native(*given)
        except Exception as error:
            from headwater_cli._app import report

            return report(error, debug=debug)
    from headwater_cli._app import run

    return run(given, debug=debug)
