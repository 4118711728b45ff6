"""What KV sizing never saw and what was reserved in vain: the WS2 codes."""

from __future__ import annotations

from wstrace.findings.finding import RESERVE_COMMAND, Finding
from wstrace.runs.accounting import window_of
from wstrace.runs.run import BoundOf
from wstrace.runs.worker import AFTER_LOCK, Worker, ranks_named
from wstrace.trace.records import Growth, Slot
from wstrace.units import exact, human

FAR_ABOVE = 4
WORTH_A_NOTE = 1 << 20
MOST_SIZES = 4


def find(worker: Worker, bound_of: BoundOf) -> list[Finding]:
    """WS201, WS202 and WS203 of one worker."""
    return [*_uncounted(worker), *_unlocked(worker, bound_of), *_oversized(worker, bound_of)]


def _uncounted(worker: Worker) -> list[Finding]:
    """WS201: the last uncounted growth of each slot and site that caused one.

    A growth that `--on-growth grow` forced through the lock is none: without that option it
    would not have happened.
    """
    last: dict[tuple[Slot, int | None], Growth] = {}
    for growth in worker.growths:
        forced = growth.forced and growth.locked
        if window_of(worker, growth) == "not counted" and not forced:
            last[growth.slot, growth.site] = growth
    return [_uncounted_finding(worker, growth) for growth in last.values()]


def _uncounted_finding(worker: Worker, growth: Growth) -> Finding:
    fixed = worker.memory.fixed_kv
    place = "before" if growth.phase == "init" else "after"
    why = (
        f"the KV cache size is fixed by {fixed}"
        if fixed
        else f"it came in phase {growth.phase}, {place} what this vLLM measures"
    )
    advice = (
        f"Lower {fixed}; what the reserve costs says by how much: {RESERVE_COMMAND} TRACE."
        if fixed
        else f"Reserve it before profiling: {RESERVE_COMMAND} TRACE -o reserve.yaml."
    )
    return Finding(
        code="WS201",
        severity="warning",
        detail=f"the arena grew to {exact(growth.after)}, not counted in KV sizing: {why}",
        advice=advice,
        **worker.where(growth.site),
        slot=growth.slot,
        ranks=(worker.ranks,),
        arena_bytes=growth.after,
        phase=growth.phase,
        step=growth.step,
    )


def _unlocked(worker: Worker, bound_of: BoundOf) -> list[Finding]:
    """WS202, unless a reserve holds the proved bound of every site: then nothing can grow."""
    settled = worker.locks or nothing_asked(worker)  # no layer asked: no arena can grow
    if not worker.served or settled or _covered(worker, bound_of):
        return []
    return [
        Finding(
            code="WS202",
            severity="warning",
            detail=f"serving started with no lock ({why_unlocked(worker)}): growth is silent",
            advice=f"Reserve the worst case, so that nothing grows: {RESERVE_COMMAND} TRACE.",
            ranks=(worker.ranks,),
        )
    ]


def nothing_asked(worker: Worker) -> bool:
    """True where real steps ran and no layer asked for workspace."""
    return bool(worker.counts and worker.counts.steps_real and not worker.sites)


def _covered(worker: Worker, bound_of: BoundOf) -> bool:
    if not any(event.event in ("applied", "satisfied") for event in worker.reserves):
        return False
    bounds = [(slot, bound_of(key)) for key, slot in worker.sites]
    return bool(bounds) and all(
        bound.grade == "proved" and (bound.bytes or 0) <= worker.arena(slot)
        for slot, bound in bounds
    )


def why_unlocked(worker: Worker) -> str:
    """The reason that the settings give for a run without a lock."""
    if worker.limits.get("enforce_eager"):
        return "eager mode never locks"
    if "gpu.model_runner" in worker.init.runner:
        return "this V2 model runner does not lock"
    if worker.limits.get("cudagraph_mode") == "NONE":
        return "no CUDA graphs, no lock"
    return "this engine did not lock"


