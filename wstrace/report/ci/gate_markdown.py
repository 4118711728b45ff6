"""The gate's judgement as Markdown: a merge request comment or a job summary."""

from __future__ import annotations

from wstrace.gate.judge import Judged, Judgement, RunJudgement
from wstrace.report.ci.gate_lines import (
    accepted_line,
    entry_line,
    exercised,
    explain,
    grounds,
    headline,
    run_line,
    violation_line,
    where,
)
from wstrace.report.finding_text import asked_text
from wstrace.report.markdown import escape
from wstrace.units import human

HEAD = (
    "| | code | site | warm-up | serving | arena | can need | why |",
    "|---|---|---|---:|---:|---:|---:|---|",
)
MARKS = {"findings": "❌", "inconclusive": "⚠️", "clean": "✅"}


def render(judgement: Judgement, max_bytes: int | None = None) -> str:
    """The whole judgement; past `max_bytes` (UTF-8) the last rows are left out, and counted."""
    before, rows, after = _parts(judgement)
    if max_bytes is None:
        return "\n".join([*before, *rows, *after]) + "\n"
    return _fitted(before, rows, after, max_bytes)


def _fitted(before: list[str], rows: list[str], after: list[str], max_bytes: int) -> str:
    left = max_bytes - 200 - sum(_size(line) for line in before)
    kept: list[str] = []
    for line in [*rows, *after]:
        left -= _size(line)
        if left < 0:
            break
        kept.append(line)
    missing = len(rows) + len(after) - len(kept)
    if missing:
        kept += ["", f"{missing:,} more lines left out: `--format json` has them all."]
    return "\n".join([*before, *kept]) + "\n"


def _size(line: str) -> int:
    return len(line.encode()) + 1


def _parts(judgement: Judgement) -> tuple[list[str], list[str], list[str]]:
    title = escape(headline(judgement))
    before = [f"### {MARKS[judgement.verdict]} wstrace gate: {title}", ""]
    before += [f"- {escape(run_line(run))}" for run in judgement.runs]
    shown = [j for _, j in judgement.findings if j.finding.severity != "inconclusive"]
    if shown:
        before += ["", *HEAD]
    after = [line for run in judgement.runs for line in _after(run)]
    after += [
        f"- fixed, take it out of the baseline: {escape(entry_line(e))}"
        for e in judgement.fixed
    ]
    after += [f"- note: {escape(note)}" for note in judgement.notes]
    return before, [_row(judged) for judged in shown], after


def _row(judged: Judged) -> str:
    finding = judged.finding
    bound = finding.bound
    need = "-" if bound is None else f"{human(bound.bytes)} {bound.grade}"
    cells = (
        "❌" if judged.fails else judged.status,
        finding.code,
        where(judged),
        asked_text(finding.warmup_bytes),
        asked_text(finding.serving_bytes),
        human(finding.arena_bytes),
        need,
        explain(judged),
    )
    return f"| {' | '.join(escape(cell) for cell in cells)} |"


def _after(run: RunJudgement) -> list[str]:
    lines = [f"- ❌ {escape(violation_line(violation))}" for violation in run.violations]
    lines += [f"- ⚠️ inconclusive: {escape(reason)}" for reason in run.reasons]
    accepted = [j for j in run.findings if j.status == "accepted"]
    lines += [f"- accepted: {escape(accepted_line(judged))}" for judged in accepted]
    lines += [f"- rests on: {escape(line)}" for line in grounds(run)]
    lines += [f"- exercised: {escape(line)}" for line in exercised(run)]
    return ["", *lines]
