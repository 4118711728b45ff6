"""One worker of a run, seen through its records: what each site asked, when, in which slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Final, TypedDict

import msgspec

from wstrace.runs.lock_epochs import AFTER_LOCK as AFTER_LOCK
from wstrace.runs.lock_epochs import WORSE, LockEpochs, Outcome, Seen
from wstrace.trace.collapsing import Repeats
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.records import (
    Capture,
    Count,
    Counts,
    End,
    Failure,
    Growth,
    Header,
    Hook,
    Limit,
    Limits,
    Lock,
    Memory,
    NearLimit,
    Note,
    Ordering,
    Persistent,
    Phase,
    PhaseChange,
    Ranks,
    Record,
    Request,
    ReserveEvent,
    Site,
    Slot,
    Step,
    Truncated,
    View,
    WorkerInit,
)
from wstrace.trace.site_key import SiteKey
from wstrace.trace.totals import Steps

SKIPPED: frozenset[Phase] = frozenset(("shutdown",))


class Where(TypedDict):
    """How a finding names a site."""

    file: str
    function: str
    caller: str


NAMED_BY: Final = ("dp", "pp", "pcp", "tp", "ep")
"""The groups by which a rank is named, the outermost first. Ranks of decode context parallelism
are those of the tensor-parallel group (vLLM 0.13.0 to 0.33.0), which names them already."""


def rank_name(ranks: Ranks, world: Ranks | None) -> str:
    """`dp0 tp1`: the groups that have several members; empty where none has."""
    named = [(group, getattr(ranks, group)) for group in NAMED_BY]
    return " ".join(
        f"{group}{number}"
        for group, number in named
        if number is not None and (getattr(world, group, None) or 1) > 1
    )


def rank_label(ranks: Ranks, world: Ranks | None) -> str:
    """As `rank_name`; `rank 0` where one rank is all there is."""
    return rank_name(ranks, world) or f"rank {ranks.rank or 0}"


def ranks_named(workers: Sequence[Worker]) -> str:
    """`tp0`, `tp0 and 6 more`; `rank 0` where one rank is all there is."""
    name = rank_label(workers[0].ranks, workers[0].world)
    return f"{name} and {len(workers) - 1} more" if len(workers) > 1 else name


def group_sizes(worlds: Iterable[Ranks], ranks: Iterable[Ranks]) -> Ranks:
    """The size of each parallel group: as the configs say, or as many ranks as were seen.

    The engines of a dense model under data parallelism stand alone, each with a DP world of 1
    and a DP rank of its own (vLLM 0.32.0: they need no step in common).
    """
    worlds, ranks = list(worlds), list(ranks)
    sizes = {}
    for group in NAMED_BY:
        said = [getattr(world, group) or 0 for world in worlds]
        seen = [getattr(rank, group) or 0 for rank in ranks]
        sizes[group] = max([*said, *(number + 1 for number in seen)], default=1)
    return Ranks(**sizes)


_bytes = attrgetter("request.bytes")


def _sizes(lock: Lock | None) -> dict[Slot, int]:
    return dict(zip(lock.slots, lock.sizes, strict=True)) if lock else {}


@dataclass
class WorkerSite:
    """All novel requests of one site in one slot of one worker, in order. Sizes are bytes.

    Of a large trace those that are alike are one (`wstrace.trace.collapsing`).

    A worker may lock several times: `epoch` is the lock that decides, the one of the worst
    outcome, else the last after which it asked, else the last; warm-up and serving are the
    times before and after that lock.
    """

    key: SiteKey
    slot: Slot
    caller: str = ""
    line: int = 0
    seen: list[Seen] = field(default_factory=list)
    calls: dict[Phase, int] = field(default_factory=dict)
    locks: LockEpochs = field(default_factory=LockEpochs, repr=False)

    @cached_property
    def requests(self) -> list[Request]:
        """Every recorded request; to be asked for when all of them are read."""
        return [seen.request for seen in self.seen]

    @property
    def recorded(self) -> int:
        """How many requests were recorded."""
        return sum(seen.times for seen in self.seen)

    @cached_property
    def worst(self) -> Seen | None:
        """The request with the worst outcome, the largest of several; None without one."""
        outcomes = {s.outcome for s in self.seen}
        if len(outcomes) < 2:
            return max(self.seen, key=_bytes, default=None)
        worst = max(outcomes, key=WORSE.__getitem__)
        return max((s for s in self.seen if s.outcome == worst), key=_bytes)

    @property
    def outcome(self) -> Outcome:
        """What the worst request was."""
        return self.worst.outcome if self.worst else "before"

    @property
    def harm(self) -> tuple[int, int]:
        """How bad it was: the outcome's place in WORSE, and what it asked from that lock on."""
        return WORSE[self.outcome], self.after_bytes

    @cached_property
    def epoch(self) -> int:
        """The number of the lock that decides, from 1."""
        if self.worst is not None and WORSE[self.worst.outcome] > WORSE["warmed"]:
            return self.worst.epoch
        asked = max([s.epoch for s in self.seen if s.outcome != "before"], default=0)
        return asked or max(len(self.locks.epochs), 1)

    @cached_property
    def warmup(self) -> list[Request]:
        """The requests before the lock that decides, in the order of time."""
        epoch = self.epoch
        return [
            s.request
            for s in self.seen
            if s.epoch < epoch or (s.epoch == epoch and s.outcome == "before")
        ]

    @cached_property
    def after(self) -> list[Request]:
        """The requests from that lock on, up to the next one or an unlock."""
        return [s.request for s in self.of_epoch]

    @cached_property
    def of_epoch(self) -> list[Seen]:
        """What was seen from the lock that decides on."""
        epoch = self.epoch
        return [s for s in self.seen if s.epoch == epoch and s.outcome != "before"]

    @cached_property
    def warmup_bytes(self) -> int:
        """The largest request before the lock that decides; 0 when there was none."""
        return max([request.bytes for request in self.warmup], default=0)

    @cached_property
    def after_bytes(self) -> int:
        """The largest request from that lock on; 0 when there was none."""
        return max([request.bytes for request in self.after], default=0)

    @property
    def arena(self) -> int:
        """The slot's arena at the lock that decides, 0 where it had none."""
        epochs = self.locks.epochs
        arenas = epochs[self.epoch - 1].arenas if epochs else self.locks.arenas
        return arenas.get(self.slot, 0)

    @cached_property
    def largest(self) -> int:
        """The largest request of all."""
        return max([seen.request.bytes for seen in self.seen], default=0)

    @property
    def layers(self) -> list[str]:
        """Names of the layers seen asking here (the first of each novel request)."""
        return sorted({request.layer for request in self.requests} - {""})


