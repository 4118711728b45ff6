"""A run, analysed: its workers, its sites with bounds, its findings and its verdict."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.errors import one_line
from wstrace.findings import coverage, escapes, kv_sizing, pointers
from wstrace.findings.finding import Finding, merge
from wstrace.runs.worker import RankView, SiteKey, SiteUse, read_rank
from wstrace.trace.reader import Progress, Trace, load
from wstrace.trace.records import Ask, Leaf, Ranks, Slot

Verdict = Literal["clean", "findings", "inconclusive"]


@dataclass
class SiteSummary:
    """One site in one slot over all ranks: the row of every table. Sizes are bytes."""

    key: SiteKey
    slot: Slot
    uses: list[tuple[RankView, SiteUse]]
    bound: Bound

    @property
    def caller(self) -> str:
        """vLLM's own caller string, as its error names this site."""
        return self.uses[0][1].caller

    @property
    def warmup_bytes(self) -> int:
        """Largest request before the lock, over the ranks."""
        return max(use.warmup_bytes for _, use in self.uses)

    @property
    def serving_bytes(self) -> int:
        """Largest request from the lock on, over the ranks."""
        return max(use.after_bytes for _, use in self.uses)

    @property
    def arena_bytes(self) -> int:
        """The slot's arena at the end of warm-up; the smallest over the ranks."""
        return min(view.arena(self.slot) for view, _ in self.uses)

    @property
    def calls(self) -> int:
        """Requests counted, all phases and ranks."""
        return sum(sum(use.calls.values()) for _, use in self.uses)

    @property
    def ranks(self) -> list[Ranks]:
        """The ranks that asked here."""
        return [view.ranks for view, _ in self.uses]

    @property
    def worst(self) -> Ask | None:
        """The largest recorded request."""
        asks = [ask for _, use in self.uses for ask in use.asks]
        return max(asks, key=lambda a: a.bytes, default=None)

    @property
    def layers(self) -> list[str]:
        """Layer names seen."""
        return sorted({name for _, use in self.uses for name in use.layers})


@dataclass
class Session:
    """A run's trace and everything derived from it.

    `sites` and `findings` are computed on first use and are stable in order.
    """

    trace: Trace
    ranks: list[RankView]
    allow_unlocked: bool = False
    notes: list[str] = field(default_factory=list)

    @cached_property
    def sites(self) -> list[SiteSummary]:
        """Sites by (file, function, slot), the largest request first."""
        grouped: dict[tuple[SiteKey, Slot], list[tuple[RankView, SiteUse]]] = {}
        for view in self.ranks:
            for where, use in view.sites.items():
                grouped.setdefault(where, []).append((view, use))
        rows = [self._summary(key, slot, uses) for (key, slot), uses in grouped.items()]
        return sorted(
            rows, key=lambda s: (-max(s.warmup_bytes, s.serving_bytes), s.key, s.slot)
        )

    def _summary(
        self, key: SiteKey, slot: Slot, uses: list[tuple[RankView, SiteUse]]
    ) -> SiteSummary:
        bounds = [self._bound(view, key) for view, _ in uses]
        return SiteSummary(key, slot, uses, max(bounds, key=lambda b: b.bytes or 0))

    def _bound(self, view: RankView, key: SiteKey) -> Bound:
        """A site's bound over all slots and over all ranks with the same limits: a slot or a
        rank that asked little can ask more, and like ranks need one proof."""
        alike = self._alike[id(view)]
        known = self._bounds.get((alike, key))
        if known is None:
            known = bound_site(
                distinct(self._asks[alike, key]),
                view.limits,
                file=key.file,
                function=key.function,
                vllm_version=view.header.vllm,
            )
            self._bounds[alike, key] = known
        return known

    @cached_property
    def _alike(self) -> dict[int, int]:
        """Rank (by id) to the number of its group of equal limits and version."""
        groups: dict[str, int] = {}
        texts = {
            id(v): repr((sorted(v.limits.items(), key=str), v.header.vllm)) for v in self.ranks
        }
        return {view: groups.setdefault(text, len(groups)) for view, text in texts.items()}

    @cached_property
    def _asks(self) -> dict[tuple[int, SiteKey], list[Ask]]:
        """All requests of a site by group of like ranks."""
        found: dict[tuple[int, SiteKey], list[Ask]] = {}
        for view in self.ranks:
            for (key, _), use in view.sites.items():
                found.setdefault((self._alike[id(view)], key), []).extend(use.asks)
        return found

    _bounds: dict[tuple[int, SiteKey], Bound] = field(default_factory=dict)

    @cached_property
    def findings(self) -> list[Finding]:
        """All findings, merged over ranks, the worst first."""
        found: list[Finding] = []
        for view in self.ranks:
            found += escapes.find(view, self.bound_of(view))
            found += kv_sizing.find(view, self.bound_of(view))
            found += pointers.find(view)
            found += coverage.find(view)
        found += kv_sizing.find_across(self.ranks)
        found += coverage.find_missing(self.ranks)
        return [self._addressed(finding) for finding in merge(found)]

    def _addressed(self, finding: Finding) -> Finding:
        """Its advice with the trace as the user typed it, to be pasted into a shell."""
        if "reserve TRACE" not in finding.advice:
            return finding
        named = one_line(shlex.quote(str(self.trace.path)))
        advice = finding.advice.replace("reserve TRACE", f"reserve {named}")
        return replace(finding, advice=advice)

    def bound_of(self, view: RankView) -> escapes.BoundOf:
        """The bound of a site in one rank, as a function of its key."""
        return lambda key: self._bound(view, key)

    @cached_property
    def inconclusive(self) -> list[str]:
        """Why this trace cannot show that the run was clean; empty when it can."""
        found = coverage.reasons(self.ranks, self.findings, self.trace, self.allow_unlocked)
        return list(dict.fromkeys([*found, *self.trace.doubts]))

    def verdict(self) -> Verdict:
        """`findings` when an error was found, else whether the trace can show `clean`."""
        if any(f.severity == "error" for f in self.findings):
            return "findings"
        return "inconclusive" if self.inconclusive else "clean"

    @property
    def escapes(self) -> list[Finding]:
        """Requests that a locked arena refused, or that grow let pass."""
        codes = {"WS101", "WS102", "WS104", "WS105", "WS106"}
        return [f for f in self.findings if f.code in codes]


def distinct(asks: list[Ask]) -> list[Ask]:
    """The requests that differ in what a bound looks at: ranks in step ask the same."""
    return list({_look(ask): ask for ask in reversed(asks)}.values())[::-1]


def _look(ask: Ask) -> tuple[object, ...]:
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


def analyse(trace: Trace, *, allow_unlocked: bool = False) -> Session:
    """The analysed form of a trace."""
    views = [view for process in trace.processes if (view := read_rank(process)) is not None]
    views.sort(key=lambda v: tuple(-1 if n is None else n for n in (v.ranks.dp, v.ranks.rank)))
    notes = [*trace.notes, *coverage.version_notes(views)]
    return Session(trace, views, allow_unlocked, notes)


def load_session(
    path: Path,
    run: str | None = None,
    *,
    allow_unlocked: bool = False,
    progress: Progress | None = None,
) -> Session:
    """Read and analyse a trace folder or file. Raises WstraceError as `load` does."""
    return analyse(load(path, run, progress), allow_unlocked=allow_unlocked)
