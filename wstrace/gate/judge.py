"""The gate's judgement of some runs: what fails, what is accepted, and the exit code.

Exit codes: 0 clean, 1 something fails, 3 the traces cannot show that the run was clean. 1
wins over 3. Usage and unreadable input are a `WstraceError` (2) before a judgement is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Literal

from wstrace.amounts import Amount
from wstrace.errors import FOUND, INCONCLUSIVE
from wstrace.findings.analysed_run import AnalysedRun, Verdict
from wstrace.findings.ends import died_at
from wstrace.findings.finding import Finding
from wstrace.gate.baseline import Baseline, Entry, entry_for
from wstrace.gate.limits import Limits, Violation, too_few_ranks, unmatched, violations
from wstrace.gate.place import Place, place_of, size_of
from wstrace.gate.selection import Selection
from wstrace.runs.exercised import Minimum, Reach, reach_of, shortfalls

Status = Literal["new", "grown", "expired", "accepted", "ignored"]
FAILING: Final[frozenset[Status]] = frozenset(("new", "grown", "expired"))
EXIT: Final[dict[Verdict, int]] = {"clean": 0, "findings": FOUND, "inconclusive": INCONCLUSIVE}


@dataclass(frozen=True)
class Policy:
    """What the gate was asked: selection, baseline with its tolerance, limits, exercise."""

    selection: Selection = field(default_factory=Selection)
    baseline: Baseline = field(default_factory=dict)
    tolerance: Amount = field(default_factory=Amount)
    limits: Limits = field(default_factory=Limits)
    minimum: Minimum = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A finding and what the gate makes of it; `entry` is the baseline's, if it has one."""

    finding: Finding
    status: Status
    entry: Entry | None = None

    @property
    def fails(self) -> bool:
        """True when this finding makes the gate fail."""
        return self.status in FAILING

    @property
    def place(self) -> Place:
        """The finding's identity across machines."""
        return place_of(self.finding)


@dataclass(frozen=True)
class RunJudgement:
    """One run: its findings as judged, limits not kept, why it is inconclusive, its reach."""

    analysed: AnalysedRun
    findings: tuple[Judged, ...]
    violations: tuple[Violation, ...]
    reasons: tuple[str, ...]
    reach: Reach

    @property
    def failing(self) -> list[Judged]:
        """The findings that make the gate fail, the worst first."""
        return [judged for judged in self.findings if judged.fails]

    @property
    def verdict(self) -> Verdict:
        """The gate's verdict of this run."""
        if self.failing or self.violations:
            return "findings"
        return "inconclusive" if self.reasons else "clean"


@dataclass(frozen=True)
class Judgement:
    """All runs, the baseline's entries that nothing matched any more, and remarks."""

    runs: tuple[RunJudgement, ...]
    fixed: tuple[Entry, ...] = ()
    unseen: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst run's: findings, then inconclusive."""
        verdicts = {run.verdict for run in self.runs}
        order: tuple[Verdict, ...] = ("findings", "inconclusive", "clean")
        return next(verdict for verdict in order if verdict in verdicts)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 3 inconclusive."""
        return EXIT[self.verdict]

    @property
    def findings(self) -> list[tuple[RunJudgement, Judged]]:
        """All findings with their run: failing ones first, each in the order of severity."""
        pairs = [(run, judged) for run in self.runs for judged in run.findings]
        return sorted(pairs, key=lambda pair: not pair[1].fails)


def judge(analysed: Sequence[AnalysedRun], policy: Policy, today: date) -> Judgement:
    """Judge some runs (at least one) by a policy; `today` decides on expiry."""
    runs = tuple(_judge_run(run, policy, today) for run in analysed)
    fixed, unseen = _gone(runs, policy.baseline)
    notes = unmatched(list(analysed), policy.limits)
    notes += [note for run in analysed for note in run.notes]
    return Judgement(runs, fixed, unseen, tuple(dict.fromkeys(notes)))


def _judge_run(run: AnalysedRun, policy: Policy, today: date) -> RunJudgement:
    reach = reach_of(run.run)
    findings = tuple(_judge(finding, policy, today) for finding in run.findings)
    return RunJudgement(
        analysed=run,
        findings=findings,
        violations=tuple(violations(run, policy.limits)),
        reasons=(
            *run.inconclusive,
            *_behind(run, findings),
            *too_few_ranks(run, policy.limits),
            *shortfalls(reach, policy.minimum),
        ),
        reach=reach,
    )


def _behind(run: AnalysedRun, findings: Iterable[Judged]) -> Iterable[str]:
    """What a refusal that killed the server, and does not fail, keeps from being seen."""
    step = died_at(run.trace.processes)
    if any(judged.status == "accepted" for judged in findings):
        passes = "the baseline accepts"
    elif any(map(_left_out, findings)):
        passes = "--fail-on leaves out"
    else:
        return
    if step is not None:
        yield (
            f"the run died at step {step} of a refusal that {passes}: sites behind "
            "it were not seen (record with --on-growth grow)"
        )


def _left_out(judged: Judged) -> bool:
    """An error that --fail-on does not select; a note or a warning kills no server."""
    return judged.status == "ignored" and judged.finding.severity == "error"


def _judge(finding: Finding, policy: Policy, today: date) -> Judged:
    if not policy.selection.selects(finding):
        return Judged(finding, "ignored")
    entry = policy.baseline.get(place_of(finding))
    if entry is None:
        return Judged(finding, "new")
    if entry.expired(today):
        return Judged(finding, "expired", entry)
    return Judged(finding, "grown" if _grown(finding, entry, policy) else "accepted", entry)


def _grown(finding: Finding, entry: Entry, policy: Policy) -> bool:
    size = size_of(finding)
    if size is None or entry.bytes is None:
        return False
    return size > entry.bytes + policy.tolerance.of(entry.bytes)


def _gone(
    runs: Iterable[RunJudgement], baseline: Baseline
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Entries that match no finding: fixed where these runs could have shown it, or unseen."""
    runs = tuple(runs)
    seen = {judged.place for run in runs for judged in run.findings}
    left = [entry for place, entry in sorted(baseline.items()) if place not in seen]
    exercised = {str(s.key) for run in runs for s in run.analysed.sites if s.served}
    shown = all(not run.reasons for run in runs)
    fixed = [e for e in left if (e.site in exercised if e.site else shown)]
    return tuple(fixed), tuple(e for e in left if e not in fixed)


def accept(judgement: Judgement, reason: str, expires: date | None) -> Baseline:
    """The baseline that accepts what fails now.

    Entries in force stay as they are, and so do those of sites that these runs did not
    reach; fixed ones go. An expired one comes into force with a new `expires` only. A size is
    the largest over the runs.
    """
    accepted = {entry.place: entry for entry in judgement.unseen}
    for _, judged in judgement.findings:
        if judged.status == "ignored":
            continue
        entry = _accepting(judged, reason, expires)
        before = accepted.get(judged.place)
        if before is None or (before.bytes or 0) < (entry.bytes or 0):
            accepted[judged.place] = entry
    return accepted


def _accepting(judged: Judged, reason: str, expires: date | None) -> Entry:
    if judged.status == "accepted" and judged.entry is not None:
        return judged.entry
    return entry_for(judged.place, size_of(judged.finding), judged.entry, reason, expires)