def _oversized(worker: Worker, bound_of: BoundOf) -> list[Finding]:
    """WS203: an arena far above what was used, warm-up and capture included.

    An arena that a reserve made is measured against 99.9% of the requests (and all that a
    graph captured), another one against the largest.
    """
    if not worker.served:
        return []
    findings = []
    for slot in worker.slots():
        uses = [u for (_, s), u in worker.sites.items() if s == slot]
        used = max((u.largest for u in uses), default=0)
        arena = worker.arena(slot)
        common = usual_bytes(worker, slot, used) if _reserved(worker, slot) else used
        bounds = [bound_of(u.key) for u in uses]
        needed = max((b.bytes or 0 for b in bounds if b.grade == "proved"), default=0)
        if arena > FAR_ABOVE * max(common, 1) and arena - common > WORTH_A_NOTE:
            findings.append(_oversized_finding(worker, slot, arena, used, common, needed))
    return findings


def _reserved(worker: Worker, slot: Slot) -> bool:
    """Whether the slot's arena is the work of a reserve config."""
    grown = [g for g in worker.growths if g.slot == slot and g.phase not in AFTER_LOCK]
    return bool(grown) and grown[-1].reserve


def usual_bytes(worker: Worker, slot: Slot, largest: int) -> int:
    """Bytes that held at least 99.9% of a slot's requests, and all that graphs captured.

    From the counters, which know the largest request of each site and phase but no more, so
    this errs upwards. `largest` where nothing was counted.
    """
    captured = [
        request.bytes
        for (_, where), use in worker.sites.items()
        if where == slot
        for request in use.requests
        if request.capturing
    ]
    groups = sorted(
        (count.max_bytes, count.calls) for count in worker.newest.values() if count.slot == slot
    )
    total, seen = sum(calls for _, calls in groups), 0
    for size, calls in groups:
        seen += calls
        if seen * 1000 >= total * 999:
            return max(size, *captured, 0)
    return largest


def _oversized_finding(
    worker: Worker, slot: Slot, arena: int, used: int, common: int, needed: int
) -> Finding:
    tokens = kv_tokens(worker, arena - common)
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
        ranks=(worker.ranks,),
        serving_bytes=used,
        arena_bytes=arena,
    )


def kv_tokens(worker: Worker, size: int) -> int | None:
    """KV-cache tokens that `size` bytes would hold on this rank; None where unknown."""
    memory = worker.memory
    if not memory.bytes_per_block or not memory.block_size:
        return None
    return size * memory.block_size // memory.bytes_per_block


def find_across(ranks: list[Worker]) -> list[Finding]:
    """WS204: the same slot locked at different sizes on ranks of one pipeline stage."""
    sizes: dict[tuple[int | None, Slot], dict[int, list[Worker]]] = {}
    for worker in ranks:
        for slot, size in worker.locked_sizes.items():
            by_size = sizes.setdefault((worker.ranks.pp, slot), {})
            by_size.setdefault(size, []).append(worker)
    findings = [_uneven(slot, by) for (_, slot), by in sizes.items() if len(by) > 1]
    return findings + [f for worker in ranks for f in _uneven_slots(worker)]


def _uneven(slot: Slot, by_size: dict[int, list[Worker]]) -> Finding:
    smallest = min(by_size)
    return Finding(
        code="WS204",
        severity="warning",
        detail=f"ranks were locked at {_sizes(by_size)}",
        advice="The smallest rank fails first: reserve the same bytes on every rank.",
        slot=slot,
        ranks=tuple(worker.ranks for worker in by_size[smallest]),
        arena_bytes=smallest,
    )


def _sizes(by_size: dict[int, list[Worker]]) -> str:
    """`24.00 MiB (tp0), 32.00 MiB (tp1 and 6 more)`; of many sizes the least and the most."""
    told = [f"{human(size)} ({ranks_named(by_size[size])})" for size in sorted(by_size)]
    if len(told) <= MOST_SIZES:
        return ", ".join(told)
    return f"{len(told)} sizes, from {told[0]} to {told[-1]}"


def _uneven_slots(worker: Worker) -> list[Finding]:
    """Ubatches of one lane that were both used but locked at different sizes."""
    lanes: dict[int, dict[int, list[Slot]]] = {}
    for slot, size in worker.locked_sizes.items():
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
            ranks=(worker.ranks,),
            arena_bytes=min(by_size),
        )
        for lane, by_size in lanes.items()
        if len(by_size) > 1
    ]
