"""`headwater users`: the password file of a broker. The native tool does the work; passwords are never arguments.

On a terminal the command asks for the password twice without showing it; otherwise it reads the first line of stdin.
Exit codes: 0 done, 1 failed or wrong password, 2 usage, 4 refused.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.native import native
from headwater_cli._options import JsonOption

app = typer.Typer(help="Users of a broker: add, generate, remove, list, verify.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="`auth.password_file`.", show_default=False)]
UserArgument = Annotated[str, typer.Argument(metavar="USER", show_default=False)]


_WRITING = ("add", "generate", "remove")
"""These read the file and put another one in its place. A pipe has nothing to read, and would never end."""


def _ask(*, twice: bool) -> None:
    """Asks for a password on the terminal and puts it on stdin, where the native tool reads it."""
    if not sys.stdin.isatty():
        return
    secret = typer.prompt("Password", hide_input=True, confirmation_prompt=twice, err=True)
    reading, writing = os.pipe()
    # A pipe holds more than the longest password, so this write cannot block.
    os.write(writing, f"{secret}\n".encode()[:4097])
    os.close(writing)
    os.dup2(reading, 0)
    os.close(reading)


def _run(verb: str, file: Path, *words: object) -> None:
    if verb in _WRITING and file.exists() and not file.is_file():
        raise typer.BadParameter(f"{file} is no file: users are kept in a file, which {verb} writes again")
    words = (file, *words)
    raise typer.Exit(native().run(["users", verb, *(str(word) for word in words)]))


@app.command()
def add(
    file: FileArgument,
    user: UserArgument,
    scram: Annotated[bool, typer.Option("--scram", help="Also store the data for SCRAM-SHA-256.")] = False,
) -> None:
    """Add a user, or change a user's password. A running broker reloads the file on SIGHUP."""
    _ask(twice=True)
    _run("add", file, user, *(["--scram"] if scram else []))


@app.command()
def generate(file: FileArgument) -> None:
    """Generate passwords for a fleet: names on stdin, one per line; `name:password` on stdout. Fast to verify."""
    _run("generate", file)


@app.command()
def remove(file: FileArgument, user: UserArgument) -> None:
    """Remove a user."""
    _run("remove", file, user)


@app.command("list")
def list_(file: FileArgument, json: JsonOption = False) -> None:
    """List the users and what is stored for each of them, never the password."""
    _run("list", file, *(["--json"] if json else []))


@app.command()
def verify(file: FileArgument, user: UserArgument) -> None:
    """Check a user's password; the exit code is the result."""
    _ask(twice=False)
    _run("verify", file, user)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="users")
