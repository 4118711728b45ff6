"""From bounds to a reserve config: what each site gets, what each slot gets, what it costs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

import wstrace
from wstrace.bounds.bound import reserve_of
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.known_sites.given import COMMAND, Caller
from wstrace.known_sites.known import site_with_id
from wstrace.planning import cost
from wstrace.planning.cost import (
    Point,
    Rung,
    curve,
    ladder,
)
from wstrace.planning.earlier import KEPT, Earlier, still_uncovered, with_kept
from wstrace.planning.inputs import Engine, SiteBound, Wishes, covers, what_ifs
from wstrace.planning.shortage import Failing, can_fail
from wstrace.reserve.evaluate import shrank, site_bytes
from wstrace.reserve.schema import (
    Cost,
    Cover,
    Model,
    NotCovered,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    layout,
    model_digest,
)
from wstrace.trace.records import Limit, Request
from wstrace.units import human, parse_bytes
from wstrace.vllm.arena import ALIGNMENT, aligned

__all__ = [
    "Earlier",
    "Engine",
    "ReservePlan",
    "SiteBound",
    "Wishes",
    "p99",
    "plan",
    "refuse_empty_reserve",
]


@dataclass(frozen=True)
class ReservePlan:
    """The config, and by site: what the plan was asked with, what it needs under the limits of
    the plan (bytes), its curve over the limit that drives it, and cheaper choices where that
    is absurd. `can_fail` has a sentence for each site that can outgrow what it gets."""

    config: ReserveConfig
    can_fail: tuple[str, ...]
    asked: Mapping[str, SiteBound]
    needs: Mapping[str, int]
    curves: Mapping[str, list[Point]]
    ladders: Mapping[str, list[Rung]]

    @property
    def beyond_bytes(self) -> list[str]:
        """What is not covered for another reason than a size: one line a need."""
        told = [f"{item.site}: {item.why}" for item in self.config.not_covered]
        return [line for line in told if line not in self.can_fail]

    @property
    def kept(self) -> list[SiteReserve]:
        """Sites that only an earlier reserve asked for."""
        return [site for site in self.config.sites if site.why.startswith(KEPT)]

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
        asked = self.asked[site.site]
        bound = asked.bound
        return {
            "file": asked.file,
            "function": asked.function,
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
    earlier: Sequence[Earlier] = (),
    floor: int = 0,
) -> ReservePlan:
    """The reserve for `sites`: in every slot of the manager the maximum over all sites.

    The one planner, for traces (`from_run.plan_session`) and for logs. A caller gives a
    SiteBound for each site that asks for arena bytes, also one whose bound is None (it comes
    under `not_covered`, with what it needs), the Engine with `complete=False` where a log shows
    only part of it, and in `not_covered` the needs that no arena meets. Sites of `earlier`
    reserves are kept, and what they left uncovered is told again. `floor`: bytes that each slot
    has already from a reserve whose sites nobody knows; they are kept where no limit shrinks.

    All sizes are bytes. Raises WstraceError for a cover of an unknown site, an unknown limit, a
    layout number that a what-if cannot change, an earlier reserve of another engine.
    """
    wishes = wishes or Wishes()
    caller = wishes.caller
    sites = with_kept(sites, earlier, engine)
    limits = {**engine.limits, **what_ifs(wishes.limits or {}, engine, caller)}
    chosen = {s.name: s.cover for s in sites if s.cover} | covers(wishes.cover or {}, sites)
    reserves = [_reserve(site, chosen.get(site.name), engine, limits, caller) for site in sites]
    dropped = _dropped(sites, {r.site for r in reserves if not r.bytes}, chosen, caller)
    reserves = [r for r in reserves if r.bytes or r.cover == "given"]
    budget = _per_slot(wishes.budget, engine)
    given = [_within(r, budget) for r in reserves]
    floor = (
        0 if shrank(engine.limits, limits) else floor if budget is None else min(floor, budget)
    )
    total = max((_up(size) for size in (floor, *(r.bytes for r in given))), default=0)
    everything = {**limits, **engine.given}
    needs = {site.name: _need(site, engine, limits) for site in sites}
    wanted = {r.site: r.bytes for r in reserves if r.site in chosen}
    requests = {site.name: (needs[site.name], _request(site, engine)) for site in sites}
    failing = can_fail(given, wanted, requests, everything, total, caller)
    uncovered = [
        *_unbounded(sites, caller),
        *dropped,
        *(_uncovered(failure, caller) for failure in failing),
        *not_covered,
    ]
    told = {item.site for item in uncovered} | {r.site for r in given if r.follows_limits}
    config = ReserveConfig(
        made_by=f"wstrace {wstrace.__version__}{'' if engine.complete else ' triage'}",
        model=_model(engine, limits),
        limits={name: value for name, value in limits.items() if name != "model"},
        slots=[SlotReserve(ubatch=s.ubatch, lane=s.lane, bytes=total) for s in engine.slots],
        sites=sorted(given, key=lambda r: (-r.bytes, r.site)),
        cost=_cost(total, engine, limits),
        not_covered=_distinct([*uncovered, *still_uncovered(earlier, told)]),
    )
    return ReservePlan(
        config,
        can_fail=tuple(f"{failure.site}: {failure.why}" for failure in failing),
        ladders=_ladders(sites, needs, engine, everything),
        curves={site.name: curve(site.bound, everything, engine.memory) for site in sites},
        needs=needs,
        asked={site.name: site for site in sites},
    )


def refuse_empty_reserve(made: ReservePlan, caller: Caller = COMMAND) -> None:
    """Raises WstraceError for a reserve of no bytes: it looks like a cure and is none."""
    if any(slot.bytes for slot in made.config.slots):
        return
    told = "".join(f" {item.site}: {item.why}" for item in made.config.not_covered[:1])
    helps = next((item.what_helps for item in made.config.not_covered if item.what_helps), "")
    raise WstraceError(
        f"The reserve would have 0 bytes, which covers nothing.{told}",
        helps or f"Give a larger {caller.budget}, or record a run that asks for more.",
    )


def _model(engine: Engine, limits: Mapping[str, Limit]) -> Model:
    """What the config is compared with; from a log only the numbers that it shows."""
    shown = layout(limits)
    if not engine.complete:
        shown = {name: value for name, value in shown.items() if type(value) is int}
    return Model(
        name=str(engine.limits.get("model") or ""),
        digest=model_digest(limits) if engine.complete else "",
        layout=shown,
    )


def _cost(total: int, engine: Engine, limits: Mapping[str, Limit]) -> Cost:
    made = cost.kv_cost(_extra(total, engine), engine.memory, limits)
    if engine.complete:
        return made
    note = "from a log: what profiling already counts is not known"
    return msgspec.structs.replace(made, note=note)


def _uncovered(failure: Failing, caller: Caller) -> NotCovered:
    helps = f"Record a run that asks for more, or give a size with {caller.cover}."
    if not failure.observed:
        given = f"{caller.cover} and {caller.budget}"
        helps = f"Leave out {given} for this site, or lower what drives it."
    return NotCovered(site=failure.site, why=failure.why, what_helps=helps)


def _distinct(items: Sequence[NotCovered]) -> list[NotCovered]:
    """Each need once; several reserves may have told it."""
    return list({(item.site, item.why): item for item in items}.values())


def p99(requests: Sequence[Request]) -> int | None:
    """The size that 99 % of the different sizes stay within (a trace counts no call alone)."""
    sizes = sorted({request.bytes for request in requests})
    return sizes[max(0, -(-len(sizes) * 99 // 100) - 1)] if sizes else None


def _reserve(
    site: SiteBound,
    choice: str | None,
    engine: Engine,
    limits: Mapping[str, Limit],
    caller: Caller,
) -> SiteReserve:
    reserve = _follows(site, engine)
    if choice is None or choice == "bound":
        size = site_bytes(reserve, engine.limits, limits)
        return msgspec.structs.replace(reserve, bytes=size)
    size, cover = _chosen(choice, site, caller)
    return msgspec.structs.replace(reserve, bytes=size, cover=cover, grade="observed")


def _follows(site: SiteBound, engine: Engine) -> SiteReserve:
    """The site with its formula; numbers that a live config lacks too are its constants."""
    reserve = reserve_of(site.bound, site.name, site.largest)
    names: set[str] = set()
    for text in (reserve.formula or "0", *reserve.drivers.values(), *reserve.joint):
        names |= expression.parse(text).names
    given = {name: engine.given[name] for name in sorted(names & engine.given.keys())}
    why = "; ".join(filter(None, (reserve.why, site.by_rank)))
    return msgspec.structs.replace(reserve, constants={**given, **reserve.constants}, why=why)


def _chosen(choice: str, site: SiteBound, caller: Caller) -> tuple[int, Cover]:
    seen = site.largest or site.bound.observed
    if choice == "observed":
        return seen, "observed"
    if choice == "p99":
        return site.p99 if site.p99 is not None else seen, "p99"
    try:
        return parse_bytes(choice), "given"
    except WstraceError:
        raise WstraceError(
            f"{caller.cover} {site.function}={choice[:40]}: no such choice.",
            "Use bound, observed, p99, or a size such as 64MiB.",
        ) from None


def _per_slot(budget: int | None, engine: Engine) -> int | None:
    if budget is None:
        return None
    return budget // max(1, len(engine.slots)) // ALIGNMENT * ALIGNMENT


def _within(reserve: SiteReserve, budget: int | None) -> SiteReserve:
    if budget is None or reserve.bytes <= budget:
        return reserve
    return msgspec.structs.replace(reserve, bytes=budget, cover="given", grade="observed")


def _up(size: int) -> int:
    return aligned(size)


def _extra(total: int, engine: Engine) -> int:
    """True cost: what profiling had counted anyway is not paid twice."""
    counted = engine.counted
    return sum(max(0, total - counted.get(slot, 0)) for slot in engine.slots) + engine.pinned


def _unbounded(sites: Sequence[SiteBound], caller: Caller) -> list[NotCovered]:
    return [
        NotCovered(
            site=site.name,
            why=site.bound.why,
            what_helps=f"Give {', '.join(site.bound.needs)} with {caller.limits}."
            if site.bound.needs
            else "Record a run that reaches it.",
        )
        for site in sites
        if not site.bound.bytes
    ]


def _dropped(
    sites: Sequence[SiteBound],
    empty: Collection[str],
    chosen: Mapping[str, str],
    caller: Caller,
) -> list[NotCovered]:
    """Sites that have asked, and need nothing under the limits of the plan."""
    asked = [s for s in sites if s.name in empty and s.name not in chosen and s.bound.bytes]
    return [
        NotCovered(
            site=site.name,
            why=f"needs no bytes under these limits; in the trace it asked "
            f"{human(site.largest)}.",
            what_helps=f"Leave out what of {caller.limits} takes its need away, if it can "
            "still ask.",
        )
        for site in asked
    ]


def _request(site: SiteBound, engine: Engine) -> SiteReserve:
    """The site with the formula of one request, also where a rule gives the worst case.

    Not where the rule's function makes several calls: any of them may be the first to fail.
    """
    bound, follows = site.bound, _follows(site, engine)
    rule = site_with_id(bound.known_site or "")
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
