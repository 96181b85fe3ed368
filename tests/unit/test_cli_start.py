"""The command loads what it needs and nothing else, and shells complete it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwater_cli import main
from headwater_cli._nouns import NOUNS, load

CODE = "import sys; from headwater_cli import main; code = main(sys.argv[1:]); "
SLOW = ("asyncio", "numpy", "paho", "pyarrow", "pyspark", "rich", "ssl")
"""Each takes longer to load than the rest of a command that does not need it."""
HELP_MAX = 64
"""With the names before it fits a terminal of 80 columns."""


def _loaded(*words: str) -> set[str]:
    code = CODE + f"print(*({SLOW!r} & sys.modules.keys()), file=sys.stderr)"
    code = code.replace(repr(SLOW), repr(set(SLOW)))
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["completion", "bash"]], ids=" ".join)
def test_what_asks_no_broker_loads_no_library_of_one(words: list[str]) -> None:
    assert _loaded(*words) == set()


@pytest.mark.parametrize("words", [["--version"], ["broker", "--help"], ["bench", "--help"]], ids=" ".join)
def test_what_the_native_module_does_alone_loads_no_library_for_command_lines(words: list[str]) -> None:
    code = CODE + "print(*({'typer', 'logging', 'tempfile', 'rich'} & sys.modules.keys()), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == ""
    assert done.stdout


def test_the_native_module_alone_has_the_exit_codes_of_all_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "broker_edge._core", None)
    assert main(["broker"]) == 1
    assert main(["--version", "--debug"]) == 1
    first, *traceback, last = capsys.readouterr().err.splitlines()
    assert first.startswith("headwater: the native module of headwater is missing")
    assert (first, traceback[0]) == (last, "Traceback (most recent call last):")


def test_the_help_of_a_command_loads_that_command_alone() -> None:
    assert "pyspark" not in _loaded("tail", "-h")
    assert _loaded("users", "-h") <= {"rich"}


def test_each_module_of_a_noun_is_a_command_with_a_line_of_help() -> None:
    folder = Path(sys.modules["headwater_cli"].__file__ or "").parent
    modules = {path.stem for path in folder.glob("[!_]*.py") if "\ndef register(" in path.read_text()}
    # These are parts of `headwater devices`.
    assert modules - {"inventory", "selectors"} == set(NOUNS)
    for name, text in NOUNS.items():
        assert len(text) <= HELP_MAX, name
        assert text.endswith("."), name


@pytest.mark.parametrize("name", NOUNS)
def test_h_is_help(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    below = getattr(load(name), "commands", {})
    for words in ([name], *([name, one] for one in below)):
        assert main([*words, "-h"]) == 0, words
        short = capfd.readouterr().out
        assert main([*words, "--help"]) == 0
        assert short == capfd.readouterr().out
        assert "sage" in short, words


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and text in shown for name, text in NOUNS.items())


def test_a_slip_of_the_finger_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offset"]) == 2
    said = capsys.readouterr().err
    assert said == "headwater: No such command 'offset'. Did you mean 'offsets'? (see `headwater --help`)\n"


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A folder with `headwater`."""
    program = tmp_path / "headwater"
    program.write_text(f"#!{sys.executable}\n{CODE}sys.exit(code)\n")
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["headwater", "cl"], ["cluster", "clients"]),
        (["headwater", "tail", "--fr"], ["--from"]),
        (["headwater", "groups", "--se"], ["--server"]),
        (["headwater", "log", "ver"], ["verify"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bash_completes_commands_and_options(command: Path, words: list[str], found: list[str]) -> None:
    bash = shutil.which("bash")
    assert bash, "this test needs bash"
    script = (
        'eval "$(headwater completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_headwater_completion headwater; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{command}:{os.environ['PATH']}"
    words = [bash, "-c", script, "bash", *words]
    done = subprocess.run(words, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.stderr) == (found, "")


@pytest.mark.parametrize(
    ("shell", "answer"),
    [
        ("zsh", '"clients":"List, show and disconnect clients."'),
        ("fish", "clients\tList, show and disconnect clients."),
    ],
)
def test_zsh_and_fish_ask_by_their_scripts(
    shell: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert f"_HEADWATER_COMPLETE=complete_{shell}" in capsys.readouterr().out
    monkeypatch.setenv("_HEADWATER_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "headwater cli")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert main([]) == 0
    assert answer in capsys.readouterr().out


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    said = capsys.readouterr().err
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in said
    assert "Value error" not in said
