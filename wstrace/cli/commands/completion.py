"""`wstrace completion SHELL`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

SHELL = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="bash, zsh or fish.")]


def command(shell: SHELL) -> None:
    """The script that completes commands and options in a shell.

    For bash put `eval "$(wstrace completion bash)"` into ~/.bashrc, for zsh the same with zsh
    into ~/.zshrc after compinit, for fish `wstrace completion fish | source` into config.fish.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from wstrace.cli.app import COMPLETE

    print(get_completion_script(prog_name="wstrace", complete_var=COMPLETE, shell=shell))
