"""A finding as plain JSON values: the contract of `gate` and `report --format json`.

An unknown number is null, never 0; `ranks` is always a list of rank objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec

from wstrace.bounds.bound import Bound
from wstrace.findings.finding import Finding
from wstrace.trace.records import Ranks, Slot

Json = dict[str, Any]


def finding_json(finding: Finding) -> Json:
    """One finding. Sizes are bytes; `file` and `function` are null for a finding without a
    site, `slot` for one about no slot, `bound` where none was made."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "title": finding.title,
        "file": finding.file or None,
        "function": finding.function or None,
        "caller": finding.caller or None,
        "slot": slot_json(finding.slot),
        "ranks": ranks_json(finding.ranks),
        "layers": list(finding.layers),
        "warmup_bytes": finding.warmup_bytes,
        "serving_bytes": finding.serving_bytes,
        "arena_bytes": finding.arena_bytes,
        "bound": bound_json(finding.bound),
        "phase": finding.phase,
        "step": None if finding.step is None else msgspec.to_builtins(finding.step),
        "statements": list(finding.statements),
        "detail": finding.detail,
        "advice": finding.advice or None,
    }


def slot_json(slot: Slot | None) -> Json | None:
    """`{"ubatch": 0, "lane": 0}`, or null."""
    return None if slot is None else {"ubatch": slot.ubatch, "lane": slot.lane}


def ranks_json(ranks: Iterable[Ranks]) -> list[Json]:
    """`[{"dp", "tp", "pp", "ep"}]`, null where unknown."""
    return [{"dp": r.dp, "tp": r.tp, "pp": r.pp, "ep": r.ep} for r in ranks]


def bound_json(bound: Bound | None) -> Json | None:
    """A bound in bytes with its grade, its formula and what stands behind them."""
    if bound is None:
        return None
    return {
        "bytes": bound.bytes,
        "grade": bound.grade,
        "formula": bound.formula,
        "constants": dict(bound.constants),
        "drivers": dict(bound.drivers),
        "at": dict(bound.at),
        "needs": list(bound.needs),
        "lever": bound.lever,
        "known_site": bound.known_site,
        "why": bound.why,
        "ways": [asdict(way) for way in bound.ways],
    }
