"""Sites as rows: the table, the bars of warm-up against serving, and each site's origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.finding import Finding
from wstrace.report.finding_text import (
    MAX_WAYS,
    OUTCOMES,
    REPLAYED,
    slot_text,
    step_text,
    way_text,
)
from wstrace.report.html.names import clean, rank_label
from wstrace.runs.lock_epochs import Outcome
from wstrace.runs.run import RunSite
from wstrace.trace.records import Leaf, Request, Spec
from wstrace.units import human

MOST_ROWS: Final = 1000
MOST_BARS: Final = 24
MOST_ORIGINS: Final = 60


@dataclass(frozen=True)
class SiteRow:
    """One site in one slot. Sizes are bytes; `number` names its anchor on the page."""

    number: int
    site: RunSite
    caller: str
    name: str
    slot: str
    warmup: int
    serving: int
    arena: int
    bound: int | None
    grade: str
    calls: int
    ranks: int
    layers: int
    state: Outcome
    code: str
    has_origin: bool

    @property
    def word(self) -> str:
        """The state as people read it."""
        return f"in serving {REPLAYED}" if self.site.unknown else OUTCOMES[self.state]


@dataclass(frozen=True)
class Origin:
    """Where a site's largest request came from."""

    row: SiteRow
    when: str
    layers: tuple[str, ...]
    more_layers: int
    buffers: tuple[tuple[str, str, str], ...]
    statements: tuple[str, ...]
    formula: str
    bound_formula: str
    ways: tuple[str, ...]
    why: str
    leaves: tuple[tuple[str, str, str], ...]
    stopped: str
    stack: tuple[str, ...]


def site_rows(run: AnalysedRun) -> tuple[list[SiteRow], int]:
    """The largest sites first, and how many smaller ones are left out."""
    worst = run.worst_of_site
    ordered = sorted(run.sites, key=lambda s: (s.key, s.slot) not in worst)
    chosen = ordered[:MOST_ROWS]
    rows = [
        _row(number, site, worst.get((site.key, site.slot)))
        for number, site in enumerate(chosen, 1)
    ]
    return rows, len(run.sites) - len(rows)


def _row(number: int, site: RunSite, finding: Finding | None) -> SiteRow:
    return SiteRow(
        number=number,
        site=site,
        caller=clean(site.named),
        name=clean(str(site.key)),
        slot=slot_text(site.slot),
        warmup=site.warmup_bytes,
        serving=site.serving_bytes,
        arena=site.arena_bytes,
        bound=site.bound.bytes,
        grade=site.bound.grade,
        calls=site.calls,
        ranks=len(site.ranks),
        layers=len(site.layers),
        state=site.outcome,
        code=finding.code if finding else "",
        has_origin=number <= MOST_ORIGINS,
    )


def origins(rows: Sequence[SiteRow]) -> list[Origin]:
    """Provenance and stack of the first sites' largest requests."""
    return [_origin(row) for row in rows[:MOST_ORIGINS]]


def _origin(row: SiteRow) -> Origin:
    site = row.site
    worst = site.worst
    made = worst.provenance if worst else None
    layers = site.layers
    return Origin(
        row=row,
        when=_when(site, worst),
        layers=tuple(clean(name) for name in layers[:6]),
        more_layers=max(0, len(layers) - 6),
        buffers=tuple(_buffer(spec) for spec in (worst.specs[:12] if worst else ())),
        statements=tuple(clean(s, 400) for s in (made.statements[:16] if made else ())),
        formula=clean(made.formula or "", 1000) if made else "",
        bound_formula=clean(site.bound.formula or "", 1000),
        ways=tuple(clean(way_text(way), 600) for way in site.bound.ways[:MAX_WAYS]),
        why=clean(site.bound.why, 600),
        leaves=tuple(_leaf(leaf) for leaf in (made.leaves[:24] if made else ())),
        stopped=clean(made.stopped or "", 400) if made else "",
        stack=tuple(clean(frame, 240) for frame in (worst.stack[:16] if worst else ())),
    )


def _when(site: RunSite, worst: Request | None) -> str:
    if worst is None:
        return "no request was recorded in full"
    step = step_text(worst.step)
    worker, _ = next(pair for pair in site.uses if worst in pair[1].requests)
    rank = rank_label(worker.ranks, worker.world)
    return ", ".join(part for part in (worst.phase, step, rank) if part)


def _buffer(spec: Spec) -> tuple[str, str, str]:
    shape = " × ".join(f"{n:,}" for n in spec.shape)
    return shape or "scalar", clean(spec.dtype, 40), human(spec.bytes)


_KINDS: Final = {
    "constant": "fixed while this config runs",
    "driver": "grows with",
    "unbound": "not followed further",
}


def _leaf(leaf: Leaf) -> tuple[str, str, str]:
    value = "?" if leaf.value is None else f"{leaf.value:,}"
    from_where = leaf.role or leaf.source or leaf.why or leaf.where
    return (
        clean(leaf.name),
        value,
        clean(f"{_KINDS[leaf.kind]}: {from_where}" if from_where else _KINDS[leaf.kind]),
    )
