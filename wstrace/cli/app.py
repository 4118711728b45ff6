"""The `wstrace` program: the list of commands, and how an error reaches a person."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
import typer.main

import wstrace
from wstrace.cli import outlet
from wstrace.cli.usage import STARTERS, UsageError, as_error, refuse_empty_words
from wstrace.errors import USAGE, WstraceError, ended_by

COMMANDS = (
    "fix",
    "run",
    "report",
    "diff",
    "reserve",
    "gate",
    "exercise",
    "triage",
    "bound",
    "sites",
    "audit",
    "watch",
    "export",
    "fleet",
    "gather",
    "explain",
    "demo",
    "doctor",
    "completion",
)
PASS_THROUGH = {
    name: {"allow_extra_args": True, "ignore_unknown_options": True} for name in STARTERS
}

COMPLETE = "_WSTRACE_COMPLETE"  # set by the script of `wstrace completion` for a question

app = typer.Typer(
    name="wstrace",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich takes longer to import than all the rest
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"wstrace {wstrace.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Which vLLM layers escaped workspace profiling, why, and the reserve that fixes them."""
    if debug:
        os.environ[outlet.DEBUG] = "1"


def register_commands() -> None:
    """Add every command of `COMMANDS` that this build has, once."""
    if app.registered_commands:
        return
    for name in COMMANDS:
        module = f"wstrace.cli.commands.{name}"
        if find_spec(module):
            app.command(name, context_settings=PASS_THROUGH.get(name))(
                import_module(module).command
            )


def main() -> None:
    """Entry point: exits with the command's code. An error is two lines on stderr.

    Whatever goes wrong inside wstrace is exit code 2 (`--debug` shows where), because 1 has a
    meaning of its own: `gate` found something. A reader that closed stdout is 141, as for
    any program that SIGPIPE ends.
    """
    register_commands()
    outlet.prepare()
    try:
        code = _run(sys.argv[1:])
        outlet.flush()
    except WstraceError as error:
        if os.environ.get(outlet.DEBUG):
            traceback.print_exc()
        outlet.say(outlet.two_lines(error))
        code = error.exit_code
    except BrokenPipeError:
        code = outlet.BROKEN
    if code == outlet.BROKEN:
        outlet.discard()
    sys.exit(code)


def _run(words: list[str]) -> int:
    """The command's exit code; every error that is a person's to see as a WstraceError."""
    if COMPLETE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        refuse_empty_words(words)
        code = _program()(
            words, standalone_mode=False, prog_name="wstrace", complete_var=COMPLETE
        )
        return code if isinstance(code, int) else 0
    except SystemExit as error:  # typer's own answer to a closed pipe, or a command's code
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        return error.code if isinstance(error.code, int) else bool(error.code)
    except typer.Abort:
        return ended_by(signal.SIGINT)
    except (WstraceError, BrokenPipeError):
        raise
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(str(error), file=sys.stderr)  # the help
            return USAGE
        raise _told(error, words) from error


@cache
def _program() -> Any:
    """All commands as typer builds them, once a process: Python may call `main` many times."""
    return typer.main.get_command(app)


def _told(error: Exception, words: list[str]) -> WstraceError:
    if isinstance(error, UsageError):
        return as_error(error, words, COMMANDS)
    if isinstance(error, OSError):
        return outlet.failure(error)
    return WstraceError(
        f"internal error: {type(error).__name__}: {error}",
        f"This is a bug: report what `wstrace --debug {shlex.join(words)}` prints.",
    )


if __name__ == "__main__":
    main()
