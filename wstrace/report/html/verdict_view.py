"""The top of the page: the verdict in one sentence, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from wstrace.findings.analysed_run import AnalysedRun, Verdict
from wstrace.findings.finding import Finding
from wstrace.report.finding_text import asked_text
from wstrace.report.html.names import clean, unbroken
from wstrace.report.verdict import sentence, with_code
from wstrace.units import human

_LABELS: Final[dict[Verdict, str]] = {
    "clean": "Clean",
    "findings": "Escaped",
    "inconclusive": "Inconclusive",
}
MOST_ESCAPES: Final = 8


@dataclass(frozen=True)
class VerdictView:
    """`caller` is vLLM's own caller string (people search for it), '' where none is named.

    `outcome` is what an escape did to the engine, '' where nothing escaped and of a log.
    `also` has the other escapes, each its caller and its sizes.
    """

    verdict: Verdict
    label: str
    outcome: Literal["", "died", "survived"]
    caller: str
    sentence: str
    also: tuple[tuple[str, str], ...]
    error_text: str
    numbers: tuple[tuple[str, str, str], ...]
    reasons: tuple[str, ...]


def verdict_view(run: AnalysedRun) -> VerdictView:
    """What a triager reads first."""
    worst = run.worst
    caller = worst.named if worst else ""
    told = with_code(worst) if worst and caller else sentence(run)
    return VerdictView(
        verdict=run.verdict(),
        label=_label(run),
        outcome=_outcome(run),
        caller=clean(caller),
        sentence=unbroken(clean(told, 500)),
        also=_also(run, worst),
        error_text=clean(_error_text(run, worst), 500),
        numbers=_of_finding(worst) if worst else _of_run(run),
        reasons=tuple(clean(reason, 400) for reason in run.inconclusive),
    )


def _label(run: AnalysedRun) -> str:
    verdict = run.verdict()
    return _LABELS[verdict] if run.escapes or verdict != "findings" else "Findings"


def _outcome(run: AnalysedRun) -> Literal["", "died", "survived"]:
    """vLLM's engine dies of a refusal; under --on-growth grow it goes on. A log has no worker
    that would tell."""
    refused = [failure for worker in run.workers for failure in worker.failures]
    if any(not failure.survived for failure in refused):
        return "died"
    return "survived" if run.escapes and run.workers else ""


def _also(run: AnalysedRun, worst: Finding | None) -> tuple[tuple[str, str], ...]:
    others = [finding for finding in run.escapes if finding is not worst]
    return tuple((clean(f.named), _sizes(f)) for f in others[:MOST_ESCAPES])


def _sizes(finding: Finding) -> str:
    if finding.serving_bytes is None:
        return f"({finding.code})"
    return f"{human(finding.serving_bytes)} in {human(finding.arena_bytes)} ({finding.code})"


def _error_text(run: AnalysedRun, worst: Finding | None) -> str:
    """vLLM's own message for the worst finding's site, where the run died of it."""
    if worst is None:
        return ""
    texts = [
        failure.text
        for worker in run.workers
        for failure in worker.failures
        if failure.text and worker.where(failure.site)["function"] == worst.function
    ]
    return texts[0] if texts else ""


def _of_finding(worst: Finding) -> tuple[tuple[str, str, str], ...]:
    bound = worst.bound
    asked = asked_text(worst.warmup_bytes, "nothing")
    if worst.log is not None:
        asked = "-"
    numbers = [
        ("asked in warm-up", asked, ""),
        ("arena when warm-up ended", human(worst.arena_bytes), ""),
        ("asked in serving", human(worst.serving_bytes), "bad"),
    ]
    if bound is not None and bound.bytes is not None:
        numbers.append(("can need", human(bound.bytes), bound.grade))
    return tuple(n for n in numbers if n[1] != "-")


def _of_run(run: AnalysedRun) -> tuple[tuple[str, str, str], ...]:
    counts = [worker.counts for worker in run.workers if worker.counts]
    sizes = [size for worker in run.workers for size in worker.once_locked_sizes.values()]
    largest = max((s.serving_bytes for s in run.sites), default=0)
    return (
        ("sites", f"{len(run.sites):,}", ""),
        ("ranks", f"{len(run.workers):,}", ""),
        ("arena when locked", human(max(sizes)) if sizes else "no lock", ""),
        ("largest in serving", human(largest) if largest else "none", ""),
        ("real steps", f"{max((c.steps_real for c in counts), default=0):,}", ""),
    )
