"""What typer says of a wrong command line, in wstrace's two lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import typer

from wstrace.errors import WstraceError, with_stop

# typer exports BadParameter but, since it carries its own click, not the bases: usage errors.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
STARTERS: Final = ("run", "fix")
"""Commands behind whose `--` another command stands."""
_NOISE: Final = ("Value error, ", "Error: ")


def as_error(error: Exception, words: Sequence[str], commands: Sequence[str]) -> WstraceError:
    """The usage error as a WstraceError; `words` is the command line without the program."""
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    for noise in _NOISE:
        message = message.replace(noise, "")
    message, _, _ = message.partition(" (Possible options:")
    return WstraceError(with_stop(message), _hint(error, _command(words, commands)))


def _command(words: Sequence[str], commands: Sequence[str]) -> str | None:
    return next((word for word in words if word in commands), None)


def _hint(error: Exception, command: str | None) -> str:
    name = f"wstrace {command}" if command else "wstrace"
    near = sorted(getattr(error, "possibilities", None) or ())
    guess = f"Did you mean {' or '.join(near)}? " if near else ""
    what = "options and arguments" if command else "commands"
    return f"{guess}`{name} --help` lists the {what}."


def refuse_empty_words(words: Sequence[str]) -> None:
    """WstraceError for an empty value: what an unset variable of a shell or a CI job leaves.

    What `run` and `fix` start may have empty arguments: without `--` nothing tells whose they
    are.
    """
    if any(name in words[:2] for name in STARTERS):
        words = words[: words.index("--")] if "--" in words else ()
    for before, word in zip(("", *words), words, strict=False):
        name, equals, value = word.partition("=")
        if word and not (equals and not value and name.startswith("--")):
            continue
        option = name if word else before if before.startswith("-") else "an argument"
        raise WstraceError(
            f"Empty value for {option}.", "Give a value, or leave it out: is a variable unset?"
        )
