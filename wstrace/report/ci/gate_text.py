"""The gate's judgement for a terminal or a CI log."""

from __future__ import annotations

from wstrace.gate.judge import Judged, Judgement, RunJudgement
from wstrace.report.ci.gate_lines import (
    accepted_line,
    entry_line,
    exercised,
    explain,
    grounds,
    headline,
    numbers,
    run_line,
    violation_line,
    where,
)
from wstrace.report.pages import page_url

MAX_FINDINGS = 20


def render(judgement: Judgement) -> str:
    """The verdict first, then each run: what fails, what is accepted, what was exercised."""
    lines = [f"wstrace gate: {headline(judgement)}"]
    for run in judgement.runs:
        lines += [run_line(run), *(f"  {line}" for line in _run(run))]
    lines += [f"fixed: {entry_line(e)}: take it out of the baseline" for e in judgement.fixed]
    lines += [f"not reached: {entry_line(e)} stays in the baseline" for e in judgement.unseen]
    lines += [f"note: {note}" for note in judgement.notes]
    return "\n".join(lines) + "\n"


def _run(run: RunJudgement) -> list[str]:
    lines = [line for judged in run.failing[:MAX_FINDINGS] for line in _finding(judged)]
    if len(run.failing) > MAX_FINDINGS:
        lines.append(f"and {len(run.failing) - MAX_FINDINGS} more: --format json")
    lines += [violation_line(violation) for violation in run.violations]
    lines += [f"inconclusive: {reason}" for reason in run.reasons]
    accepted = [judged for judged in run.findings if judged.status == "accepted"]
    lines += [f"accepted: {accepted_line(judged)}" for judged in accepted]
    lines += _ignored(run)
    lines += [f"rests on: {line}" for line in grounds(run)]
    told = exercised(run)
    lines += [f"exercised: {line}" for line in told[:1]]
    return [*lines, *(f"  {line}" for line in told[1:])]


def _finding(judged: Judged) -> list[str]:
    finding = judged.finding
    lines = [f"{finding.code} {judged.status}: {where(judged)}: {explain(judged)}"]
    if numbers(judged):
        lines.append(f"  {numbers(judged)}")
    if finding.advice:
        lines.append(f"  do: {finding.advice}")
    if url := page_url(finding.code):
        lines.append(f"  see: {url}")
    return lines


def _ignored(run: RunJudgement) -> list[str]:
    """Findings that --fail-on does not select: counted by code, not hidden."""
    codes = [
        judged.finding.code
        for judged in run.findings
        if judged.status == "ignored" and judged.finding.severity != "inconclusive"
    ]
    if not codes:
        return []
    counts = ", ".join(f"{codes.count(code)} {code}" for code in sorted(set(codes)))
    return [f"does not fail the gate (--fail-on): {counts}"]
