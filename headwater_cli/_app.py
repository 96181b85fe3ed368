"""The commands below `headwater`: options before them, exit codes, and one sentence for an error."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from broker_edge.errors import (
    ConfigError,
    ConnectError,
    DeadlineError,
    FencedError,
    FullError,
    HeadwaterError,
    MissingExtraError,
    OutOfRangeError,
    RefusedError,
    SettingsError,
    StoreError,
    UnavailableError,
)
from broker_edge.escape import SafeFormatter
from headwater_cli._access import (
    CaOption,
    CertOption,
    KeyOption,
    PasswordOption,
    TokenOption,
    UserOption,
    use,
)
from headwater_cli._contexts import ContextOption
from headwater_cli._native import run_native
from headwater_cli._nouns import COMPLETE_VARIABLE, Nouns
from headwater_cli._output import say, say_lines

_EXIT_CODES: tuple[tuple[type[HeadwaterError], int], ...] = (
    (ConnectError, 3),
    (UnavailableError, 3),
    (StoreError, 3),
    (RefusedError, 4),
    (OutOfRangeError, 4),
    (FencedError, 4),
    (FullError, 4),
    (ConfigError, 5),
    (SettingsError, 5),
    (MissingExtraError, 5),
    (DeadlineError, 124),
)

app = typer.Typer(
    name="headwater",
    cls=Nouns,
    help="Edge MQTT brokers with a durable log: run one, publish, subscribe, read by offset.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        raise typer.Exit(run_native("--version"))


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Show the version and exit.")
    ] = False,
    of_context: ContextOption = None,
    user: UserOption = None,
    password_from: PasswordOption = None,
    token_from: TokenOption = None,
    tls_ca: CaOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
    password: Annotated[str | None, typer.Option("--password", hidden=True)] = None,
    token: Annotated[str | None, typer.Option("--token", hidden=True)] = None,
) -> None:
    """The options before the command."""
    for old, value in (("password", password), ("token", token)):
        if value is not None:
            say(f"headwater: --{old} is now --{old}-from; the next release removes the old name")
    use(
        user=user,
        password_from=password_from or password,
        token_from=token_from or token,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )


def run(given: Sequence[str], *, debug: bool) -> int:
    """Runs the command of these words and returns its exit code."""
    if logging.lastResort is not None:
        # Commands configure no logging, so this handler shows the warnings of the library.
        logging.lastResort.setFormatter(SafeFormatter())
    # gRPC writes its own lines about a failed connection to stderr; our error says what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if os.environ.get(COMPLETE_VARIABLE):
        from typer._completion_classes import completion_init

        completion_init()
    try:
        code = app(args=list(given), prog_name="headwater", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone, as in `headwater sub … | head`. Without this, Python would complain at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        return report(error, debug=debug)
    return code if isinstance(code, int) else 0


def report(error: BaseException, *, debug: bool) -> int:
    """Prints a one-sentence message, with `debug` after the traceback, and returns the exit code."""
    if debug:
        say_lines("".join(traceback.format_exception(error)).rstrip("\n"))
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, HeadwaterError):
        from broker_edge.extras import of_import

        error = of_import(error, "this command") or error
    match error:
        case KeyboardInterrupt() | typer.Abort():
            return 130
        case typer.Exit():
            return error.exit_code
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1
        case _ if (trouble := _of_store(error)) is not None:
            say(f"headwater: {trouble}")
            return 3
        case HeadwaterError():
            # Settings errors have several lines that show the place in the file. Other errors may quote outside data.
            (say_lines if isinstance(error, ConfigError) else say)(f"headwater: {error}")
            return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
        case typer.TyperException():
            return _report_usage(error)
        case _:
            text = str(error).partition("\n")[0] or type(error).__name__
            say(f"headwater: failed: {text} (run it again with --debug to see where)")
            return 1


def _of_store(error: BaseException) -> StoreError | None:
    """The trouble of an object store behind `error`, if there is any."""
    if not isinstance(error, (HeadwaterError, OSError)) or "sinks.store" not in sys.modules:
        return None  # Otherwise the command has opened no store, and `sinks` loads libraries that it does not need.
    from sinks.store_errors import store_error

    return store_error(error)


def _report_usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        say_lines(message)
        return 2
    command = context.command_path if context is not None else "headwater"
    message = message.replace("Value error, ", "")
    say(f"headwater: {message.removeprefix('Invalid value: ').rstrip('.')} (see `{command} --help`)")
    return int(getattr(error, "exit_code", 2))
