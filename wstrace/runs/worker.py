"""One worker of a run, seen through its records: what each site asked, when, in which slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

import msgspec

from wstrace.trace.reader import ProcessTrace
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
    Note,
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

AFTER_LOCK: frozenset[Phase] = frozenset(("post-lock-warmup", "serving"))
SKIPPED: frozenset[Phase] = frozenset(("shutdown",))


class Where(TypedDict):
    """How a finding names a site."""

    file: str
    function: str
    caller: str


@dataclass(frozen=True, order=True)
class SiteKey:
    """A site's identity: file and qualified function, never the line."""

    file: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.function}"


@dataclass
class WorkerSite:
    """All novel requests of one site in one slot of one worker.

    `warmup` are those made before the lock (or before serving, where nothing locks),
    `after` those from the lock on. Sizes are bytes.
    """

    key: SiteKey
    slot: Slot
    caller: str = ""
    line: int = 0
    warmup: list[Request] = field(default_factory=list)
    after: list[Request] = field(default_factory=list)
    calls: dict[Phase, int] = field(default_factory=dict)

    @property
    def asks(self) -> list[Request]:
        """Every recorded request, warm-up first."""
        return self.warmup + self.after

    @property
    def warmup_bytes(self) -> int:
        """The largest request before the lock; 0 when there was none."""
        return max((a.bytes for a in self.warmup), default=0)

    @property
    def after_bytes(self) -> int:
        """The largest request from the lock on; 0 when there was none."""
        return max((a.bytes for a in self.after), default=0)

    @property
    def layers(self) -> list[str]:
        """Names of the layers seen asking here (the first of each novel request)."""
        return sorted({a.layer for a in self.asks if a.layer})


@dataclass
class Worker:
    """A worker process: its records by kind, and its sites.

    `counts` is the last counters record, `newest` each counter as it was last written.
    """

    process: ProcessTrace
    init: WorkerInit
    limits: dict[str, Limit]
    sites: dict[tuple[SiteKey, Slot], WorkerSite] = field(default_factory=dict)
    site_keys: dict[int, SiteKey] = field(default_factory=dict)
    callers: dict[int, Site] = field(default_factory=dict)
    growths: list[Growth] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    phases: list[PhaseChange] = field(default_factory=list)
    persistent: list[Persistent] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    reserves: list[ReserveEvent] = field(default_factory=list)
    hooks: dict[str, Hook] = field(default_factory=dict)
    truncated: list[Truncated] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    counts: Counts | None = None
    newest: dict[tuple[int, Slot, Phase], Count] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    ended: bool = False

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
        """Arena bytes by slot at the newest lock, {} without one."""
        lock = self.last_lock
        return dict(zip(lock.slots, lock.sizes, strict=True)) if lock else {}

    @property
    def served(self) -> bool:
        """True when the worker reached serving."""
        return any(change.phase == "serving" for change in self.phases)

    def arena(self, slot: Slot) -> int:
        """Arena bytes of a slot at the end of warm-up: at the lock, else when serving began."""
        if self.locks:
            return self.locked_sizes.get(slot, 0)
        sizes = [g.after for g in self.growths if g.slot == slot and g.phase not in AFTER_LOCK]
        return sizes[-1] if sizes else 0

    def arena_when(self, ask: Request) -> int:
        """Arena bytes of a request's slot at the lock that was in force when it was made.

        Elastic EP unlocks, grows and locks again: a request is measured against its own lock.
        """
        before = [k for k in self.locks if k.event == "lock" and k.ns <= ask.ns]
        if not before:
            return self.arena(ask.slot)
        return dict(zip(before[-1].slots, before[-1].sizes, strict=True)).get(ask.slot, 0)

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
    PhaseChange: "phases",
    Persistent: "persistent",
    View: "views",
    ReserveEvent: "reserves",
    Truncated: "truncated",
    Note: "notes",
}


def read_worker(process: ProcessTrace) -> Worker | None:
    """The worker of a file; None for a process without a worker."""
    init = process.worker
    if init is None:
        return None
    worker = Worker(process, init, dict(init.limits))
    for record in process.records:
        if isinstance(record, Counts):
            worker.counts = record
            for count in record.counts:  # cumulative: the newest of each key counts
                worker.newest[count.site, count.slot, count.phase] = count
        else:
            _add(worker, record)
    if worker.counts is not None:
        _count(worker)
        worker.counts = _at_least(worker.counts, real_steps(worker))
    return worker


def _add(worker: Worker, record: Record) -> None:
    into = LISTS.get(type(record))
    if into is not None:
        getattr(worker, into).append(record)
        return
    match record:
        case Site():
            worker.site_keys[record.id] = SiteKey(record.file, record.function)
            worker.callers[record.id] = record
        case Request():
            _add_ask(worker, record)
        case Hook():
            worker.hooks[record.name] = record
        case Limits():
            worker.limits.update(record.limits)
        case Memory():
            _merge_memory(worker.memory, record)
        case End():
            worker.ended = True


def _add_ask(worker: Worker, ask: Request) -> None:
    if ask.phase in SKIPPED:
        return
    use = _use(worker, ask.site, ask.slot)
    (use.after if ask.phase in AFTER_LOCK else use.warmup).append(ask)


def _use(worker: Worker, site: int, slot: Slot) -> WorkerSite:
    key = worker.site_keys.get(site, SiteKey("?", f"site {site}"))
    if (key, slot) not in worker.sites:
        seen = worker.callers.get(site)
        worker.sites[key, slot] = WorkerSite(
            key, slot, seen.caller if seen else "", seen.line if seen else 0
        )
    return worker.sites[key, slot]


def real_steps(worker: Worker) -> list[Step]:
    """The real steps in which a recorded request was made, each once."""
    asks = (ask for use in worker.sites.values() for ask in use.after)
    steps = {
        a.step.index: a.step
        for a in asks
        if a.step and a.step.kind == "real" and a.phase == "serving"
    }
    return list(steps.values())


def _at_least(counts: Counts, steps: list[Step]) -> Counts:
    """SIGKILL loses up to a second of counters, never a request: take the larger of the two."""
    requests = [request for step in steps for request in step.requests]
    going_on = (r.computed for r in requests if r.scheduled > 1 + r.draft)
    return msgspec.structs.replace(
        counts,
        steps_real=max(counts.steps_real, len(steps)),
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
