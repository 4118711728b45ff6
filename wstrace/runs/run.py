"""A run, analysed: its workers, its sites with bounds, its findings and its verdict."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.errors import WstraceError, one_line
from wstrace.findings import coverage, escapes, kv_sizing, pointers
from wstrace.findings.codes import ESCAPES
from wstrace.findings.finding import Finding, merge
from wstrace.findings.rests_on import RestsOn, rests_on
from wstrace.runs.lock_epochs import WORSE, Outcome
from wstrace.runs.worker import SiteKey, Worker, WorkerSite, read_worker
from wstrace.trace.reader import Progress, Trace, load
from wstrace.trace.records import Leaf, Ranks, Request, Slot

Verdict = Literal["clean", "findings", "inconclusive"]


@dataclass
class RunSite:
    """One site in one slot over all ranks: the row of every table. Sizes are bytes."""

    key: SiteKey
    slot: Slot
    uses: list[tuple[Worker, WorkerSite]]
    bound: Bound

    @property
    def caller(self) -> str:
        """vLLM's own caller string, as its error names this site."""
        return self.uses[0][1].caller

    @cached_property
    def decides(self) -> WorkerSite:
        """The use of the worker that had it worst: every number of a row is of this one."""
        uses = [use for _, use in self.uses]
        return max(uses, key=lambda u: (WORSE[u.outcome], u.after_bytes, u.warmup_bytes))

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
    def ranks(self) -> list[Ranks]:
        """The ranks that asked here."""
        return [worker.ranks for worker, _ in self.uses]

    @property
    def worst(self) -> Request | None:
        """The largest recorded request."""
        asks = [ask for _, use in self.uses for ask in use.asks]
        return max(asks, key=lambda a: a.bytes, default=None)

    @property
    def layers(self) -> list[str]:
        """Layer names seen."""
        return sorted({name for _, use in self.uses for name in use.layers})


@dataclass
class Run:
    """A run's trace and everything derived from it.

    `sites` and `findings` are computed on first use and are stable in order.
    """

    trace: Trace
    workers: list[Worker]
    allow_unlocked: bool = False
    notes: list[str] = field(default_factory=list)

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
        return RunSite(key, slot, uses, max(bounds, key=lambda b: b.bytes or 0))

    def _bound(self, worker: Worker, key: SiteKey) -> Bound:
        """A site's bound over all slots and over all ranks with the same limits: a slot or a
        rank that asked little can ask more, and like ranks need one proof."""
        alike = self._alike[id(worker)]
        known = self._bounds.get((alike, key))
        if known is None:
            known = bound_site(
                distinct(self._asks[alike, key]),
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
    def _asks(self) -> dict[tuple[int, SiteKey], list[Request]]:
        """All requests of a site by group of like ranks."""
        found: dict[tuple[int, SiteKey], list[Request]] = {}
        for worker in self.workers:
            for (key, _), use in worker.sites.items():
                found.setdefault((self._alike[id(worker)], key), []).extend(use.asks)
        return found

    _bounds: dict[tuple[int, SiteKey], Bound] = field(default_factory=dict)

    @cached_property
    def findings(self) -> list[Finding]:
        """All findings, merged over ranks, the worst first."""
        found: list[Finding] = []
        for worker in self.workers:
            found += escapes.find(worker, self.bound_of(worker))
            found += kv_sizing.find(worker, self.bound_of(worker))
            found += pointers.find(worker, self.bound_of(worker))
            found += coverage.find(worker)
        found += kv_sizing.find_across(self.workers)
        found += coverage.find_missing(self.workers)
        return [self._addressed(finding) for finding in merge(found)]

    def _addressed(self, finding: Finding) -> Finding:
        """Its advice with the trace as the user typed it, to be pasted into a shell."""
        if "reserve TRACE" not in finding.advice:
            return finding
        named = one_line(shlex.quote(str(self.trace.path)))
        advice = finding.advice.replace("reserve TRACE", f"reserve {named}")
        return replace(finding, advice=advice)

    def bound_of(self, worker: Worker) -> escapes.BoundOf:
        """The bound of a site in one rank, as a function of its key."""
        return lambda key: self._bound(worker, key)

    @cached_property
    def rests_on(self) -> RestsOn:
        """What the verdict rests on."""
        return rests_on(self.trace, self.workers)

    @cached_property
    def inconclusive(self) -> list[str]:
        """Why this trace cannot show that the run was clean; empty when it can."""
        found = coverage.reasons(self.workers, self.findings, self.trace, self.allow_unlocked)
        return list(dict.fromkeys([*found, *self.trace.doubts]))

    def verdict(self) -> Verdict:
        """`findings` when an error was found, else whether the trace can show `clean`."""
        if any(f.severity == "error" for f in self.findings):
            return "findings"
        return "inconclusive" if self.inconclusive else "clean"

    @property
    def escapes(self) -> list[Finding]:
        """Requests that a locked arena refused, or that grow let pass."""
        return [f for f in self.findings if f.code in ESCAPES]


def distinct(asks: list[Request]) -> list[Request]:
    """The requests that differ in what a bound looks at: ranks in step ask the same."""
    return list({_look(ask): ask for ask in reversed(asks)}.values())[::-1]


def _look(ask: Request) -> tuple[object, ...]:
    step, made = ask.step, ask.provenance
    return (
        ask.bytes,
        ask.phase,
        step and (step.kind, step.total_tokens, step.num_reqs, tuple(step.requests)),
        made and (made.formula, made.stopped, tuple(made.arms), tuple(map(_leaf, made.leaves))),
        tuple(tuple(spec.shape) for spec in ask.specs),
    )


def _leaf(leaf: Leaf) -> tuple[object, ...]:
    return (leaf.name, leaf.value, leaf.kind, leaf.role)


def analyse(trace: Trace, *, allow_unlocked: bool = False) -> Run:
    """The analysed form of a trace."""
    read = map(read_worker, trace.processes)
    workers = [worker for worker in read if worker is not None]
    workers.sort(
        key=lambda w: tuple(-1 if n is None else n for n in (w.ranks.dp, w.ranks.rank))
    )
    notes = [*trace.notes, *coverage.version_notes(workers), *pointers.order_notes(workers)]
    return Run(trace, workers, allow_unlocked, notes)


def _place(worker: Worker) -> tuple[int, ...]:
    ranks = worker.ranks
    return tuple(-1 if number is None else number for number in (ranks.dp, ranks.rank))


def load_run(
    path: Path,
    run: str | None = None,
    *,
    allow_unlocked: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Read and analyse a trace folder or file. Raises WstraceError as `load` does."""
    return analyse(load(path, run, progress), allow_unlocked=allow_unlocked)


def refuse_no_trace(trace: Trace) -> None:
    """WstraceError for a folder or file in which no process of a run left anything."""
    if not trace.processes and trace.meta is None:
        why = f": {trace.doubts[0]}" if trace.doubts else ""
        raise WstraceError(
            f"{trace.path} holds no trace{why}.", "Give a folder made by `wstrace run`."
        )
