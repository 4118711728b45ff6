"""Numbers given by name, on a command line (`--set NAME=N`) or by a program (`limits=`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wstrace.errors import WstraceError
from wstrace.known_sites.known import known_names
from wstrace.units import as_text, whole_number

_SHOWN: Final = 40


@dataclass(frozen=True)
class Giver:
    """How errors name what was given (`--set`, `limits`), and an example of it."""

    option: str
    example: str


def numbers(given: Iterable[tuple[object, object]], giver: Giver) -> dict[str, int]:
    """The numbers by name: one grammar and one floor for commands, programs and logs.

    Dashes in a name are underscores. A number is 32768, 25.6k (25600), 64K (65536) or 1.5GiB,
    or what Python prints as one of these; True and False are 1 and 0 of a switch. It is at
    least what vLLM's config can have: 1 for a size, 0 for a switch or a count. A name that
    neither vLLM's config nor a known site has may be any integer. Raises WstraceError for
    anything else, and for one name with two numbers.
    """
    found: dict[str, int] = {}
    for given_name, value in given:
        name = as_text(given_name).strip().replace("-", "_")
        text = as_text(value)
        number = _switch(name, value) if isinstance(value, bool) else whole_number(text)
        if number is None:
            raise WstraceError(
                f"{giver.option} {name}={text[:_SHOWN]}: not a whole number.",
                f"For example: {giver.example}",
            )
        if found.setdefault(name, number) != number:
            raise WstraceError(
                f"{giver.option} gives {name} twice: {found[name]} and {number}.",
                "Keep one of the two.",
            )
        _refuse_below_least(name, number, giver)
    return found


def _switch(name: str, on: bool) -> int | None:
    rows = known_names().get(name, ())
    return int(on) if any(row.kind == "switch" for row in rows) else None


def _refuse_below_least(name: str, value: int, giver: Giver) -> None:
    least = min((row.least for row in known_names().get(name, ())), default=value)
    if value < least:
        raise WstraceError(
            f"{giver.option} {name}={value}: {name} is {least} or more.",
            "Leave a number out that is not known: the answer names what it needs.",
        )
