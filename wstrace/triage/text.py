"""The report for a person at a terminal: one screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Final

from wstrace.triage.diagnose.advice import commands, is_older
from wstrace.triage.diagnose.finding import Finding
from wstrace.triage.redaction import redact
from wstrace.triage.report import Report
from wstrace.units import exact, plural

WIDTH: Final = 80
LABEL: Final = 10
FULL: Final = 2
NOTHING: Final = "No failure found: the text states no workspace failure of vLLM."


def render(report: Report, width: int = WIDTH) -> str:
    """The whole report as text of at most `width` columns where words allow."""
    lines = [*_head(report)]
    groups = grouped(report.findings)
    for group in groups[:FULL]:
        lines += ["", *_block(group, width, brief=len(groups) > 1)]
    for group in groups[FULL:]:
        lines += ["", f"also {_title(group[0])}: {_sizes(group)}"]
    if len(groups) > FULL:
        lines += ["", "Everything in full: --format markdown"]
    for note in report.notes:
        lines.append(f"note: {note}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one site and class together, in the order of their first lines."""

    def key(finding: Finding) -> tuple[str, str, str]:
        return finding.where, finding.kind, finding.code

    ordered = sorted(findings, key=key)
    groups = [list(group) for _, group in groupby(ordered, key)]
    return sorted(groups, key=lambda group: (findings.index(group[0]), group[0].at))


def _head(report: Report) -> Iterator[str]:
    named = [PurePath(path).name if path != "-" else "stdin" for path in report.paths]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    names = ", ".join(named[:3]) + more
    if not report.findings:
        yield NOTHING
        if report.skipped:
            yield f"It speaks of the message {_times(report.skipped)} without numbers."
        return
    sites = len(grouped(report.findings))
    yield f"{names}: {plural(sites, 'finding')}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _title(finding: Finding) -> str:
    return f"{redact(finding.where)}   {finding.code} {finding.kind}"


def _block(group: Sequence[Finding], width: int, brief: bool) -> Iterator[str]:
    finding = group[0]
    yield _title(finding)
    yield from _row("", f"{_sizes(group)}{_place(group)}", width)
    sure = "" if finding.confidence == "certain" else f"({finding.confidence}) "
    yield from _row("Why", f"{sure}{finding.why}", width)
    if finding.step and finding.step.requests and not brief:
        yield from _row("Step", step_text(finding), width)
    yield from _row("Needs", needs_text(finding), width)
    if finding.site and not (brief and not finding.site.lever.flag):
        lever = finding.site.lever
        yield from _row("Moves it", f"{lever.flag}: {lever.effect}", width)
        yield from _not_levers(finding, width)
    if finding.fixed_in:
        yield from _row("Fixed in", fixed_text(finding), width)
    for index, command in enumerate(commands(finding)):
        yield from _row("Type" if index == 0 else "", command, width, whole=True)
    if finding.site and finding.site.links and not brief:
        yield from _row("See", finding.site.links[0], width, whole=True)


def _not_levers(finding: Finding, width: int) -> Iterator[str]:
    for index, flag in enumerate(finding.site.not_levers if finding.site else ()):
        yield from _row("Does not" if index == 0 else "", f"{flag.flag}: {flag.why}", width)


def _row(label: str, text: str, width: int, whole: bool = False) -> Iterator[str]:
    indent = " " * (LABEL + 2)
    first = f"  {label:<{LABEL}}"
    if whole:
        yield first + text
        return
    wrapped = textwrap.wrap(
        text, width - len(indent), break_long_words=False, break_on_hyphens=False
    )
    for index, line in enumerate(wrapped):
        yield (first if index == 0 else indent) + line


def _sizes(group: Sequence[Finding]) -> str:
    pairs = list(dict.fromkeys((f.required_text, f.current_text) for f in group))
    return "; ".join(sizes_text(*pair, group[0]) for pair in pairs[:4]) + (
        "; ..." if len(pairs) > 4 else ""
    )


def sizes_text(required: str | None, current: str | None, finding: Finding) -> str:
    """What was asked for and what there was, in words."""
    if required is None:
        return (finding.name and f"resource {redact(finding.name)}") or "no sizes in the text"
    if finding.kind in ("over_reserved", "unlocked_growth_oom", "pointer_moved_after_capture"):
        return f"grew from {current} to {required}" if current else f"grew to {required}"
    return f"asked for {required}, had {current or 'an unknown size'}"


def _place(group: Sequence[Finding]) -> str:
    ranks = ranks_text(group)
    source = f"line {group[0].at}"
    return f" ({ranks}, {source})" if ranks else f" ({source})"


def ranks_text(group: Sequence[Finding]) -> str:
    """The ranks of a group: `dp0 tp1 ep1`, several with commas."""
    named = []
    for finding in group:
        ranks = vars(finding.ranks).items()
        named.append(" ".join(f"{name}{rank}" for name, rank in ranks if rank is not None))
    shown = list(dict.fromkeys(name for name in named if name))
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    return ", ".join(shown[:6]) + more


def step_text(finding: Finding) -> str:
    """The scheduler's step in words, the longest request first."""
    step = finding.step
    if step is None or not step.requests:
        return ""
    scheduled, computed = max(step.requests, key=lambda pair: pair[1])
    count = len(step.requests)
    return (
        f"{step.total_tokens or sum(s for s, _ in step.requests)} tokens of "
        f"{plural(count, 'request')}; the longest had {computed} computed and got "
        f"{scheduled} more"
    )


def needs_text(finding: Finding) -> str:
    """The worst case in words: bytes and grade, or what is missing, or that none is known."""
    worst = finding.worst
    if worst.bytes is not None:
        assumed = f"; {'; '.join(worst.assumed)}" if worst.assumed else ""
        return f"at most {exact(worst.bytes)}, {worst.grade}{assumed}"
    if worst.contradiction:
        return f"not known: {worst.contradiction}"
    if finding.code == "WS105":
        return "no bytes of the arena: an object made before the lock, once in each slot"
    if finding.file is None and finding.required_text is None:
        return "not known: the text names no layer"
    if finding.site is None:
        return (
            "not known: no rule for this site. It may grow with --max-num-batched-tokens, "
            "--max-num-seqs or --max-model-len; a trace tells which and how far"
        )
    if not worst.needs:
        return "not known for this site"
    places = {name.name: name.where() for name in finding.site.names}
    told = [f"{name} ({places.get(name, f'--set {name}=N')})" for name in worst.needs[:4]]
    more = f" and {len(worst.needs) - 4} more" if len(worst.needs) > 4 else ""
    return f"a number that takes {'; '.join(told)}{more}"


def fixed_text(finding: Finding) -> str:
    """The fixed version, and what it leaves open for one that has it."""
    site, version = finding.site, finding.version
    if is_older(version, finding.fixed_in) or site is None:
        here = f" (this is {version})" if version else ""
        cover = site.cover(finding.fixed_in) if site else None
        gap = f"; it leaves open: {cover.gap}" if cover and cover.gap else ""
        return f"{finding.fixed_in}{here}{gap}"
    cover = site.cover(version)
    gap = cover.gap if cover and cover.gap else "a trace tells what is left"
    return f"{finding.fixed_in}, and this is {version}: what it leaves open is {gap}"
