"""From bounds to a reserve config: what each site gets, what each slot gets, what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

import wstrace
from wstrace.bounds import affordability
from wstrace.bounds.affordability import Rung, ladder, reserve_of, threshold
from wstrace.bounds.bound import Bound
from wstrace.errors import WstraceError
from wstrace.reserve.live import site_bytes
from wstrace.reserve.schema import (
    LAYOUT_NAMES,
    LIMIT_NAMES,
    Cover,
    Model,
    NotCovered,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    layout,
    model_digest,
)
from wstrace.trace.records import Ask, Limit, Memory, Slot
from wstrace.units import human, parse_bytes

_MOST: Final = 1 << 40
_PAGE: Final = 256


@dataclass(frozen=True)
class SiteBound:
    """One site as the plan takes it: its bound over all ranks and slots, sizes in bytes.

    `asks_max` is the largest request seen, `p99` the size that 99 % of the different sizes
    seen stay within.
    """

    file: str
    function: str
    bound: Bound
    asks_max: int = 0
    p99: int | None = None
    slots: tuple[Slot, ...] = ()

    @property
    def name(self) -> str:
        """'file:function', as a reserve config names it."""
        return f"{self.file}:{self.function}"


@dataclass(frozen=True)
class Engine:
    """The recorded engine: its limits, its slots, and what KV sizing did on the rank that
    has least. `counted` are the arena bytes that profiling paid for already, by slot;
    `pinned` those of old arenas that views or graphs keep alive."""

    limits: dict[str, Limit]
    slots: tuple[Slot, ...] = (Slot(),)
    memory: Memory | None = None
    counted: Mapping[Slot, int] | None = None
    pinned: int = 0


@dataclass(frozen=True)
class Wishes:
    """What the user asked for: `cover` by site, bytes for all slots together, limits to try."""

    cover: Mapping[str, str] | None = None
    budget: int | None = None
    limits: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ReservePlan:
    """The config, what can still fail in spite of it, and cheaper choices by site."""

    config: ReserveConfig
    can_fail: tuple[str, ...] = ()
    ladders: Mapping[str, list[Rung]] | None = None
    bounds: Mapping[str, Bound] | None = None

    def payload(self) -> dict[str, Any]:
        """The JSON of `wstrace reserve --format json`, version 1."""
        cost = self.config.cost
        return {
            "version": 1,
            "slots": [msgspec.to_builtins(slot) for slot in self.config.slots],
            "sites": [self._site(site) for site in self.config.sites],
            "not_covered": [msgspec.to_builtins(item) for item in self.config.not_covered],
            "kv_cost": {
                "bytes": cost.bytes,
                "tokens": cost.tokens,
                "blocks": cost.blocks,
                "counted": cost.counted,
                "note": cost.note,
            },
            "can_fail": list(self.can_fail),
        }

    def _site(self, site: SiteReserve) -> dict[str, Any]:
        file, _, function = site.site.rpartition(":")
        bound = (self.bounds or {})[site.site]
        steps = (self.ladders or {}).get(site.site, [])
        return {
            "file": file,
            "function": function,
            **msgspec.to_builtins(site),
            "needs": list(bound.needs),
            "lever": bound.lever,
            "known_site": bound.known_site,
            "bound": bound.bytes if bound.grade != "observed" else None,
            "ladder": [msgspec.to_builtins(rung) for rung in steps],
        }


def plan(
    sites: Sequence[SiteBound],
    engine: Engine,
    wishes: Wishes | None = None,
    not_covered: Sequence[NotCovered] = (),
) -> ReservePlan:
    """The reserve for `sites`: in every slot of the manager the maximum over all sites.

    Raises WstraceError for a cover of an unknown site, an unknown limit, or a layout number
    that a what-if cannot change.
    """
    wishes = wishes or Wishes()
    limits = {**engine.limits, **_checked(wishes.limits or {}, engine.limits)}
    covers = _covers(wishes.cover or {}, sites)
    reserves = [_reserve(site, covers.get(site.name), engine, limits) for site in sites]
    reserves = [r for r in reserves if r.bytes]
    given = [_within(r, _per_slot(wishes.budget, engine)) for r in reserves]
    total = max((_up(r.bytes) for r in given), default=0)
    by_name = {site.name: site.bound for site in sites}
    config = ReserveConfig(
        made_by=f"wstrace {wstrace.__version__}",
        model=Model(
            name=str(engine.limits.get("model") or ""),
            digest=model_digest(limits),
            layout=layout(limits),
        ),
        limits=limits,
        slots=[SlotReserve(ubatch=s.ubatch, lane=s.lane, bytes=total) for s in engine.slots],
        sites=sorted(given, key=lambda r: (-r.bytes, r.site)),
        cost=affordability.kv_cost(_extra(total, engine), engine.memory, limits),
        not_covered=[*_unbounded(sites), *not_covered],
    )
    return ReservePlan(
        config,
        tuple(_can_fail(given, by_name, limits)),
        _ladders(sites, engine, limits),
        by_name,
    )


def p99(asks: Sequence[Ask]) -> int | None:
    """The size that 99 % of the different sizes stay within (a trace counts no call alone)."""
    sizes = sorted({ask.bytes for ask in asks})
    return sizes[max(0, -(-len(sizes) * 99 // 100) - 1)] if sizes else None


def _checked(wanted: Mapping[str, int], limits: Mapping[str, Limit]) -> Mapping[str, int]:
    for name, value in wanted.items():
        if name not in LIMIT_NAMES and name not in limits:
            raise WstraceError(f"Unknown limit: {name!r}.", _near(name, LIMIT_NAMES))
        if not 0 <= value <= _MOST:
            raise WstraceError(f"{name}={value} is out of range.", "Give 0 to 2**40.")
        if name in LAYOUT_NAMES and limits.get(name) not in (None, value):
            raise WstraceError(
                f"{name} decides shapes: what was recorded with {limits[name]} says nothing "
                f"about {value}.",
                "Record a trace of that engine, or ask `wstrace bound` about a known site.",
            )
    return wanted


def _near(name: str, known: frozenset[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return f"Did you mean {', '.join(near)}?" if near else "docs/bounds.md lists the limits."


def _covers(wanted: Mapping[str, str], sites: Sequence[SiteBound]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, choice in wanted.items():
        named = [s.name for s in sites if _is(key, s)]
        if not named:
            seen = ", ".join(site.name for site in sites) or "none"
            raise WstraceError(f"No site is called {key!r}.", f"The trace has: {seen}.")
        found |= dict.fromkeys(named, choice)
    return found


def _is(key: str, site: SiteBound) -> bool:
    """A site is named in full, by its function, or by the end of either."""
    return key in (site.name, site.function, site.function.rpartition(".")[2]) or (
        site.name.endswith(f"/{key}")
    )


def _reserve(
    site: SiteBound, choice: str | None, engine: Engine, limits: Mapping[str, Limit]
) -> SiteReserve:
    reserve = reserve_of(site.bound, site.name, site.asks_max)
    if choice is None or choice == "bound":
        size = site_bytes(reserve, engine.limits, limits)
        return msgspec.structs.replace(reserve, bytes=size)
    size, cover = _chosen(choice, site)
    return msgspec.structs.replace(reserve, bytes=size, cover=cover)


def _chosen(choice: str, site: SiteBound) -> tuple[int, Cover]:
    seen = site.asks_max or site.bound.observed
    if choice == "observed":
        return seen, "observed"
    if choice == "p99":
        return site.p99 if site.p99 is not None else seen, "p99"
    return parse_bytes(choice), "given"


def _per_slot(budget: int | None, engine: Engine) -> int | None:
    if budget is None:
        return None
    return budget // max(1, len(engine.slots)) // _PAGE * _PAGE


def _within(reserve: SiteReserve, budget: int | None) -> SiteReserve:
    if budget is None or reserve.bytes <= budget:
        return reserve
    return msgspec.structs.replace(reserve, bytes=budget, cover="given")


def _up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _extra(total: int, engine: Engine) -> int:
    """True cost: what profiling had counted anyway is not paid twice."""
    counted = engine.counted or {}
    return sum(max(0, total - counted.get(slot, 0)) for slot in engine.slots) + engine.pinned


def _unbounded(sites: Sequence[SiteBound]) -> list[NotCovered]:
    return [
        NotCovered(
            site=site.name,
            why=site.bound.why,
            what_helps=f"Give {', '.join(site.bound.needs)} with --set."
            if site.bound.needs
            else "Record a run that reaches it.",
        )
        for site in sites
        if not site.bound.bytes
    ]


def _can_fail(
    given: Sequence[SiteReserve], bounds: Mapping[str, Bound], limits: Mapping[str, Limit]
) -> list[str]:
    """One sentence for each site that can ask for more than it gets."""
    told = []
    for reserve in given:
        bound, size = bounds[reserve.site], reserve.bytes
        if reserve.cover == "bound":
            continue
        if bound.grade == "observed":
            told.append(
                f"{reserve.site}: {human(size)} is only what was seen or given; a larger "
                "request can still fail."
            )
        elif bound.bytes is not None and bound.bytes > size:
            where = threshold(bound, size, limits)
            told.append(
                f"{reserve.site}: gets {human(size)}, can need {human(bound.bytes)} "
                f"({bound.grade}); a request above that still fails{where}."
            )
    return told


def _ladders(
    sites: Sequence[SiteBound], engine: Engine, limits: Mapping[str, Limit]
) -> dict[str, list[Rung]]:
    return {
        site.name: ladder(site.bound, limits, engine.memory, site.p99)
        for site in sites
        if site.bound.bytes and affordability.is_absurd(site.bound.bytes, engine.memory)
    }