@dataclass
class Worker:
    """A worker process: its records by kind, and its sites.

    `world` has the sizes of the parallel groups over all workers of the run. `counts` is the
    last counters record, `newest` each counter as it was last written.
    """

    process: ProcessTrace
    init: WorkerInit
    limits: dict[str, Limit]
    world: Ranks = field(default_factory=Ranks)
    sites: dict[tuple[SiteKey, Slot], WorkerSite] = field(default_factory=dict)
    site_keys: dict[int, SiteKey] = field(default_factory=dict)
    callers: dict[int, Site] = field(default_factory=dict)
    growths: list[Growth] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    near: list[NearLimit] = field(default_factory=list)
    phases: list[PhaseChange] = field(default_factory=list)
    persistent: list[Persistent] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    orderings: list[Ordering] = field(default_factory=list)
    reserves: list[ReserveEvent] = field(default_factory=list)
    hooks: dict[str, Hook] = field(default_factory=dict)
    truncated: list[Truncated] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    counts: Counts | None = None
    newest: dict[tuple[int, Slot, Phase], Count] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    ended: bool = False
    epochs: LockEpochs = field(default_factory=LockEpochs)
    skipped: list[Seen] = field(default_factory=list, repr=False)
    _places: dict[tuple[int, Slot], WorkerSite] = field(default_factory=dict, repr=False)

    @property
    def ranks(self) -> Ranks:
        """Where this worker stands in the parallel groups."""
        return self.init.ranks

    @property
    def header(self) -> Header:
        """Header of this worker's file."""
        return self.process.header

    @property
    def last_lock(self) -> Lock | None:
        """The newest lock; None while unlocked or never locked."""
        return self.locks[-1] if self.locks and self.locks[-1].event == "lock" else None

    @property
    def locked_sizes(self) -> dict[Slot, int]:
        """Arena bytes by slot at the newest lock, {} while unlocked or without one."""
        return _sizes(self.last_lock)

    @property
    def once_locked_sizes(self) -> dict[Slot, int]:
        """The same of the newest lock, also where an unlock followed it."""
        return _sizes(next((k for k in reversed(self.locks) if k.event == "lock"), None))

    @property
    def served(self) -> bool:
        """True when the worker reached serving."""
        return any(change.phase == "serving" for change in self.phases)

    @property
    def shut_down(self) -> bool:
        """True when its last phase is shutdown."""
        return bool(self.phases) and self.phases[-1].phase == "shutdown"

    def arena(self, slot: Slot) -> int:
        """Arena bytes of a slot at the end of warm-up: at the last lock, else when serving
        began."""
        epochs = self.epochs.epochs
        return (epochs[-1].arenas if epochs else self.epochs.arenas).get(slot, 0)

    def seen(self, request: Request) -> Seen:
        """What one of this worker's own request records was."""
        return self._seen[id(request)]

    @cached_property
    def _seen(self) -> dict[int, Seen]:
        every = chain(self.skipped, *(use.seen for use in self.sites.values()))
        return {id(seen.request): seen for seen in every}

    def arena_now(self, slot: Slot) -> int:
        """Arena bytes of a slot at the end of the trace."""
        sizes = [g.after for g in self.growths if g.slot == slot]
        return sizes[-1] if sizes else self.locked_sizes.get(slot, 0)

    def where(self, site: int | None) -> Where:
        """File, function and vLLM's caller string of a site id; empty where unknown."""
        seen = self.callers.get(site or 0)
        if seen is None:
            return Where(file="", function="", caller="")
        return Where(file=seen.file, function=seen.function, caller=seen.caller)

    def slots(self) -> list[Slot]:
        """Every slot seen: locked, grown or requested."""
        seen = {slot for _, slot in self.sites} | {g.slot for g in self.growths}
        return sorted(seen | {s for lock in self.locks for s in lock.slots})


