"""A run as what was measured in it: its workers, its sites with bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.runs.lock_epochs import Outcome
from wstrace.runs.worker import Worker, WorkerSite, group_sizes, read_worker
from wstrace.trace.reader import Trace
from wstrace.trace.records import Provenance, Ranks, Request, Slot, Spec
from wstrace.trace.site_key import SiteKey
from wstrace.trace.unread import no_trace

BoundOf = Callable[[SiteKey], Bound]


@dataclass
class RunSite:
    """One site in one slot over all ranks: the row of every table. Sizes are bytes.

    `bound` is the worst rank's, `bounds` are the ranks' in the order of `uses`.
    """

    key: SiteKey
    slot: Slot
    uses: list[tuple[Worker, WorkerSite]]
    bound: Bound
    bounds: list[Bound] = field(default_factory=list)

    @property
    def caller(self) -> str:
        """vLLM's own caller string, as its error names this site."""
        return self.uses[0][1].caller

    @property
    def named(self) -> str:
        """What reports call it: vLLM's own caller string, else the site."""
        return self.caller or str(self.key)

    @cached_property
    def decides(self) -> WorkerSite:
        """The use of the worker that had it worst, of equal ones with the smallest arena: every
        number of a row is of this one."""
        return max((use for _, use in self.uses), key=_harm)

    @property
    def outcome(self) -> Outcome:
        """What became of the site's worst request on any worker."""
        return self.decides.outcome

    @property
    def warmup_bytes(self) -> int:
        """Largest request before the lock, on the worker that decides."""
        return self.decides.warmup_bytes

    @property
    def serving_bytes(self) -> int:
        """Largest request from that lock on."""
        return self.decides.after_bytes

    @property
    def arena_bytes(self) -> int:
        """The slot's arena at that lock (without one: when serving began)."""
        return self.decides.arena

    @property
    def largest(self) -> int:
        """Largest request of all, over the workers."""
        return max(use.largest for _, use in self.uses)

    @property
    def calls(self) -> int:
        """Requests counted, all phases and ranks."""
        return sum(sum(use.calls.values()) for _, use in self.uses)

    @property
    def served(self) -> bool:
        """Whether a request of it was seen in serving."""
        return any(
            use.calls.get("serving") or any(r.phase == "serving" for r in use.requests)
            for _, use in self.uses
        )

    @property
    def rank_bounds(self) -> list[int | None]:
        """Each rank's bytes in the order of `uses`: of an observed bound, which like ranks
        share, the largest that the rank itself asked for."""
        pairs = zip(self.uses, self.bounds, strict=True)
        return [_own_bytes(worker, self.key, bound) for (worker, _), bound in pairs]

    @cached_property
    def captured(self) -> bool:
        """Whether it asked while a graph that serves was captured: a replay runs no Python."""
        requests = (request for _, use in self.uses for request in use.requests)
        return any(
            request.capturing and request.phase != "graph-estimate" for request in requests
        )

    @property
    def replayed(self) -> bool:
        """Whether serving may have reached it unseen, by replays of a graph."""
        return self.captured and not self.served

    @property
    def unknown(self) -> bool:
        """Whether that is all that can be said of it: nothing worse was seen."""
        return self.replayed and self.outcome in ("before", "warmed")

    @property
    def ranks(self) -> list[Ranks]:
        """The ranks that asked here."""
        return [worker.ranks for worker, _ in self.uses]

    @property
    def worst(self) -> Request | None:
        """The largest recorded request."""
        requests = [request for _, use in self.uses for request in use.requests]
        return max(requests, key=lambda r: r.bytes, default=None)

    @property
    def layers(self) -> list[str]:
        """Layer names seen."""
        return sorted({name for _, use in self.uses for name in use.layers})


def _own_bytes(worker: Worker, key: SiteKey, bound: Bound) -> int | None:
    """What a rank can need by its bound; where that is only what like ranks asked for, what it
    asked for itself, in any slot."""
    if bound.grade != "observed" or bound.bytes is None:
        return bound.bytes
    return max(use.largest for (site, _), use in worker.sites.items() if site == key)


def _harm(use: WorkerSite) -> tuple[int, int, int, int]:
    return *use.harm, use.warmup_bytes, -use.arena


