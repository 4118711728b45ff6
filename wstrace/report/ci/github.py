"""The gate's judgement for GitHub Actions: workflow commands, and the job summary.

GitHub shows ten annotations of a kind a step and takes 1 MiB of summary a step; what comes
after that is dropped without a word. So the worst ten are annotations, and all of them are
in the summary. Rules of escaping: GitHub's toolkit, `command.ts`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError
from wstrace.gate.judge import Judged, Judgement, RunJudgement
from wstrace.report.ci import gate_markdown
from wstrace.report.ci.gate_lines import (
    explain,
    grounds,
    headline,
    line_of,
    numbers,
    violation_line,
    where,
)

MAX_ANNOTATIONS: Final = 10
MAX_SUMMARY: Final = 1 << 20
SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"
LEVELS: Final = {"error": "error", "warning": "warning", "note": "notice"}


def escape_data(text: str) -> str:
    """The message of a workflow command: no raw %, CR or LF."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """A property of a workflow command: as a message, and no raw colon or comma."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def command(level: str, message: str, **properties: str) -> str:
    """`::error file=F,title=T::message`, properties that are empty left out."""
    named = [f"{k}={escape_property(v)}" for k, v in properties.items() if v]
    head = f"::{level} {','.join(named)}" if named else f"::{level}"
    return f"{head}::{escape_data(message)}"


def render(judgement: Judgement) -> str:
    """At most ten annotations, the worst first, and a line that says how many there are."""
    lines = list(_annotations(judgement))
    shown = lines[:MAX_ANNOTATIONS]
    total = headline(judgement)
    if len(lines) > len(shown):
        total += f"; the worst {len(shown)} of {len(lines)} are annotated, all in the summary"
    rests = [f"rests on: {line}" for run in judgement.runs for line in grounds(run)]
    told = [" ".join(line.split()) for line in (f"wstrace gate: {total}", *rests)]
    return "\n".join([*shown, *told]) + "\n"


def _annotations(judgement: Judgement) -> Iterator[str]:
    """Why the gate does not pass, the worst first; then warnings that let it pass."""
    pairs = judgement.findings
    yield from (_finding(run, judged) for run, judged in pairs if judged.fails)
    for run in judgement.runs:
        for violation in run.violations:
            yield command("error", violation_line(violation), title=f"wstrace {violation.rule}")
    for run in judgement.runs:
        for reason in run.reasons:
            yield command("error", reason, title="wstrace: inconclusive")
    yield from (
        _finding(run, judged)
        for run, judged in pairs
        if judged.status == "ignored" and judged.finding.severity in ("error", "warning")
    )


def _finding(run: RunJudgement, judged: Judged) -> str:
    finding = judged.finding
    level = "error" if judged.fails else LEVELS[finding.severity]
    if level == "error" and not judged.fails:
        level = "warning"
    text = [f"{where(judged)}: {explain(judged)}", numbers(judged), finding.advice]
    return command(
        level,
        "\n".join(line for line in text if line),
        file=finding.file,
        line=str(line_of(run, finding) or ""),
        title=f"{finding.code}: {finding.title}",
    )


def append_summary(judgement: Judgement, environ: Mapping[str, str] = os.environ) -> bool:
    """Append the Markdown to the step's summary, under 1 MiB with what is there already.

    Returns False outside of GitHub Actions. Raises WstraceError when it cannot be written.
    """
    target = environ.get(SUMMARY_VARIABLE)
    if not target:
        return False
    path = Path(target)
    try:
        used = path.stat().st_size if path.exists() else 0
        text = gate_markdown.render(judgement, max_bytes=MAX_SUMMARY - 1 - used)
        with path.open("a", encoding="utf-8") as file:
            if used + len(text.encode()) < MAX_SUMMARY:
                file.write(text)
    except OSError as error:
        raise WstraceError(
            f"Cannot write the job summary: {error.strerror}.",
            f"Check {SUMMARY_VARIABLE}, or unset it.",
        ) from error
    return True