LISTS: dict[type[Record], str] = {
    Growth: "growths",
    Failure: "failures",
    Lock: "locks",
    Capture: "captures",
    NearLimit: "near",
    PhaseChange: "phases",
    Persistent: "persistent",
    View: "views",
    Ordering: "orderings",
    ReserveEvent: "reserves",
    Truncated: "truncated",
    Note: "notes",
}


def read_worker(process: ProcessTrace) -> Worker | None:
    """The worker of a file; None for a process without a worker."""
    init = process.worker
    if init is None:
        return None
    world = group_sizes([init.world], [init.ranks])
    worker = Worker(process, init, dict(init.limits), world)
    for record in process.records:
        if type(record) is Request:
            _add_request(worker, record, process.repeats.get(id(record)))
        elif isinstance(record, Counts):
            worker.counts = record
            for count in record.counts:  # cumulative: the newest of each key counts
                worker.newest[count.site, count.slot, count.phase] = count
        else:
            worker.epochs.take(record)
            _add(worker, record)
    if worker.counts is not None:
        _count(worker)
        worker.counts = _at_least(worker.counts, process.totals.served, real_steps(worker))
    return worker


def whole_worker(worker: Worker) -> Worker:
    """The worker with each request on its own (`ProcessTrace.whole`); its limits stay."""
    if not worker.process.collapsed:
        return worker
    found = read_worker(worker.process.whole())
    assert found is not None  # its record is an event, and these are all kept
    found.limits, found.world = worker.limits, worker.world
    return found


def _add(worker: Worker, record: Record) -> None:
    into = LISTS.get(type(record))
    if into is not None:
        getattr(worker, into).append(record)
        return
    match record:
        case Site():
            worker.site_keys[record.id] = record.key
            worker.callers[record.id] = record
            worker._places.clear()
        case Hook():
            worker.hooks[record.name] = record
        case Limits():
            worker.limits.update(record.limits)
        case Memory():
            _merge_memory(worker.memory, record)
        case End():
            worker.ended = True


def _add_request(worker: Worker, request: Request, repeats: Repeats | None) -> None:
    if request.phase in SKIPPED:
        worker.skipped.append(worker.epochs.see(_key(worker, request.site), request, repeats))
        return
    place = request.site, request.slot
    use = worker._places.get(place) or _use(worker, *place)
    use.seen.append(worker.epochs.see(use.key, request, repeats))


def _key(worker: Worker, site: int) -> SiteKey:
    return worker.site_keys.get(site) or SiteKey("?", f"site {site}")


def _use(worker: Worker, site: int, slot: Slot) -> WorkerSite:
    key = _key(worker, site)
    if (key, slot) not in worker.sites:
        seen = worker.callers.get(site)
        worker.sites[key, slot] = WorkerSite(
            key,
            slot,
            seen.caller if seen else "",
            seen.line if seen else 0,
            locks=worker.epochs,
        )
    use = worker._places[site, slot] = worker.sites[key, slot]
    return use


def real_steps(worker: Worker) -> list[Step]:
    """The real steps in which a recorded request was made, of those that are alike one."""
    requests = (request for use in worker.sites.values() for request in use.requests)
    served = (r.step for r in requests if r.phase == "serving")
    return [step for step in served if step and step.kind == "real"]


def _at_least(counts: Counts, served: Steps, steps: list[Step]) -> Counts:
    """SIGKILL loses up to a second of counters, never a request: take the larger of the two."""
    lists = {id(step.requests): step.requests for step in steps}  # equal ones are one object
    requests = [request for several in lists.values() for request in several]
    going_on = (r.computed for r in requests if r.scheduled > 1 + r.draft)
    return msgspec.structs.replace(
        counts,
        steps_real=max(counts.steps_real, len(served)),
        max_tokens=max(counts.max_tokens, *(s.total_tokens for s in steps), 0),
        max_reqs=max(counts.max_reqs, *(s.num_reqs for s in steps), 0),
        max_computed=max(counts.max_computed, *(r.computed for r in requests), 0),
        max_continued=max(counts.max_continued, *going_on, 0),
    )


def _count(worker: Worker) -> None:
    for count in worker.newest.values():
        use = _use(worker, count.site, count.slot)
        use.calls[count.phase] = use.calls.get(count.phase, 0) + count.calls


def _merge_memory(into: Memory, newer: Memory) -> None:
    for name in newer.__struct_fields__:
        value = getattr(newer, name)
        if value not in (None, "", 0):
            setattr(into, name, value)
