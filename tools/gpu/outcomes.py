"""Outcomes that several scenarios claim: prompts answered, codes, no late growth."""

from __future__ import annotations

from collections.abc import Sequence

from tools.gpu.evidence import Evidence, MissingError
from tools.gpu.table import Outcome, equal


def shown(ev: Evidence) -> list[str]:
    """Each prompt with its HTTP status, in the order sent."""
    return [f"{tokens}: {status}" for tokens, status in ev.prompts]


def answers(ev: Evidence, planned: Sequence[int]) -> Outcome:
    """Every planned prompt was sent and answered 200; not run where the time ended before."""
    found = [f"{tokens}: {status}" for tokens, status in answered(ev, planned)]
    return equal([f"{tokens}: 200" for tokens in planned], found)


def answered(ev: Evidence, planned: Sequence[int]) -> list[tuple[int, int]]:
    """The prompts, unless time ended before the last had any answer (status 0)."""
    found = ev.prompts
    had = [row for row in found if row[1]]
    if len(had) < len(planned) and all(status == 200 for _, status in had):
        said = f"{len(had)} of {len(planned)} prompts"
        raise MissingError(f"{ev.folder.name}: time ended when {said} had been answered")
    return found


def has(ev: Evidence, wanted: str) -> Outcome:
    """`wanted` is among the codes."""
    codes = ev.codes()
    return wanted, codes, wanted in codes


def lacks(ev: Evidence, *unwanted: str) -> Outcome:
    """None of `unwanted` is among the codes of a run with a verdict."""
    codes = ev.judged()
    return f"no {', '.join(unwanted)}", codes, not set(unwanted) & set(codes)


def no_growth(ev: Evidence) -> Outcome:
    """No arena was replaced after warm-up, in a run with a verdict."""
    ev.judged()
    late = [g.after for v in ev.workers for g in v.growths if g.phase == "serving"]
    return equal([], late)


def near_bound(ev: Evidence, planned: Sequence[int]) -> Outcome:
    """The sites that serving asked at, with their share of the bound: never more than all."""
    answered(ev, planned)
    sites = ev.gate["runs"][0]["exercised"]["by_site"]
    rows = [r for r in sites if r["in_serving"] and r["share"] is not None]
    told = [
        f"{r['site']} {r['bytes']:,} of {r['bound_bytes']:,} ({r['share']:.0%})" for r in rows
    ]
    held = bool(rows) and all(r["share"] <= 1 for r in rows)
    return "their share of the bound, at most 100 %", told, held
