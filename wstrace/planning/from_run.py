"""An analysed run as the planner takes it: its sites over all ranks, and its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.codes import REFUSED_ELSEWHERE
from wstrace.findings.ends import died_at
from wstrace.known_sites.given import Told
from wstrace.known_sites.known import known_names
from wstrace.planning.earlier import BEHIND, Earlier, applied_config
from wstrace.planning.over_ranks import over_ranks
from wstrace.planning.plan import Engine, ReservePlan, SiteBound, Wishes, p99, plan
from wstrace.reserve.schema import NotCovered
from wstrace.runs.accounting import window_of
from wstrace.runs.run import RunSite
from wstrace.runs.worker import Worker, ranks_named
from wstrace.trace.records import Limit, Memory, Slot
from wstrace.units import human
from wstrace.vllm import dispatch

MOST_SIZES: Final = 4


def plan_run(run: AnalysedRun, wishes: Wishes, earlier: Sequence[Earlier] = ()) -> ReservePlan:
    """The reserve that a run calls for, which keeps the sites of the reserve that the run had
    and of `earlier` ones. Numbers of `wishes.limits` that the trace lacks complete the bounds;
    the others are what-ifs.

    Raises WstraceError where the trace has no worker or no request, and as `plan` does.
    """
    if not run.workers:
        raise WstraceError(
            "The trace has no worker, so there is nothing to reserve for.",
            "Run `wstrace doctor`: the plugin may not load in vLLM's processes.",
        )
    given = _complete(run.workers, wishes.limits or {})
    sites = site_bounds(run.sites, run.workers[0].limits)
    covered = [*behind_the_end(run), *not_covered(run)]
    kept = [*applied(run), *earlier]
    floor = unnamed(run, kept)
    covered += _of_unknown_sites(floor)
    if not sites and not covered and not any(old.config.sites for old in kept):
        raise WstraceError(
            "The trace has no workspace request, so there is nothing to reserve.",
            "Record a run that serves requests, long ones above all.",
        )
    return plan(sites, engine_of(run.workers, given), wishes, covered, kept, floor)


def plan_runs(
    runs: Sequence[AnalysedRun], wishes: Wishes, earlier: Sequence[Earlier] = ()
) -> ReservePlan:
    """One reserve for several runs of one engine, under the first run's limits.

    Raises WstraceError where a run is another engine's, and as `plan_run` does.
    """
    first, *others = runs
    limits = Wishes(limits=wishes.limits, caller=wishes.caller)
    made = [Earlier(str(other.trace.path), plan_run(other, limits).config) for other in others]
    return plan_run(first, wishes, [*made, *earlier])


def applied(run: AnalysedRun) -> list[Earlier]:
    """The reserve configs that the run's workers had applied, each once."""
    events = [event for worker in run.workers for event in worker.reserves if event.config]
    texts = {event.config: event for event in events if event.event != "refused"}
    decoded = [(event, applied_config(text)) for text, event in texts.items()]
    return [Earlier(event.path or "a reserve", config) for event, config in decoded if config]


def unnamed(run: AnalysedRun, kept: Sequence[Earlier]) -> int:
    """Bytes of a slot from an applied reserve whose sites cannot be kept: the trace has no
    config of it that this wstrace reads, and no reserve that is `kept` has as many bytes."""
    known = max((slot.bytes for old in kept for slot in old.config.slots), default=0)
    without = [
        worker
        for worker in run.workers
        if any(e.event != "refused" and not applied_config(e.config) for e in worker.reserves)
    ]
    grown = [g.after for worker in without for g in worker.growths if g.reserve]
    told = [size for worker in without for event in worker.reserves for size in event.sizes]
    most = max(grown or told, default=0)
    return most if most > known else 0


def _of_unknown_sites(size: int) -> list[NotCovered]:
    if not size:
        return []
    return [
        NotCovered(
            site="sites of the applied reserve",
            why=f"A reserve of {human(size)} was applied, and the trace does not say for which "
            "sites: the bytes are kept, and follow no limit.",
            what_helps="Give its file: wstrace reserve TRACE --merge FILE.",
        )
    ]


def behind_the_end(run: AnalysedRun) -> list[NotCovered]:
    """A refusal that the engine did not survive hides every site that comes after it."""
    step = died_at(run.trace.processes)
    if step is None:
        return []
    when = f"at step {step}" if step else "of a refused request"
    return [
        NotCovered(
            site=BEHIND,
            why=f"The run died {when}; sites behind it were not seen.",
            what_helps="wstrace run --on-growth grow and wstrace exercise find the rest; give "
            "wstrace reserve both traces.",
        )
    ]


