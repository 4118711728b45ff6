"""The report as markdown for an issue: only facts that were read out, no line of the log.

What is pasted into an issue stays for ever, so nothing is copied from the input but sizes,
versions, flags, and the names of vLLM's files and functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from wstrace.triage.diagnose.finding import Finding
from wstrace.triage.redaction import redact, redact_value
from wstrace.triage.report import Report
from wstrace.triage.text import (
    NOTHING,
    fixed_text,
    grouped,
    needs_text,
    ranks_text,
    sizes_text,
    step_text,
)

_NAMES: Final = "max_model_len, max_num_batched_tokens, max_num_seqs"


def render(report: Report) -> str:
    """Markdown for an issue or a chat."""
    if not report.findings:
        return NOTHING + "\n"
    lines: list[str] = []
    for group in grouped(report.findings):
        lines += [*_finding(group), ""]
    lines += [*_config(report), "", "Made by `wstrace triage`; no line of the log is quoted."]
    return "\n".join(lines) + "\n"


def _finding(group: Sequence[Finding]) -> Iterator[str]:
    finding = group[0]
    yield f"### `{redact(finding.where)}`: {finding.kind} ({finding.code})"
    yield ""
    yield f"{finding.why} Confidence: {finding.confidence}."
    yield ""
    yield "| | |"
    yield "|---|---|"
    for name, value in _rows(group):
        yield f"| {name} | {redact(value).replace('|', chr(92) + '|')} |"


def _rows(group: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    finding = group[0]
    for other in _distinct(group):
        exact = f" (exactly {other.required_bytes} bytes)" if other.required_exact else ""
        yield "sizes", sizes_text(other.required_text, other.current_text, other) + exact
    slot = finding.slot
    stated = (
        ("ranks", ranks_text(group)),
        ("slot", f"ubatch {slot[0]}, lane {slot[1]}" if slot else ""),
        ("file", finding.module),
        ("vLLM", finding.version),
        ("phase", finding.phase),
        ("step", step_text(finding)),
        ("worst case", needs_text(finding)),
        ("formula", f"`{finding.worst.formula}`" if finding.worst.formula else ""),
    )
    yield from ((name, value) for name, value in stated if value)
    yield from _known(finding)
    yield from (("evidence", told) for told in finding.evidence)


def _known(finding: Finding) -> Iterator[tuple[str, str]]:
    """What the site's own data say."""
    if finding.site is None:
        return
    yield "moved by", f"{finding.site.lever.flag}: {finding.site.lever.effect}"
    for flag in finding.site.not_levers:
        yield "not by", f"{flag.flag}: {flag.why}"
    if finding.fixed_in:
        yield "fixed in", fixed_text(finding)
    for link in finding.site.links:
        yield "link", link


def _distinct(group: Sequence[Finding]) -> list[Finding]:
    seen: dict[tuple[str | None, str | None], Finding] = {}
    for finding in group:
        seen.setdefault((finding.required_text, finding.current_text), finding)
    return list(seen.values())


def _config(report: Report) -> Iterator[str]:
    if not report.config:
        yield f"The log shows no configuration ({_NAMES} would help)."
        return
    yield "<details><summary>Configuration in the log</summary>"
    yield ""
    yield "```yaml"
    for name, value in redact_value(report.config).items():
        yield f"{name}: {value}"
    yield "```"
    yield ""
    yield "</details>"
