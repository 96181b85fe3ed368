"""`headwater users` writes the password file again: what is no file is refused before it is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "import sys; from headwater_cli import main; sys.exit(main(sys.argv[1:]))"
DEADLINE_S = 60


@pytest.mark.parametrize("words", [("add", "ann"), ("generate",), ("remove", "ann")])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    pipe = tmp_path / "users"
    os.mkfifo(pipe)
    verb, *more = words
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "users", verb, str(pipe), *more],
        input="secret\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{pipe} is no file: users are kept in a file" in done.stderr
    assert pipe.is_fifo()