def _complete(ranks: Sequence[Worker], limits: Mapping[str, Told]) -> dict[str, Told]:
    """Give the ranks the numbers that their config lacks, and the words that decide one, before
    any bound is made."""
    recorded = set().union(*(worker.limits.keys() for worker in ranks))
    known = known_names().keys() | dispatch.WORDS
    given = {n: v for n, v in limits.items() if n not in recorded and n in known}
    for worker in ranks:
        worker.limits.update(given)
    return given


def site_bounds(sites: Sequence[RunSite], recorded: Mapping[str, Limit]) -> list[SiteBound]:
    """One SiteBound a site: the largest bound and request over its slots and ranks, under the
    `recorded` limits and others."""
    grouped: dict[str, list[RunSite]] = {}
    for site in sites:
        grouped.setdefault(str(site.key), []).append(site)
    return [_site_bound(group, recorded) for group in grouped.values()]


def _site_bound(group: Sequence[RunSite], recorded: Mapping[str, Limit]) -> SiteBound:
    worst = max(group, key=lambda s: s.bound.bytes or 0)
    ranks = {
        id(w): (w.limits, b) for s in group for (w, _), b in zip(s.uses, s.bounds, strict=True)
    }
    requests = [request for site in group for _, use in site.uses for request in use.requests]
    return SiteBound(
        file=worst.key.file,
        function=worst.key.function,
        bound=over_ranks(list(ranks.values()), recorded),
        largest=max(s.largest for s in group),
        p99=p99(requests),
        slots=tuple(sorted({site.slot for site in group})),
        by_rank=_by_rank(worst),
    )


def _by_rank(site: RunSite) -> str:
    """`the worst of 8 ranks: 6.00 MiB (tp7); 5.00 MiB (tp0 and 6 more)`; empty where the ranks
    have one bound."""
    found: dict[int, list[Worker]] = {}
    for (worker, _), size in zip(site.uses, site.rank_bounds, strict=True):
        found.setdefault(size or 0, []).append(worker)
    if len(found) < 2:
        return ""
    sizes = sorted(found, reverse=True)
    told = [f"{human(size)} ({ranks_named(found[size])})" for size in sizes[:MOST_SIZES]]
    more = f"; {len(sizes) - MOST_SIZES} smaller sizes" if len(sizes) > MOST_SIZES else ""
    return f"the worst of {len(site.uses)} ranks: {'; '.join(told)}{more}"


def engine_of(ranks: Sequence[Worker], given: Mapping[str, Told]) -> Engine:
    """The engine of these ranks; memory and counted bytes of the rank that has least."""
    recorded = {name: value for name, value in ranks[0].limits.items() if name not in given}
    slots = {slot for worker in ranks for slot in worker.slots()} or {Slot()}
    return Engine(
        limits={name: value for name, value in recorded.items() if value is not None},
        given=given,
        slots=tuple(sorted(slots)),
        memory=_scarcest([worker.memory for worker in ranks]),
        counted={slot: min(_counted(worker, slot) for worker in ranks) for slot in slots},
        pinned=max(_pinned(worker) for worker in ranks),
    )


def _scarcest(memories: Sequence[Memory]) -> Memory | None:
    known = [m for m in memories if m.available_kv_bytes is not None]
    if known:
        return min(known, key=lambda m: m.available_kv_bytes or 0)
    return next((m for m in memories if m != Memory()), None)


def _counted(worker: Worker, slot: Slot) -> int:
    """Arena bytes that profiling saw without a reserve: those of growths in its window."""
    grown = [g for g in worker.growths if g.slot == slot and not g.reserve]
    return max((g.after for g in grown if window_of(worker, g) == "counted"), default=0)


def _pinned(worker: Worker) -> int:
    """Old arenas that views keep alive when a reserve replaces them."""
    return sum(v.bytes for v in worker.views if v.why == "growth" and v.phase != "serving")


def not_covered(run: AnalysedRun) -> list[NotCovered]:
    """Failures that bytes in an arena do not cure."""
    return [
        NotCovered(site=f.where, why=f.detail, what_helps=f.advice)
        for f in run.findings
        if f.code in REFUSED_ELSEWHERE
    ]
