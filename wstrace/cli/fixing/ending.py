"""What a fix ends with: one screen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from wstrace.cli.fixing.loop import GROWN, REPORT, RESERVE, VERIFIED, Result
from wstrace.errors import with_stop
from wstrace.findings.finding import Finding
from wstrace.report.ci.gate_lines import headline
from wstrace.report.safe import clean, visible
from wstrace.report.verdict import FIX, next_commands, sentence, to_mend
from wstrace.safe_texts.redact import REDACTED, redact_argv
from wstrace.units import human, plural

MOST_ROWS = 8
MAX_LINE = 300
WHOLE = ("report", "next", "production")
"""Rows that are typed or opened: cut short they would be another command."""


def screen(result: Result, folder: Path, cmd: list[str]) -> list[str]:
    """What escaped, what the reserve costs, what stays open, the line for production."""
    pairs = [
        ("result", _result(result)),
        *(("found", row) for row in _found(result)),
        *(("cost", text) for text in _cost(result)),
        *(("open", text) for text in _open(result, folder)),
        ("report", str(folder / REPORT)),
        *_use(result, folder, cmd),
    ]
    lines = []
    before = ""
    for name, text in pairs:
        shown = visible(text) if name in WHOLE else clean(text, MAX_LINE)
        lines.append(f"{'' if name == before else name:<11}{shown}")
        before = name
    return lines


def _result(result: Result) -> str:
    if result.plan is None:
        return _nothing_to_reserve(result)
    if result.verified is None:
        return "The reserve was written and not tried (--no-verify)."
    told = with_stop(f"With the reserve: {headline(result.judgement)}")
    if result.exit_code == 0:
        return f"Fixed: the same requests were answered. {told}"
    how = "Not fixed" if result.exit_code == 1 else "Not shown to be fixed"
    return f"{how}: {with_stop(result.verified.told)} {told}"


def _nothing_to_reserve(result: Result) -> str:
    if result.exit_code == 0:
        return f"Nothing to fix, no reserve written. {sentence(result.grown)}"
    if any(not f.reservable for f in to_mend(result.grown)):
        return f"No reserve helps against this: {sentence(result.grown)}"
    if result.judgement.exit_code == 0:
        return f"No reserve written, and not all was asked: {with_stop(result.asked.told)}"
    return f"No reserve written. {sentence(result.grown)}"


def _found(result: Result) -> Iterator[str]:
    found = to_mend(result.grown)
    yield from (_row(finding) for finding in found[:MOST_ROWS])
    if len(found) > MOST_ROWS:
        yield f"and {len(found) - MOST_ROWS} more: {REPORT}"


def _row(finding: Finding) -> str:
    """`WS101 attn.py:64:_prefill asked 1.75 MiB of 66.25 KiB, can need 2.00 MiB (proved)`."""
    name = f"{finding.code} {finding.named or finding.title}"
    sizes = []
    if finding.serving_bytes is not None and finding.arena_bytes is not None:
        sizes.append(f"asked {human(finding.serving_bytes)} of {human(finding.arena_bytes)}")
    if finding.bound is not None and finding.bound.bytes:
        sizes.append(f"can need {human(finding.bound.bytes)} ({finding.bound.grade})")
    return f"{name}: {', '.join(sizes) or finding.detail}"


def _cost(result: Result) -> Iterator[str]:
    if result.plan is None:
        return
    config = result.plan.config
    slots = plural(len(config.slots), "slot")
    yield f"{human(config.slots[0].bytes)} in each of {slots} of a rank"
    if config.cost.tokens is not None:
        blocks = f"{config.cost.blocks:,} blocks"
        yield f"{config.cost.tokens:,} KV-cache tokens ({blocks}) of a rank"
    if config.cost.note:
        yield config.cost.note


def _open(result: Result, folder: Path) -> Iterator[str]:
    """What can still fail, what no reserve covers, and what was not seen."""
    if result.plan is not None:
        yield from result.plan.can_fail
        yield from result.plan.beyond_bytes
    elif not result.asked.answered:
        yield result.asked.told
    if result.plan is None and (folder / RESERVE).exists():
        yield f"{folder / RESERVE} is of an earlier fix, not of this server"
    for run in result.judgement.runs:
        yield from run.reasons
    yield "layers that neither warm-up nor these requests reached"


def _use(result: Result, folder: Path, cmd: list[str]) -> Iterator[tuple[str, str]]:
    """The line for production, or what to type where there is none."""
    if result.plan is None:
        yield from (("next", line) for line in _next(result, folder / GROWN))
        return
    if result.exit_code == 1:
        yield "next", f"wstrace report {shlex.quote(str(folder / VERIFIED))}"
        return
    line = shlex.join(redact_argv(cmd))
    reserve = shlex.quote(str((folder / RESERVE).absolute()))
    yield "production", f"WSTRACE_RESERVE={reserve} {line}"
    if REDACTED in line:
        yield "production", f"(your own secret in the place of {REDACTED})"


def _next(result: Result, grown: Path) -> list[str]:
    """As `wstrace run` says it of the first server, but for this command itself."""
    if result.exit_code == 0:
        return []
    trace = shlex.quote(str(grown))
    lines = [text for text in next_commands(result.grown, trace) if not text.startswith(FIX)]
    return lines or [f"wstrace report {trace}"]
