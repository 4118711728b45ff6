"""A run with what was found in it: the one object that reports, gate and Python API take."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from wstrace.errors import one_line
from wstrace.findings import coverage, escapes, kv_sizing, pointers
from wstrace.findings.codes import ESCAPES, REFUSED_ELSEWHERE
from wstrace.findings.ends import one_after_another
from wstrace.findings.finding import Finding, merge
from wstrace.findings.inconclusive import reasons
from wstrace.findings.rests_on import RestsOn, rests_on
from wstrace.runs.run import Run, RunSite, run_of
from wstrace.runs.worker import Worker
from wstrace.trace.reader import Progress, Trace, load_trace
from wstrace.trace.records import Slot
from wstrace.trace.site_key import SiteKey
from wstrace.versions import release_of

Verdict = Literal["clean", "findings", "inconclusive"]


@dataclass
class AnalysedRun:
    """A run, its findings, and the verdict over them.

    `findings` and `inconclusive` are computed on first use; findings are stable in order.
    """

    run: Run
    allow_unlocked: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        """The files as read."""
        return self.run.trace

    @property
    def workers(self) -> list[Worker]:
        """The workers, by rank."""
        return self.run.workers

    @property
    def sites(self) -> list[RunSite]:
        """The sites of all workers, the largest request first."""
        return self.run.sites

    @cached_property
    def whole(self) -> AnalysedRun:
        """The run with each recorded request on its own: itself, but for a large trace, of
        which those that are alike are kept once. That one is read again.

        Raises WstraceError (exit 2) where its files are gone.
        """
        trace = self.trace
        if not any(process.collapsed for process in trace.processes):
            return self
        processes = [process.whole() for process in trace.processes]
        whole = replace(trace, processes=processes)
        return AnalysedRun(run_of(whole), self.allow_unlocked, self.notes)

    @cached_property
    def findings(self) -> list[Finding]:
        """All findings, merged over ranks, the worst first."""
        found: list[Finding] = []
        for worker in self.workers:
            found += escapes.find(worker, self.run.bound_of(worker))
            found += kv_sizing.find(worker, self.run.bound_of(worker))
            found += pointers.find(worker, self.run.bound_of(worker))
            found += coverage.find(worker)
        found += kv_sizing.find_across(self.workers)
        found += coverage.find_starts(self.workers)
        found += coverage.find_missing(self.workers)
        found += escapes.outside(self.trace.processes)
        return [self._addressed(finding) for finding in escapes.one_story(merge(found))]

    @property
    def worst(self) -> Finding | None:
        """The worst error; None where there is none."""
        return next((f for f in self.findings if f.severity == "error"), None)

    @cached_property
    def worst_of_site(self) -> dict[tuple[SiteKey, Slot | None], Finding]:
        """The worst finding of each site and slot that has one."""
        return {(f.key, f.slot): f for f in reversed(self.findings) if f.file}

    def _addressed(self, finding: Finding) -> Finding:
        """With the run's parallel groups, and its advice with the trace as the user typed it,
        to be pasted into a shell."""
        if self.workers:
            finding = replace(finding, world=self.workers[0].world)
        if "reserve TRACE" not in finding.advice:
            return finding
        named = one_line(self.trace.as_typed(self.trace.path))
        advice = finding.advice.replace("reserve TRACE", f"reserve {named}")
        return replace(finding, advice=advice)

    @cached_property
    def rests_on(self) -> RestsOn:
        """What the verdict rests on."""
        outlived = [f for f in self.escapes if f.code not in REFUSED_ELSEWHERE]
        return rests_on(self.trace, self.workers, len(outlived))

    @cached_property
    def inconclusive(self) -> list[str]:
        """Why this trace cannot show that the run was clean; empty when it can."""
        doubts = self.rests_on.doubts
        return reasons(self.workers, self.findings, self.trace, doubts, self.allow_unlocked)

    def verdict(self) -> Verdict:
        """`findings` when an error was found, else whether the trace can show `clean`."""
        if self.worst is not None:
            return "findings"
        return "inconclusive" if self.inconclusive else "clean"

    @property
    def escapes(self) -> list[Finding]:
        """Requests that a locked arena refused, or that grow let pass."""
        return [f for f in self.findings if f.code in ESCAPES]


def analyse(trace: Trace, *, allow_unlocked: bool = False) -> AnalysedRun:
    """The analysed form of a trace."""
    run = run_of(trace)
    notes = [*trace.notes, *one_after_another(run.workers), *_version_notes(run.workers)]
    notes += pointers.order_notes(run.workers)
    return AnalysedRun(run, allow_unlocked, notes)


def _version_notes(ranks: list[Worker]) -> list[str]:
    """What the workers' vLLM versions mean for the report; empty for one that was checked."""
    seen = sorted({v.header.vllm or "?" for v in ranks})
    taken = (release_of(version.strip("?")).taken_for for version in seen)
    return [f"{told}; read bounds and findings with care" for told in taken if told]


def load_run(
    path: Path,
    run: str | None = None,
    *,
    allow_unlocked: bool = False,
    progress: Progress | None = None,
    whole: bool = False,
    picks: str = "--run ID",
) -> AnalysedRun:
    """Read and analyse a trace folder or file, `whole` with each request on its own. `picks` is
    how the caller names one of several runs.

    Raises WstraceError as `load_trace` does.
    """
    trace = load_trace(path, run, progress, whole=whole, picks=picks)
    return analyse(trace, allow_unlocked=allow_unlocked)
