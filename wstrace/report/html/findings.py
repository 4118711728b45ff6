"""Findings as cards: what, where, the evidence, what to do, where to read on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wstrace.errors import with_stop
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.finding import Finding
from wstrace.known_sites import known
from wstrace.report.finding_text import (
    MAX_WAYS,
    asked_text,
    of_log,
    ranks_line,
    slot_text,
    step_text,
    way_text,
)
from wstrace.report.html.names import clean
from wstrace.report.html.sites import SiteRow
from wstrace.report.pages import page_url
from wstrace.runs.worker import Worker
from wstrace.trace.records import Slot
from wstrace.trace.site_key import SiteKey
from wstrace.units import exact

MOST: Final = 200


@dataclass(frozen=True)
class Card:
    """One finding, in words. `site` is the anchor of its row, None where it has none."""

    code: str
    severity: str
    title: str
    where: str
    detail: str
    advice: str
    facts: tuple[tuple[str, str], ...]
    statements: tuple[str, ...]
    site: int | None
    page: str
    links: tuple[str, ...]
    bars: tuple[tuple[str, str, float], ...]


def cards(run: AnalysedRun, rows: Sequence[SiteRow]) -> tuple[list[Card], int]:
    """The worst findings first, and how many are left out."""
    numbers: dict[tuple[SiteKey, Slot | None], int] = {
        (r.site.key, r.site.slot): r.number for r in rows
    }
    worker = run.workers[0] if run.workers else None
    chosen = run.findings[:MOST]
    made = [_card(f, numbers.get((f.key, f.slot)), worker) for f in chosen]
    return made, len(run.findings) - len(chosen)


def _card(finding: Finding, number: int | None, worker: Worker | None) -> Card:
    return Card(
        code=finding.code,
        severity=finding.severity,
        title=finding.title,
        where=clean(finding.named),
        detail=with_stop(clean(finding.detail[:1].upper() + finding.detail[1:], 600)),
        advice=clean(finding.advice, 600),
        facts=tuple((name, value) for name, value in _facts(finding) if value),
        statements=tuple(clean(s, 300) for s in finding.statements[:4]),
        site=number,
        page=page_url(finding.code) or "",
        links=_links(finding, worker.header.vllm if worker else None),
        bars=_bars(finding),
    )


def _facts(finding: Finding) -> list[tuple[str, str]]:
    layers = finding.layers
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    ranks, _, named = ranks_line(finding).partition(": ")
    return [
        ("layer", clean(layers[0]) + more if layers else ""),
        ("slot", slot_text(finding.slot)),
        (ranks, named),
        ("when", _when(finding)),
        *(of_log(finding, finding.log) if finding.log else _of_bound(finding)),
    ]


def _when(finding: Finding) -> str:
    return ", ".join(p for p in (str(finding.phase or ""), step_text(finding.step)) if p)


def _of_bound(finding: Finding) -> list[tuple[str, str]]:
    bound = finding.bound
    if bound is None:
        return []
    pairs = [("can need", f"{exact(bound.bytes)}, {bound.grade}" if bound.bytes else "")]
    if bound.formula:
        pairs.append(("formula", clean(bound.formula, 600)))
    if bound.lever:
        flag, effect = bound.lever.get("flag", ""), bound.lever.get("effect", "")
        pairs.append(("moved by", clean(f"{flag}: {effect}", 300)))
    pairs.append(("grade", clean(bound.why, 400)))
    pairs += [("way", clean(way_text(way), 600)) for way in bound.ways[:MAX_WAYS]]
    return pairs


def _bars(finding: Finding) -> tuple[tuple[str, str, float], ...]:
    """(name, size, percent of the largest) of the finding's sizes."""
    bound = finding.bound.bytes if finding.bound else None
    sizes = [
        ("warm-up", _asked_before(finding)),
        ("arena", finding.arena_bytes),
        ("serving", finding.serving_bytes),
        ("can need", bound),
    ]
    shown = [(name, size) for name, size in sizes if size is not None]
    largest = max((size for _, size in shown), default=0)
    if len(shown) < 2 or not largest:
        return ()
    return tuple(
        (name, asked_text(size, "nothing"), round(100 * size / largest, 2))
        for name, size in shown
    )


def _asked_before(finding: Finding) -> int | None:
    """0 for a site that asked nothing in warm-up: that is the finding. A log does not tell."""
    if finding.log is None and finding.row.unwarmed:
        return finding.warmup_bytes or 0
    return finding.warmup_bytes


def _links(finding: Finding, version: str | None) -> tuple[str, ...]:
    """Upstream reports of the same site."""
    if finding.log is not None:
        return finding.log.rule.links[:4] if finding.log.rule else ()
    if not finding.file:
        return ()
    site = known.match(finding.file, finding.function, version)
    return site.links[:4] if site is not None else ()
