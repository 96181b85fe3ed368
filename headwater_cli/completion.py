"""`headwater completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headwater_cli._nouns import COMPLETE_VARIABLE
from headwater_cli._output import put


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(show_default=False)],
) -> None:
    """Print the script for a shell.

    bash: `eval "$(headwater completion bash)"` in ~/.bashrc; zsh: the same with `zsh` in ~/.zshrc, after `compinit`;
    fish: `headwater completion fish > ~/.config/fish/completions/headwater.fish`.
    """
    from typer._completion_shared import get_completion_script

    put(get_completion_script(prog_name="headwater", complete_var=COMPLETE_VARIABLE, shell=shell.value))


def register(app: typer.Typer) -> None:
    app.command()(completion)
