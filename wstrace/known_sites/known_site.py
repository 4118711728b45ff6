"""One known site: its formula by version, and where a person finds the numbers in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from wstrace.expr.expression import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["arena", "persistent"]


@dataclass(frozen=True)
class Name:
    """A number that formulas use, and where a person finds it.

    `keys` are Hugging Face config keys, `divided_by` the group size that shards the value
    (a per-rank number), `default` what vLLM's code takes when nobody sets it (a number, or an
    expression over other names), `why` the reason that default is one.
    """

    name: str
    meaning: str
    flag: str = ""
    env: str = ""
    keys: tuple[str, ...] = ()
    divided_by: str = ""
    default: int | str | None = None
    why: str = ""

    def where(self) -> str:
        """How to give this number, in one line."""
        places = [self.flag, self.env and f"environment {self.env}"]
        if self.keys:
            per = f" / {self.divided_by}" if self.divided_by else ""
            places.append(f"config.json {' or '.join(self.keys)}{per}")
        places.append(f"--set {self.name}=N")
        return "; ".join(place for place in places if place)


@dataclass(frozen=True)
class Flag:
    """A flag of vLLM and what it does to the site's worst case; `why` for one that does not."""

    flag: str
    effect: str = ""
    why: str = ""


@dataclass(frozen=True)
class Cover:
    """A reservation that vLLM itself makes for the site, and in which versions.

    `covers` is one of full, partial, none; `counted` says whether KV sizing sees it.
    """

    since: str
    covers: Literal["full", "partial", "none"]
    when: str
    until: str = ""
    counted: bool = True
    gap: str = ""


@dataclass(frozen=True)
class Variant:
    """The formula as it stands from version `since` up to, not including, `until`.

    `formula` gives the worst case in bytes over config names, `request` one call's bytes
    over `drivers` (scheduler quantities, each with its limit expression) and constants,
    `also` the other calls of the same function, which never ask for more than the worst
    case.
    `monotone` is False where the largest request is not at the drivers' limits.
    """

    since: str
    formula: str
    until: str = ""
    request: str = ""
    also: tuple[str, ...] = ()
    drivers: dict[str, str] = field(default_factory=dict)
    monotone: bool = True
    note: str = ""


@dataclass(frozen=True)
class KnownSite:
    """One call site of the arena (or a persistent resource) with its worst case.

    Sites with the same file and function but another `choice` (which experts, which
    layout) are alternatives: the first in the file is what `match` returns. `experts` are the
    classes of vLLM that make a choice of experts. `found_by` says how a call was taken for this
    site where its class has a name that the site does not know.
    """

    id: str
    family: str
    title: str
    files: tuple[str, ...]
    functions: tuple[str, ...]
    variants: tuple[Variant, ...]
    variant: Variant
    lever: Flag
    not_levers: tuple[Flag, ...] = ()
    kind: Kind = "arena"
    choice: str = ""
    first_bad: str = ""
    first_fixed: str = ""
    triage_class: str = "never_profiled"
    covers: tuple[Cover, ...] = ()
    vocabulary: dict[str, Name] = field(default_factory=dict, repr=False)
    notes: str = ""
    links: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    found_by: str = ""

    @property
    def formula(self) -> str:
        """The worst case in bytes, an expression over config names."""
        return self.variant.formula

    @property
    def request_formula(self) -> str:
        """One call's bytes, an expression over `drivers` and constants."""
        return self.variant.request

    @property
    def requests(self) -> tuple[str, ...]:
        """The bytes of each call that the function makes, over `drivers` and constants."""
        return (self.variant.request or self.formula, *self.variant.also)

    @property
    def drivers(self) -> Mapping[str, str]:
        """Scheduler quantity to the expression of its limit."""
        return self.variant.drivers

    @property
    def first_seen(self) -> str:
        """The first version that was read and has this site."""
        return self.variants[0].since

    @property
    def names(self) -> tuple[Name, ...]:
        """The names of the worst-case formula, with where to find each."""
        return tuple(self.vocabulary[name] for name in sorted(parse(self.formula).names))

    def at(self, version: str | None) -> KnownSite:
        """The same site with the variant of `version`, or the nearest one."""
        return replace(self, variant=_choose(self.variants, version))

    def cover(self, version: str | None) -> Cover | None:
        """What vLLM of `version` itself reserves for this site; None where nothing is known."""
        release = release_of(version)
        if release is None:
            return self.covers[-1] if self.covers else None
        return next((c for c in self.covers if _holds(c.since, c.until, release)), None)


def release_of(version: str | None) -> tuple[int, ...] | None:
    """The release numbers of a version text, None where it names none.

    A build from a branch calls itself 0.1.devN: that says nothing about its age.
    """
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", (version or "").strip())
    if not found or (found[1], found[2]) == ("0", "1"):
        return None
    return tuple(int(part or 0) for part in found.groups())


def _choose(variants: tuple[Variant, ...], version: str | None) -> Variant:
    release = release_of(version)
    if release is None:
        return variants[-1]
    older = [v for v in variants if (release_of(v.since) or ()) <= release]
    return older[-1] if older else variants[0]


def _holds(since: str, until: str, release: tuple[int, ...]) -> bool:
    end = release_of(until)
    return (release_of(since) or ()) <= release and (end is None or release < end)
