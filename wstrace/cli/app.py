"""The `wstrace` program: the list of commands, and how an error reaches a person."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

import wstrace
from wstrace.errors import WstraceError

COMMANDS = (
    "run",
    "report",
    "diff",
    "reserve",
    "gate",
    "exercise",
    "triage",
    "bound",
    "sites",
    "watch",
    "export",
    "demo",
    "doctor",
)
PASS_THROUGH = {"run": {"allow_extra_args": True, "ignore_unknown_options": True}}

app = typer.Typer(
    name="wstrace",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
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
        os.environ["WSTRACE_DEBUG"] = "1"


def register_commands() -> None:
    """Add every command of `COMMANDS` that this build has."""
    for name in COMMANDS:
        module = f"wstrace.cli.commands.{name}"
        if find_spec(module):
            app.command(name, context_settings=PASS_THROUGH.get(name))(
                import_module(module).command
            )


def main() -> None:
    """Entry point. A `WstraceError` becomes two lines on stderr and its exit code."""
    register_commands()
    try:
        app()
    except WstraceError as error:
        if os.environ.get("WSTRACE_DEBUG"):
            raise
        print(f"wstrace: {error.message}\n{error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
