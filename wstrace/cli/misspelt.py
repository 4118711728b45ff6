"""A misspelt option of `run` or `fix`, which stands where the command to run does."""

from __future__ import annotations

from collections.abc import Sequence

from typer.main import get_command

from wstrace.cli.app import app, register_commands
from wstrace.errors import WstraceError, did_you_mean


def options_of(command: str) -> list[str]:
    """The long options of a command, as it declares them."""
    register_commands()
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    return [name for p in parameters for name in p.opts if name.startswith("--")] + ["--help"]


def refuse_unknown_option(cmd: Sequence[str], command: str) -> None:
    """WstraceError where the program of `wstrace run` or `fix` is a misspelt option of it."""
    if not cmd or not cmd[0].startswith("-"):
        return
    name = cmd[0].partition("=")[0]
    guess = did_you_mean(name, options_of(command))
    raise WstraceError(
        f"No such option: {name}.",
        (f"{guess} " if guess else "")
        + f"`wstrace {command} --help` lists the options; the command to run goes after `--`.",
    )