@dataclass
class Run:
    """A run's trace with its workers, and the sites of all of them.

    What it means is `wstrace.findings.analysed_run.AnalysedRun`.
    """

    trace: Trace
    workers: list[Worker]

    @cached_property
    def sites(self) -> list[RunSite]:
        """Sites by (file, function, slot), the largest request first."""
        grouped: dict[tuple[SiteKey, Slot], list[tuple[Worker, WorkerSite]]] = {}
        for worker in self.workers:
            for where, use in worker.sites.items():
                grouped.setdefault(where, []).append((worker, use))
        rows = [self._summary(key, slot, uses) for (key, slot), uses in grouped.items()]
        return sorted(rows, key=lambda s: (-s.largest, s.key, s.slot))

    def _summary(
        self, key: SiteKey, slot: Slot, uses: list[tuple[Worker, WorkerSite]]
    ) -> RunSite:
        bounds = [self._bound(worker, key) for worker, _ in uses]
        worst = max(bounds, key=lambda b: b.bytes or 0)
        return RunSite(key, slot, uses, worst, bounds)

    def _bound(self, worker: Worker, key: SiteKey) -> Bound:
        """A site's bound over all slots and over all ranks with the same limits: a slot or a
        rank that asked little can ask more, and like ranks need one proof."""
        alike = self._alike[id(worker)]
        known = self._bounds.get((alike, key))
        if known is None:
            known = bound_site(
                distinct(self._requests[alike, key]),
                worker.limits,
                file=key.file,
                function=key.function,
                vllm_version=worker.header.vllm,
            )
            self._bounds[alike, key] = known
        return known

    @cached_property
    def _alike(self) -> dict[int, int]:
        """Rank (by id) to the number of its group of equal limits and version."""
        groups: dict[str, int] = {}
        texts = {
            id(v): repr((sorted(v.limits.items(), key=str), v.header.vllm))
            for v in self.workers
        }
        return {worker: groups.setdefault(text, len(groups)) for worker, text in texts.items()}

    @cached_property
    def _requests(self) -> dict[tuple[int, SiteKey], list[Request]]:
        """All requests of a site by group of like ranks."""
        found: dict[tuple[int, SiteKey], list[Request]] = {}
        for worker in self.workers:
            for (key, _), use in worker.sites.items():
                found.setdefault((self._alike[id(worker)], key), []).extend(use.requests)
        return found

    _bounds: dict[tuple[int, SiteKey], Bound] = field(default_factory=dict)

    def bound_of(self, worker: Worker) -> BoundOf:
        """The bound of a site in one rank, as a function of its key."""
        return lambda key: self._bound(worker, key)


def distinct(requests: list[Request]) -> list[Request]:
    """The requests that differ in what a bound looks at: ranks in step ask the same."""
    look = _Looks().of
    return list({look(request): request for request in reversed(requests)}.values())[::-1]


class _Looks:
    """What a bound looks at in a request, as a tuple that is cheap to compare.

    The reader keeps equal parts once, so a part is looked at once, by its id (the requests
    keep it alive), and then stands for its number.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._numbers: dict[object, int] = {}

    def of(self, request: Request) -> tuple[object, ...]:
        step, made, specs, known = request.step, request.provenance, request.specs, self._by_id
        shapes = known.get(id(specs)) or self._number(specs, _shapes(specs))
        source = known.get(id(made)) or self._number(made, _source(made))
        if step is None:
            return (request.bytes, request.phase, shapes, source)
        requests = step.requests
        scheduled = known.get(id(requests)) or self._number(requests, tuple(requests))
        numbers = (step.kind, step.total_tokens, step.num_reqs, scheduled)
        return (request.bytes, request.phase, shapes, source, *numbers)

    def _number(self, part: object, look: object) -> int:
        """From 1; equal looks have one number."""
        number = self._numbers.setdefault(look, len(self._numbers) + 1)
        self._by_id[id(part)] = number
        return number


def _shapes(specs: list[Spec]) -> tuple[object, ...]:
    return tuple(tuple(spec.shape) for spec in specs)


def _source(made: Provenance | None) -> tuple[object, ...] | None:
    return (
        made
        if made is None
        else (
            made.formula,
            made.stopped,
            tuple(made.arms),
            tuple((leaf.name, leaf.value, leaf.kind, leaf.role) for leaf in made.leaves),
        )
    )


def run_of(trace: Trace) -> Run:
    """A trace as its workers, by data-parallel rank, then rank."""
    read = map(read_worker, trace.processes)
    workers = sorted((worker for worker in read if worker is not None), key=_place)
    world = group_sizes([w.init.world for w in workers], [w.ranks for w in workers])
    for worker in workers:
        worker.world = world
    return Run(trace, workers)


def _place(worker: Worker) -> tuple[int, ...]:
    ranks = worker.ranks
    return tuple(-1 if number is None else number for number in (ranks.dp, ranks.rank))


def refuse_no_trace(trace: Trace) -> None:
    """WstraceError for a folder or file in which no process of a run left anything."""
    if not trace.processes and trace.meta is None:
        raise no_trace(trace.path, trace.doubts[0] if trace.doubts else "")
