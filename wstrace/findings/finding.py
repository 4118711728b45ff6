"""A finding: one code, one site or slot, the ranks that show it, its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from wstrace.bounds.bound import Bound
from wstrace.trace.records import Phase, Ranks, Slot, Step

Severity = Literal["error", "warning", "note", "inconclusive"]
ORDER: Final[dict[str, int]] = {"error": 0, "warning": 1, "inconclusive": 2, "note": 3}

TITLES: Final[dict[str, str]] = {
    "WS101": "asked after the lock, never before it",
    "WS102": "asked for more after the lock than before it",
    "WS103": "latent escape, masked by a larger neighbour",
    "WS104": "slot never warmed",
    "WS105": "persistent resource missing after the lock",
    "WS106": "a layer's own scratch was too small after the lock",
    "WS107": "will escape: its proved bound is above the arena",
    "WS201": "growth that KV sizing never saw",
    "WS202": "serving with no lock",
    "WS203": "reserved far above what was used",
    "WS204": "ranks or slots locked at different sizes",
    "WS301": "captured graphs point at a freed arena",
    "WS302": "a stale view",
    "WS303": "growth during a capture",
    "WS304": "one slot, two streams in one step",
    "WS401": "the trace ends before the lock",
    "WS402": "a rank left no trace, or a hook stood down",
    "WS403": "truncated",
}


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
