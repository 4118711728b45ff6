"""`NAME=VALUE` options that may be repeated: `--set`, `--cover`."""

from __future__ import annotations

from collections.abc import Iterable

from wstrace.errors import WstraceError


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
    """`--set NAME=N`, as `known_sites.given.numbers` reads it. Raises WstraceError as `pairs`
    and `numbers` do."""
    from wstrace.known_sites.given import Giver, numbers

    texts = pairs(given, "--set", example)
    return numbers(texts.items(), Giver("--set", f"--set {example}"))
