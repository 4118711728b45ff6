"""From bounds to a reserve config: what each site gets, what each slot gets, what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

import wstrace
from wstrace.bounds.bound import Bound
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.known_sites.known import find
from wstrace.planning import cost
from wstrace.planning.cost import (
    Point,
    Rung,
    curve,
    ladder,
    reserve_of,
)
from wstrace.planning.inputs import Engine, SiteBound, Wishes, covers, what_ifs
from wstrace.planning.shortage import can_fail
from wstrace.reserve.evaluate import site_bytes
from wstrace.reserve.schema import (
    Cover,
    Model,
    NotCovered,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    layout,
    model_digest,
)
from wstrace.trace.records import Ask, Limit
from wstrace.units import parse_bytes

__all__ = ["Engine", "ReservePlan", "SiteBound", "Wishes", "p99", "plan"]

_PAGE: Final = 256


@dataclass(frozen=True)
class ReservePlan:
    """The config, and by site: its bound, what it needs under the limits of the plan (bytes),
    its curve over the limit that drives it, and cheaper choices where the need is absurd.
    `can_fail` has a sentence for each site that can outgrow what it gets."""

    config: ReserveConfig
    can_fail: tuple[str, ...]
    bounds: Mapping[str, Bound]
    needs: Mapping[str, int]
    curves: Mapping[str, list[Point]]
    ladders: Mapping[str, list[Rung]]

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
        bound = self.bounds[site.site]
        return {
            "file": file,
            "function": function,
            **msgspec.to_builtins(site),
            "needs": list(bound.needs),
            "lever": bound.lever,
            "known_site": bound.known_site,
            "bound": self.needs[site.site] if bound.grade != "observed" else None,
            "curve": [msgspec.to_builtins(point) for point in self.curves[site.site]],
            "ladder": [msgspec.to_builtins(r) for r in self.ladders.get(site.site, [])],
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
    limits = {**engine.limits, **what_ifs(wishes.limits or {}, engine)}
    chosen = covers(wishes.cover or {}, sites)
    reserves = [_reserve(site, chosen.get(site.name), engine, limits) for site in sites]
    reserves = [r for r in reserves if r.bytes or r.cover == "given"]
    given = [_within(r, _per_slot(wishes.budget, engine)) for r in reserves]
    total = max((_up(r.bytes) for r in given), default=0)
    everything = {**limits, **engine.given}
    needs = {site.name: _need(site, engine, limits) for site in sites}
    wanted = {r.site: r.bytes for r in reserves if r.site in chosen}
    requests = {site.name: (needs[site.name], _request(site, engine)) for site in sites}
    config = ReserveConfig(
        made_by=f"wstrace {wstrace.__version__}",
        model=Model(
            name=str(engine.limits.get("model") or ""),
            digest=model_digest(limits),
            layout=layout(limits),
        ),
        limits={name: value for name, value in limits.items() if name != "model"},
        slots=[SlotReserve(ubatch=s.ubatch, lane=s.lane, bytes=total) for s in engine.slots],
        sites=sorted(given, key=lambda r: (-r.bytes, r.site)),
        cost=cost.kv_cost(_extra(total, engine), engine.memory, limits),
        not_covered=[*_unbounded(sites), *not_covered],
    )
    return ReservePlan(
        config,
        can_fail=tuple(can_fail(given, wanted, requests, everything, total)),
        ladders=_ladders(sites, needs, engine, everything),
        curves={site.name: curve(site.bound, everything, engine.memory) for site in sites},
        needs=needs,
        bounds={site.name: site.bound for site in sites},
    )


def p99(asks: Sequence[Ask]) -> int | None:
    """The size that 99 % of the different sizes stay within (a trace counts no call alone)."""
    sizes = sorted({ask.bytes for ask in asks})
    return sizes[max(0, -(-len(sizes) * 99 // 100) - 1)] if sizes else None


def _reserve(
    site: SiteBound, choice: str | None, engine: Engine, limits: Mapping[str, Limit]
) -> SiteReserve:
    reserve = _follows(site, engine)
    if choice is None or choice == "bound":
        size = site_bytes(reserve, engine.limits, limits)
        return msgspec.structs.replace(reserve, bytes=size)
    size, cover = _chosen(choice, site)
    return msgspec.structs.replace(reserve, bytes=size, cover=cover)


def _follows(site: SiteBound, engine: Engine) -> SiteReserve:
    """The site with its formula; numbers that a live config lacks too are its constants."""
    reserve = reserve_of(site.bound, site.name, site.asks_max)
    names: set[str] = set()
    for text in (reserve.formula or "0", *reserve.drivers.values(), *reserve.joint):
        names |= expression.parse(text).names
    given = {name: engine.given[name] for name in sorted(names & engine.given.keys())}
    return msgspec.structs.replace(reserve, constants={**given, **reserve.constants})


def _chosen(choice: str, site: SiteBound) -> tuple[int, Cover]:
    seen = site.asks_max or site.bound.observed
    if choice == "observed":
        return seen, "observed"
    if choice == "p99":
        return site.p99 if site.p99 is not None else seen, "p99"
    try:
        return parse_bytes(choice), "given"
    except WstraceError:
        raise WstraceError(
            f"--cover {site.function}={choice}: no such choice.",
            "Use bound, observed, p99, or a size such as 64MiB.",
        ) from None


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
    counted = engine.counted
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


def _request(site: SiteBound, engine: Engine) -> SiteReserve:
    """The site with the formula of one request, also where a rule gives the worst case.

    Not where the rule's function makes several calls: any of them may be the first to fail.
    """
    bound, follows = site.bound, _follows(site, engine)
    rule = find(bound.known_site or "")
    if not bound.closed or rule is None or any(variant.also for variant in rule.variants):
        return follows
    return msgspec.structs.replace(
        follows,
        formula=bound.driver_formula,
        drivers=dict(bound.drivers),
        lowest=dict.fromkeys(bound.drivers, 1),
    )


def _need(site: SiteBound, engine: Engine, limits: Mapping[str, Limit]) -> int:
    """The site's bound under the limits of the plan, whatever is reserved for it."""
    return site_bytes(_follows(site, engine), engine.limits, limits)


def _ladders(
    sites: Sequence[SiteBound],
    needs: Mapping[str, int],
    engine: Engine,
    limits: Mapping[str, Limit],
) -> dict[str, list[Rung]]:
    return {
        site.name: ladder(
            replace(site.bound, bytes=needs[site.name]), limits, engine.memory, site.p99
        )
        for site in sites
        if site.bound.bytes and cost.is_absurd(needs[site.name], engine.memory)
    }
