"""Accounting: what KV sizing never saw, what was reserved in vain: WS201 to WS204."""

from __future__ import annotations

from wstrace.findings.escapes import BoundOf
from wstrace.findings.finding import Finding
from wstrace.runs.accounting import window_of
from wstrace.runs.worker import AFTER_LOCK, RankView
from wstrace.trace.records import Growth, Ranks, Slot
from wstrace.units import exact, human

FAR_ABOVE = 4
WORTH_A_NOTE = 1 << 20


def find(view: RankView, bound_of: BoundOf) -> list[Finding]:
    """WS201, WS202 and WS203 of one worker."""
    return [*_uncounted(view), *_unlocked(view, bound_of), *_oversized(view, bound_of)]


def _uncounted(view: RankView) -> list[Finding]:
    """WS201: the last uncounted growth of each slot and site that caused one.

    A growth that `--on-growth grow` forced through the lock is none: without that option it
    would not have happened.
    """
    last: dict[tuple[Slot, int | None], Growth] = {}
    for growth in view.growths:
        forced = growth.forced and growth.locked
        if window_of(view, growth) == "not counted" and not forced:
            last[growth.slot, growth.site] = growth
    return [_uncounted_finding(view, growth) for growth in last.values()]


def _uncounted_finding(view: RankView, growth: Growth) -> Finding:
    fixed = view.memory.fixed_kv
    place = "before" if growth.phase == "init" else "after"
    why = (
        f"the KV cache size is fixed by {fixed}"
        if fixed
        else f"it came in phase {growth.phase}, {place} what this vLLM measures"
    )
    advice = (
        f"Lower {fixed} by {growth.after - growth.before:,} bytes."
        if fixed
        else "Reserve it before profiling: wstrace reserve TRACE -o reserve.yaml."
    )
    return Finding(
        code="WS201",
        severity="warning",
        detail=f"the arena grew to {exact(growth.after)}, not counted in KV sizing: {why}",
        advice=advice,
        **view.where(growth.site),
        slot=growth.slot,
        ranks=(view.ranks,),
        arena_bytes=growth.after,
        phase=growth.phase,
        step=growth.step,
    )


def _unlocked(view: RankView, bound_of: BoundOf) -> list[Finding]:
    """WS202, unless a reserve holds the proved bound of every site: then nothing can grow."""
    if not view.served or view.locks or _covered(view, bound_of):
        return []
    return [
        Finding(
            code="WS202",
            severity="warning",
            detail=f"serving started with no lock ({why_unlocked(view)}): growth is silent",
            advice="Reserve the worst case, so that nothing grows: wstrace reserve TRACE.",
            ranks=(view.ranks,),
        )
    ]


def _covered(view: RankView, bound_of: BoundOf) -> bool:
    if not any(event.event in ("applied", "satisfied") for event in view.reserves):
        return False
    bounds = [(slot, bound_of(key)) for key, slot in view.sites]
    return bool(bounds) and all(
        bound.grade == "proved" and (bound.bytes or 0) <= view.arena(slot)
        for slot, bound in bounds
    )


def why_unlocked(view: RankView) -> str:
    """The reason that the settings give for a run without a lock."""
    if view.limits.get("enforce_eager"):
        return "eager mode never locks"
    if "gpu.model_runner" in view.worker.runner:
        return "this V2 model runner does not lock"
    if view.limits.get("cudagraph_mode") == "NONE":
        return "no CUDA graphs, no lock"
    return "this engine did not lock"


def _oversized(view: RankView, bound_of: BoundOf) -> list[Finding]:
    """WS203: an arena far above what was used, warm-up and capture included.

    An arena that a reserve made is measured against 99.9% of the requests (and all that a
    graph captured), another one against the largest.
    """
    if not view.served:
        return []
    findings = []
    for slot in view.slots():
        uses = [u for (_, s), u in view.sites.items() if s == slot]
        used = max((max(u.warmup_bytes, u.after_bytes) for u in uses), default=0)
        arena = view.arena(slot)
        common = usual_bytes(view, slot, used) if _reserved(view, slot) else used
        bounds = [bound_of(u.key) for u in uses]
        needed = max((b.bytes or 0 for b in bounds if b.grade == "proved"), default=0)
        if arena > FAR_ABOVE * max(common, 1) and arena - common > WORTH_A_NOTE:
            findings.append(_oversized_finding(view, slot, arena, used, common, needed))
    return findings


