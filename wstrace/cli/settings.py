"""`NAME=VALUE` options that may be repeated: `--set`, `--cover`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from wstrace.known_sites.given import Told


def pairs(given: Iterable[str], option: str, example: str) -> dict[str, str]:
    """The values by name. A site's name may hold `=`: the last one splits.

    Raises WstraceError (exit 2) for a text of another form, and for one name with two values.
    """
    found: dict[str, str] = {}
    for name, value in _split(given, option, example):
        if found.setdefault(name, value) != value:
            raise WstraceError(
                f"{option} gives {name} twice: {found[name]} and {value}.",
                "Keep one of the two.",
            )
    return found


def settings(given: Iterable[str], example: str) -> dict[str, Told]:
    """`--set NAME=VALUE`, as `known_sites.given.settings` reads it: two values of one name are
    compared as read. Raises WstraceError as that does, and for a text of another form."""
    from wstrace.known_sites import given as reading

    giver = reading.Giver("--set", f"--set {example}")
    return reading.settings(_split(given, "--set", example), giver)


def _split(given: Iterable[str], option: str, example: str) -> Iterator[tuple[str, str]]:
    for text in given:
        name, equals, value = (part.strip() for part in text.rpartition("="))
        if not (name and equals and value):
            raise WstraceError(
                f"{option} {text}: not NAME=VALUE.", f"For example: {option} {example}"
            )
        yield name, value
