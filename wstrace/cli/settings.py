"""`NAME=VALUE` options that may be repeated: `--set`, `--cover`."""

from __future__ import annotations

from collections.abc import Iterable

from wstrace.errors import WstraceError
from wstrace.units import whole_number


def pairs(given: Iterable[str], option: str, example: str) -> dict[str, str]:
    """The values by name. A site's name may hold `=`: the last one splits.

    Raises WstraceError (exit 2) for a text of another form, and for one name with two values.
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.rpartition("="))
        if not (name and equals and value):
            raise WstraceError(
                f"{option} {text}: not NAME=VALUE.", f"For example: {option} {example}"
            )
        if found.setdefault(name, value) != value:
            raise WstraceError(
                f"{option} gives {name} twice: {found[name]} and {value}.",
                "Keep one of the two.",
            )
    return found


def integers(given: Iterable[str], example: str) -> dict[str, int]:
    """`--set NAME=N`: one grammar in every command.

    Dashes in a name are underscores. N is 32768, 64k (64000), 64K (65536) or 8GiB; at least
    what vLLM's config can have: 1 for a size, 0 for a switch or a count. A name that neither
    vLLM's config nor a known site has may be any integer. Raises WstraceError as `pairs` does.
    """
    found: dict[str, int] = {}
    for given_name, text in pairs(given, "--set", example).items():
        name, number = given_name.replace("-", "_"), whole_number(text)
        if number is None:
            raise WstraceError(
                f"--set {name}={text}: not a whole number.", f"For example: --set {example}"
            )
        if found.setdefault(name, number) != number:
            raise WstraceError(
                f"--set gives {name} twice: {found[name]} and {number}.", "Keep one of the two."
            )
        _refuse_below_least(name, number)
    return found


def _refuse_below_least(name: str, value: int) -> None:
    from wstrace.known_sites.known import known_names

    least = min((row.least for row in known_names().get(name, ())), default=value)
    if value < least:
        raise WstraceError(
            f"--set {name}={value}: {name} is {least} or more.",
            "Leave a number out that is not known: the answer names what it needs.",
        )
