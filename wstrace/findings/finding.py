"""A finding: one code, one site or slot, the ranks that show it, its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wstrace.bounds.bound import Bound
from wstrace.findings.codes import ORDER, TITLES, Severity
from wstrace.trace.records import Phase, Ranks, Slot, Step


@dataclass(frozen=True)
class Finding:
    """See `docs/findings/CODE.md` for what a code means. Sizes are bytes, None where unknown.

    `arena_bytes` is the slot's arena when warm-up ended. `steps` holds the scheduler state
    of the worst request, `detail` one sentence with the evidence, `advice` what to do.
    """

    code: str
    severity: Severity
    detail: str
    advice: str = ""
    file: str = ""
    function: str = ""
    caller: str = ""
    slot: Slot | None = None
    ranks: tuple[Ranks, ...] = ()
    layers: tuple[str, ...] = ()
    warmup_bytes: int | None = None
    serving_bytes: int | None = None
    arena_bytes: int | None = None
    bound: Bound | None = None
    phase: Phase | None = None
    step: Step | None = None
    statements: tuple[str, ...] = field(default=(), compare=False)

    @property
    def title(self) -> str:
        """The code's short meaning."""
        return TITLES[self.code]

    @property
    def site(self) -> str:
        """`file:function`, or empty for a finding about a slot or a process."""
        return f"{self.file}:{self.function}" if self.file else ""


def merge(findings: list[Finding]) -> list[Finding]:
    """One finding for each (code, site, slot): the worst rank's numbers, all ranks named.

    Sorted by severity, then size, then code and site, so that output is stable.
    """
    merged: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.file, finding.function, finding.slot, _extra(finding))
        seen = merged.get(key)
        merged[key] = finding if seen is None else _worse(seen, finding)
    return sorted(merged.values(), key=_rank)


def _extra(finding: Finding) -> str:
    """Findings without a site are told apart by their sentence."""
    return "" if finding.file else finding.detail


def _worse(a: Finding, b: Finding) -> Finding:
    worst = max(a, b, key=lambda f: (-ORDER[f.severity], f.serving_bytes or 0))
    ranks = tuple(dict.fromkeys(a.ranks + b.ranks))
    layers = tuple(sorted({*a.layers, *b.layers}))
    return replace(worst, ranks=ranks, layers=layers)


def _rank(finding: Finding) -> tuple[object, ...]:
    size = finding.serving_bytes or 0
    return (ORDER[finding.severity], -size, finding.code, finding.site, str(finding.slot))
