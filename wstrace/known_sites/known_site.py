"""One known site: its formula by version, and where a person finds the numbers in it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec

from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.versions import Release, release_of
from wstrace.vllm.limits import NUMBERS
from wstrace.vllm.number import Number
from wstrace.vllm.quantities import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["arena", "persistent"]
LogClass = Literal[
    "never_profiled",
    "undersized_in_profile",
    "wrong_slot",
    "persistent_resource_missing",
    "unlocked_growth_oom",
    "pointer_moved_after_capture",
    "order_of_warmup",
    "over_reserved",
    "unknown",
]
"""What a failure of a site in a log is."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record of a data file: a field that it does not have is a mistake."""


class Flag(Entry, frozen=True, kw_only=True):
    """A flag of vLLM and what it does to the site's worst case; `why` for one that does not."""

    flag: str
    effect: str = ""
    why: str = ""


class Cover(Entry, frozen=True, kw_only=True):
    """A reservation that vLLM itself makes for the site, and in which versions.

    `covers` is one of full, partial, none; `counted` says whether KV sizing sees it.
    """

    since: str
    covers: Literal["full", "partial", "none"]
    when: str
    until: str = ""
    counted: bool = True
    gap: str = ""

    def holds(self, release: Release) -> bool:
        """Whether `release` lies in the versions that this is said of."""
        return release.has(self.since) and not (self.until and release.has(self.until))


class Variant(Entry, frozen=True, kw_only=True):
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
    drivers: dict[str, str] = {}
    monotone: bool = True
    note: str = ""


class Condition(Entry, frozen=True, kw_only=True):
    """Where a rule holds: `zero` is 0 or less there, an expression over config names.

    `when` says it in words, as the end of "the rule holds only ...".
    """

    zero: str
    when: str


class KnownSite(Entry, frozen=True, kw_only=True, dict=True):
    """One call site of the arena (or a persistent resource) with its worst case.

    Sites with the same file and function but another `choice` (which experts, which
    layout) are alternatives: the first in the file is what `match` returns. `experts` are the
    classes of vLLM that make a choice of experts; `by_class`: sizes alone do not tell that it
    is them, so that a request without classes is not held against the rule. A site says where
    its rule holds: `valid_when`, or `anywhere`, the reason why no number restricts it.
    `found_by` says how a call was taken for this site where its class has a name that the site
    does not know. `beside` are sites of other files that the same backend asks at. `no_default`
    are numbers whose default in vLLM cannot hold where this site asks.
    """

    id: str
    title: str
    files: tuple[str, ...]
    functions: tuple[str, ...]
    variants: tuple[Variant, ...] = msgspec.field(name="variant")
    lever: Flag
    family: str = ""
    version: str | None = None
    not_levers: tuple[Flag, ...] = ()
    kind: Kind = "arena"
    choice: str = ""
    first_bad: str = ""
    first_fixed: str = ""
    triage_class: LogClass = "never_profiled"
    covers: tuple[Cover, ...] = ()
    valid_when: tuple[Condition, ...] = ()
    anywhere: str = ""
    own_names: dict[str, Number] = msgspec.field(name="names", default_factory=dict)
    notes: str = ""
    links: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    by_class: bool = False
    found_by: str = ""
    beside: tuple[str, ...] = ()
    no_default: tuple[str, ...] = ()

    @cached_property
    def variant(self) -> Variant:
        """The formula of `version` (None: the newest), or the nearest one."""
        return _choose(self.variants, self.version)

    @cached_property
    def vocabulary(self) -> dict[str, Number]:
        """The numbers that a formula of this site may name: all rows, then its own."""
        return NUMBERS | {name: _own(name, row) for name, row in self.own_names.items()}

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
    def names(self) -> tuple[Number, ...]:
        """The names of the worst-case formula, with where to find each."""
        return tuple(self.number(name) for name in sorted(parse(self.formula).names))

    def number(self, name: str) -> Number:
        """What is known of a number; WstraceError: the data file names one that nothing has."""
        if name not in self.vocabulary:
            raise WstraceError(
                f"{self.id}: the formula names {name}, which is no number of wstrace.",
                f"Add a row in wstrace/vllm, or [site.names.{name}] to the site's data file.",
            )
        return self.vocabulary[name]

    @cached_property
    def takes(self) -> frozenset[str]:
        """Every number that the rule looks at: in formulas, conditions and defaults."""
        variant = self.variant
        texts = [variant.formula, variant.request or "0", *variant.also]
        texts += [*variant.drivers.values(), *(c.zero for c in self.valid_when)]
        found: set[str] = set()
        waiting = {
            name for text in texts for name in parse(text).names
        } & self.vocabulary.keys()
        while waiting:
            row = self.vocabulary[name := waiting.pop()]
            found.add(name)
            behind = parse(str(row.default)).names if row.default is not None else frozenset()
            waiting |= behind - found
        return frozenset(found)

    def at(self, version: str | None) -> KnownSite:
        """The same site with the variant of `version`, or the nearest one."""
        return msgspec.structs.replace(self, version=version)

    def cover(self, version: str | None) -> Cover | None:
        """What vLLM of `version` itself reserves for this site; None where nothing is known."""
        release = release_of(version)
        return next((c for c in self.covers if c.holds(release)), None)


class Family(Entry, frozen=True, kw_only=True):
    """One data file: sites of one subject, and the links that all of them have."""

    family: str
    links: tuple[str, ...] = ()
    valid_when: tuple[Condition, ...] = ()
    site: tuple[KnownSite, ...]

    def sites(self) -> tuple[KnownSite, ...]:
        """The sites with what they share, every term of a formula written out."""
        return tuple(
            msgspec.structs.replace(
                site,
                family=self.family,
                links=site.links or self.links,
                variants=tuple(_expanded(variant) for variant in site.variants),
                valid_when=tuple(map(_condition, _conditions(site, self))),
            )
            for site in self.site
        )


def _expanded(variant: Variant) -> Variant:
    return msgspec.structs.replace(
        variant,
        formula=expanded(variant.formula),
        request=expanded(variant.request),
        also=tuple(map(expanded, variant.also)),
        drivers={name: expanded(limit) for name, limit in variant.drivers.items()},
    )


def _conditions(site: KnownSite, family: Family) -> tuple[Condition, ...]:
    """The site's own conditions take the place of its family's."""
    return () if site.anywhere else site.valid_when or family.valid_when


def _condition(condition: Condition) -> Condition:
    return msgspec.structs.replace(condition, zero=expanded(condition.zero))


def _own(name: str, row: Number) -> Number:
    """A site's word on a number: its meaning there, and a default of its own if it has one."""
    known = NUMBERS.get(name)
    if known is None:
        return msgspec.structs.replace(row, name=name)
    default = {"default": row.default, "why": row.why} if row.default is not None else {}
    return msgspec.structs.replace(known, meaning=row.meaning, **default)


def _choose(variants: tuple[Variant, ...], version: str | None) -> Variant:
    release = release_of(version)
    older = [v for v in variants if release.has(v.since)]
    return older[-1] if older else variants[0]
