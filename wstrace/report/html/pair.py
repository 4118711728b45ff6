"""The report of two runs: what appeared, grew, shrank, went; what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.codes import ORDER
from wstrace.findings.finding import Finding
from wstrace.report.finding_text import slot_text
from wstrace.report.html import figures
from wstrace.report.html.facts import RunFacts, run_facts
from wstrace.report.html.names import clean
from wstrace.report.html.page import build
from wstrace.report.html.sites import MOST_BARS
from wstrace.report.html.timeline import Timeline, timelines
from wstrace.report.html.verdict_view import VerdictView, verdict_view
from wstrace.runs.compare import SiteChange, compare
from wstrace.runs.run import RunSite

MOST_ROWS: Final = 1000
MOST_TIMELINES: Final = 4


@dataclass(frozen=True)
class ChangeRow:
    """One site and slot in both runs; sizes are bytes, None where it was not seen."""

    caller: str
    slot: str
    change: str
    a: int | None
    b: int | None
    bound_a: int | None
    bound_b: int | None


def render_pair(old: AnalysedRun, new: AnalysedRun) -> str:
    """The page that compares run A (old) with run B (new)."""
    changes = compare(old.run, new.run)
    facts = run_facts(old), run_facts(new)
    lines = [_first(timelines(run)[0]) for run in (old, new)]
    verdicts = verdict_view(old), verdict_view(new)
    context = {
        "verdicts": verdicts,
        "news": _news(*verdicts),
        "facts": facts,
        "tally": _tally(changes),
        "changes": [_row(change) for change in changes[:MOST_ROWS]],
        "changes_left": max(0, len(changes) - MOST_ROWS),
        "bars_left": max(0, len(changes) - MOST_BARS),
        "different": different(*facts),
        "lines": lines,
        "findings": _finding_changes(old, new),
    }
    return build("pair.html.j2", context, _figures(changes, lines))


def _news(old: VerdictView, new: VerdictView) -> str:
    """What became of the verdict."""
    return f"{new.label} in both" if old.label == new.label else f"{old.label} → {new.label}"


def _first(lines: Sequence[Timeline]) -> list[Timeline]:
    return list(lines[:MOST_TIMELINES])


def _figures(
    changes: Sequence[SiteChange], lines: Sequence[Sequence[Timeline]]
) -> dict[str, Any]:
    specs = {"changes": figures.comparison(changes)} if changes else {}
    for run, of_run in zip("ab", lines, strict=True):
        specs |= {f"timeline-{run}-{i}": figures.timeline(t) for i, t in enumerate(of_run)}
    return specs


def _tally(changes: Sequence[SiteChange]) -> list[tuple[str, int]]:
    counted = Counter(change.change for change in changes)
    return [(name, counted[name]) for name in ("appeared", "grew", "shrank", "went", "same")]


def _row(change: SiteChange) -> ChangeRow:
    return ChangeRow(
        caller=clean(change.named),
        slot=slot_text(change.slot),
        change=change.change,
        a=change.bytes_a if change.a else None,
        b=change.bytes_b if change.b else None,
        bound_a=_bound(change.a),
        bound_b=_bound(change.b),
    )


def _bound(site: RunSite | None) -> int | None:
    return site.bound.bytes if site else None


def different(a: RunFacts, b: RunFacts) -> list[tuple[str, str, str]]:
    """Versions, flags and limits that are not the same in both runs."""
    left, right = dict(a.run + a.limits), dict(b.run + b.limits)
    ignored = {"run", "started", "ended", "records", "processes", "host"}
    names = [name for name in {**left, **right} if name not in ignored]
    pairs = [(name, left.get(name, "-"), right.get(name, "-")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _finding_changes(old: AnalysedRun, new: AnalysedRun) -> list[tuple[str, str, str, str]]:
    """(code, where, in A, in B) of every finding of either run, the worst first."""
    a, b = _findings(old), _findings(new)
    ranked = sorted([*new.findings, *old.findings], key=lambda f: ORDER[f.severity])
    keys = list(dict.fromkeys(_named(finding) for finding in ranked))[:200]
    return [(*key, a.get(key, "-"), b.get(key, "-")) for key in keys]


def _findings(run: AnalysedRun) -> dict[tuple[str, str], str]:
    return {_named(f): clean(f.detail, 300) for f in reversed(run.findings)}


def _named(finding: Finding) -> tuple[str, str]:
    """How a row of the table names a finding."""
    return finding.code, clean(finding.named or finding.title)