def _reserved(view: RankView, slot: Slot) -> bool:
    """Whether the slot's arena is the work of a reserve config."""
    grown = [g for g in view.growths if g.slot == slot and g.phase not in AFTER_LOCK]
    return bool(grown) and grown[-1].reserve


def usual_bytes(view: RankView, slot: Slot, largest: int) -> int:
    """Bytes that held at least 99.9% of a slot's requests, and all that graphs captured.

    From the counters, which know the largest request of each site and phase but no more, so
    this errs upwards. `largest` where nothing was counted.
    """
    captured = [
        ask.bytes
        for (_, where), use in view.sites.items()
        if where == slot
        for ask in use.asks
        if ask.capturing
    ]
    groups = sorted(
        (count.max_bytes, count.calls) for count in view.newest.values() if count.slot == slot
    )
    total, seen = sum(calls for _, calls in groups), 0
    for size, calls in groups:
        seen += calls
        if seen * 1000 >= total * 999:
            return max(size, *captured, 0)
    return largest


def _oversized_finding(
    view: RankView, slot: Slot, arena: int, used: int, common: int, needed: int
) -> Finding:
    tokens = kv_tokens(view, arena - common)
    worth = f", worth {tokens:,} KV tokens" if tokens else ""
    rarely = f"99.9% of the requests used {human(common)}, " if common < used else ""
    advice = (
        "It covers a proved worst case: to pay less, lower the limit that it grows with."
        if needed > common
        else "Check the reserve's formulas, or reserve less with --cover SITE=observed."
    )
    return Finding(
        code="WS203",
        severity="note",
        detail=f"the arena is {human(arena)}, {rarely}the largest was {human(used)}{worth}",
        advice=advice,
        slot=slot,
        ranks=(view.ranks,),
        serving_bytes=used,
        arena_bytes=arena,
    )


def kv_tokens(view: RankView, size: int) -> int | None:
    """KV-cache tokens that `size` bytes would hold on this rank; None where unknown."""
    memory = view.memory
    if not memory.bytes_per_block or not memory.block_size:
        return None
    return size * memory.block_size // memory.bytes_per_block


def find_across(ranks: list[RankView]) -> list[Finding]:
    """WS204: the same slot locked at different sizes on ranks of one pipeline stage."""
    sizes: dict[tuple[int | None, Slot], dict[int, list[Ranks]]] = {}
    for view in ranks:
        for slot, size in view.locked_sizes.items():
            by_size = sizes.setdefault((view.ranks.pp, slot), {})
            by_size.setdefault(size, []).append(view.ranks)
    findings = [_uneven(slot, by) for (_, slot), by in sizes.items() if len(by) > 1]
    return findings + [f for view in ranks for f in _uneven_slots(view)]


def _uneven(slot: Slot, by_size: dict[int, list[Ranks]]) -> Finding:
    smallest = min(by_size)
    return Finding(
        code="WS204",
        severity="warning",
        detail="ranks were locked at " + ", ".join(human(size) for size in sorted(by_size)),
        advice="The smallest rank fails first: reserve the same bytes on every rank.",
        slot=slot,
        ranks=tuple(by_size[smallest]),
        arena_bytes=smallest,
    )


def _uneven_slots(view: RankView) -> list[Finding]:
    """Ubatches of one lane that were both used but locked at different sizes."""
    lanes: dict[int, dict[int, list[Slot]]] = {}
    for slot, size in view.locked_sizes.items():
        if size:
            lanes.setdefault(slot.lane, {}).setdefault(size, []).append(slot)
    return [
        Finding(
            code="WS204",
            severity="warning",
            detail=f"ubatches of lane {lane} were locked at "
            + ", ".join(human(size) for size in sorted(by_size)),
            advice="Reserve the same bytes in every slot.",
            slot=by_size[min(by_size)][0],
            ranks=(view.ranks,),
            arena_bytes=min(by_size),
        )
        for lane, by_size in lanes.items()
        if len(by_size) > 1
    ]
