"""Hazards of moved memory: WS301 to WS304.

Generations count a slot's arena replacements. A captured graph replays from the generation
that it was captured with; once that is replaced its memory is somebody else's. Throwaway
graphs, released graphs and graphs in which no request was made do not count. An arena is
told by (manager, generation): a new manager starts its generations anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wstrace.findings.finding import RESERVE_COMMAND, Finding
from wstrace.runs.run import BoundOf
from wstrace.runs.worker import Worker, whole_worker
from wstrace.trace.records import (
    Capture,
    Counts,
    Growth,
    Manager,
    Ordering,
    Record,
    Request,
    Slot,
)
from wstrace.units import human, plural

Arena = tuple[int, int]
UNORDERED = "Give the side stream a lane of its own, or order the two streams."


def find(worker: Worker, bound_of: BoundOf) -> list[Finding]:
    """WS301, WS302, WS303 and WS304 of one worker."""
    stale = [_stale_finding(worker, one, bound_of) for one in _stale(worker).values()]
    return [*stale, *_views(worker), *_in_capture(worker), *_streams(worker)]


@dataclass
class Stale:
    """An arena that captured graphs still point at: what replaced it first, and last."""

    graphs: list[int]
    first: Growth
    last: Growth
    times: int = 1


def _stale(worker: Worker) -> dict[Slot, Stale]:
    """WS301: walk the records in order, holding what live graphs point at."""
    held: dict[int, dict[Slot, Arena]] = {}
    manager = 0
    found: dict[Slot, Stale] = {}
    for record in worker.process.events:
        if isinstance(record, Counts):  # most of a long trace
            continue
        if isinstance(record, Manager):
            manager = record.id
        _follow(held, record, manager)
        if isinstance(record, Growth):
            _replaced(found, _broken_by(held, record), record)
    return found


def _replaced(found: dict[Slot, Stale], broken: list[int], growth: Growth) -> None:
    """A growth that keeps the old arena alive (`--on-growth grow`) breaks no graph."""
    if growth.slot in found:
        found[growth.slot].last = growth
        found[growth.slot].times += 1
    elif broken and not (growth.forced and growth.kept_bytes):
        found[growth.slot] = Stale(broken, growth, growth)


def _follow(held: dict[int, dict[Slot, Arena]], record: Record, manager: int) -> None:
    if not isinstance(record, Capture):
        return
    if record.event == "release":
        held.pop(record.graph, None)
    elif not record.throwaway and record.slots:
        generations = [(manager, generation) for generation in record.generations]
        held[record.graph] = dict(zip(record.slots, generations, strict=True))


def _broken_by(held: dict[int, dict[Slot, Arena]], growth: Growth) -> list[int]:
    """Graphs that were captured with an older arena of this slot."""
    now = (growth.manager, growth.generation)
    return [g for g, slots in held.items() if growth.slot in slots and slots[growth.slot] < now]


def _stale_finding(worker: Worker, stale: Stale, bound_of: BoundOf) -> Finding:
    first, growth = stale.first, stale.last
    lock = "locked" if growth.locked else "not locked"
    times = f" {stale.times} times, at last" if stale.times > 1 else ""
    key = worker.site_keys.get(growth.site or 0)
    use = worker.sites.get((key, growth.slot)) if key else None
    return Finding(
        code="WS301",
        severity="error",
        detail=(
            f"{plural(len(stale.graphs), 'captured graph')} "
            f"{'holds' if len(stale.graphs) == 1 else 'hold'} the old {human(first.before)} "
            f"arena, which was replaced{times} by one of {human(growth.after)} in "
            f"{growth.phase} ({lock})"
        ),
        bound=bound_of(use.key) if use else None,
        warmup_bytes=(use.warmup_bytes or None) if use else None,
        layers=tuple(use.layers) if use else (),
        advice="Reserve the worst case before capture: "
        f"{RESERVE_COMMAND} TRACE -o reserve.yaml.",
        **worker.where(growth.site),
        slot=growth.slot,
        ranks=(worker.ranks,),
        serving_bytes=growth.after,
        arena_bytes=first.before,
        phase=growth.phase,
        step=growth.step,
    )


def _views(worker: Worker) -> Iterator[Finding]:
    for stale in worker.views:
        what = (
            "pins the old arena" if stale.why == "growth" else "is kept after the next request"
        )
        yield Finding(
            code="WS302",
            severity="warning",
            detail=f"a view of {human(stale.bytes)} {what}",
            advice="Take the view anew in every step; do not keep it on the layer.",
            **worker.where(stale.site),
            slot=stale.slot,
            ranks=(worker.ranks,),
            phase=stale.phase,
        )


def _in_capture(worker: Worker) -> Iterator[Finding]:
    """WS303; the graphs of the memory estimate are thrown away and never serve."""
    for growth in worker.growths:
        if growth.capturing and growth.phase != "graph-estimate":
            yield Finding(
                code="WS303",
                severity="error",
                detail=f"grew to {human(growth.after)} while capturing: the arena lies in the "
                "graph's private pool",
                advice=f"Reserve the worst case before capture: {RESERVE_COMMAND} TRACE.",
                **worker.where(growth.site),
                slot=growth.slot,
                ranks=(worker.ranks,),
                arena_bytes=growth.after,
                phase=growth.phase,
                step=growth.step,
            )


def _streams(worker: Worker) -> Iterator[Finding]:
    """WS304: pairs of requests without an order; where order was not looked at, two streams
    that asked in one slot within one real step."""
    looked_at = {record.slot for record in worker.orderings}
    for record in worker.orderings:
        if not record.ordered and (record.capturing or record.phase == "serving"):
            yield _unordered(worker, record)
    yield from _not_looked_at(worker, looked_at)


def _unordered(worker: Worker, record: Ordering) -> Finding:
    first, second = worker.where(record.first), worker.where(record.second)
    when = "while capturing" if record.capturing else f"in step {record.step}"
    return Finding(
        code="WS304",
        severity="warning",
        detail=(
            f"two streams asked in this slot {when}, {first['caller']} "
            f"(from {_way(record.first_stack)}) and after it {second['caller']} "
            f"(from {_way(record.second_stack)}), and no event was seen to order them"
        ),
        advice=UNORDERED,
        **second,
        slot=record.slot,
        ranks=(worker.ranks,),
        phase=record.phase,
    )


def _way(stack: Sequence[str]) -> str:
    """The callers behind the asking frame, the nearest first, without their folders."""
    return ", ".join(frame.rpartition("/")[2] for frame in stack[1:3]) or "nothing seen"


def _not_looked_at(worker: Worker, looked_at: set[Slot]) -> Iterator[Finding]:
    """Warm-up and capture switch streams in turn (a graph is captured on a stream of its
    own), and a step index covers many of their runs: only real steps tell."""
    seen: dict[tuple[Slot, int], Request] = {}
    told = set(looked_at)
    streams: dict[Slot, set[int]] = {}
    for (_, slot), use in worker.sites.items():
        streams.setdefault(slot, set()).update(
            request.stream for request in use.requests if _tells(request)
        )
    several = {slot for slot, found in streams.items() if len(found) > 1} - told
    if several:
        worker = whole_worker(worker)  # from here on the step of each request counts
    for (key, slot), use in worker.sites.items():
        for request in use.requests if slot in several else ():
            if not _tells(request) or request.step is None or slot in told:
                continue
            first = seen.setdefault((slot, request.step.index), request)
            if first.stream != request.stream:
                told.add(slot)
                yield Finding(
                    code="WS304",
                    severity="warning",
                    detail=f"two streams asked in this slot in step {request.step.index}; "
                    "whether an event orders them was not looked at",
                    advice=UNORDERED,
                    file=key.file,
                    function=key.function,
                    caller=use.caller,
                    slot=slot,
                    ranks=(worker.ranks,),
                    serving_bytes=request.bytes,
                    phase=request.phase,
                    step=request.step,
                )


def _tells(request: Request) -> bool:
    return request.step is not None and request.step.kind == "real" and not request.capturing


def order_notes(workers: Sequence[Worker]) -> list[str]:
    """What was seen of streams that share a slot and are ordered, one sentence a slot."""
    pairs: dict[Slot, set[tuple[str, str]]] = {}
    for worker in workers:
        unordered = {r.slot for r in worker.orderings if not r.ordered}
        for record in worker.orderings:
            if record.slot not in unordered:
                names = (
                    worker.where(record.first)["caller"],
                    worker.where(record.second)["caller"],
                )
                pairs.setdefault(record.slot, set()).add(names)
    return [
        f"several streams ask in slot {slot.ubatch}.{slot.lane}, ordered by events: "
        + ", ".join(_ordered(*pair) for pair in sorted(found)[:4])
        for slot, found in sorted(pairs.items())
    ]


def _ordered(first: str, second: str) -> str:
    """Two callers; one that asks on two streams (eager, capturing) is named once."""
    return f"{first} before {second}" if first != second else f"{first} on both"
