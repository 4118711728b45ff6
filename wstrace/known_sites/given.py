"""What is given by name, on a command line (`--set NAME=VALUE`) or by a program (`limits=`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from wstrace.errors import WstraceError
from wstrace.known_sites.known import known_names
from wstrace.units import as_text, whole_number
from wstrace.vllm.limits import rows

Told = int | str
_SHOWN: Final = 40
_WORD_NAMES: Final = frozenset(row.name for row in rows("word"))
# matches: "deepep_low_latency"
_WORD: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,59}")


@dataclass(frozen=True)
class Giver:
    """How errors name what was given (`--set`, `limits`), and an example of it."""

    option: str
    example: str


@dataclass(frozen=True)
class Caller:
    """How the one who asks for a reserve gives its wishes: options, or arguments in Python."""

    cover: str
    budget: str
    limits: str
    limit: str
    between: str

    def missing(self, names: Iterable[str]) -> str:
        """Numbers that are to be given, as they are typed with N for each."""
        given = self.between.join(self.limit.format(name=name) for name in names)
        return given if self.limit.startswith(self.limits) else f"{self.limits}{{{given}}}"


COMMAND: Final = Caller("--cover", "--budget", "--set", "--set {name}=N", " ")
PYTHON: Final = Caller("cover=", "budget=", "limits=", '"{name}": N', ", ")


def settings(given: Iterable[tuple[object, object]], giver: Giver) -> dict[str, Told]:
    """Numbers and words by name: one grammar and one floor for commands, programs and logs.

    Dashes in a name are underscores. A number is 32768, 25.6k (25600), 64K (65536) or 1.5GiB,
    or what Python prints as one of these; True and False are 1 and 0 of a switch. It is at
    least what vLLM's config can have: 1 for a size, 0 for a switch or a count. A name that
    neither vLLM's config nor a known site has may be any integer. What is a word in vLLM's
    config (`all2all_backend`) is one here. Raises WstraceError for anything else, and for one
    name with two values.
    """
    found: dict[str, Told] = {}
    for given_name, given_value in given:
        name = as_text(given_name).strip().replace("-", "_")
        value = _value(name, given_value, giver)
        if found.setdefault(name, value) != value:
            raise WstraceError(
                f"{giver.option} gives {name} twice: {found[name]} and {value}.",
                "Keep one of the two.",
            )
    return found


def numbers_of(told: Mapping[str, Told]) -> dict[str, int]:
    """Those that are numbers."""
    return {name: value for name, value in told.items() if isinstance(value, int)}


def words_of(told: Mapping[str, Told]) -> dict[str, str]:
    """Those that are words."""
    return {name: value for name, value in told.items() if isinstance(value, str)}


def _value(name: str, value: object, giver: Giver) -> Told:
    text = as_text(value)
    if name in _WORD_NAMES:
        if isinstance(value, str) and _WORD.fullmatch(text.strip()):
            return text.strip()
        raise WstraceError(
            f"{giver.option} {name}={text[:_SHOWN]}: not a word.",
            f"Write it as vLLM's flag has it: {name}=allgather_reducescatter.",
        )
    number = _switch(name, value) if isinstance(value, bool) else whole_number(text)
    if number is None:
        raise WstraceError(
            f"{giver.option} {name}={text[:_SHOWN]}: not a whole number.",
            f"For example: {giver.example}",
        )
    _refuse_below_least(name, number, giver)
    return number


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
