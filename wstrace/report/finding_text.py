"""Findings as lines of text: used by the text and the markdown report."""

from __future__ import annotations

from wstrace.bounds.bound import CallerWay
from wstrace.errors import ended
from wstrace.findings.finding import Finding
from wstrace.report.safe import clean
from wstrace.report.verdict import why
from wstrace.trace.records import Ranks, ScheduledRequest, Slot, Step
from wstrace.units import exact, human, plural

MAX_LINE = 600
MAX_WAYS = 8


def slot_text(slot: Slot | None) -> str:
    """`ubatch 0, lane 1`; empty for the only slot there usually is."""
    if slot is None or slot == Slot():
        return ""
    return f"ubatch {slot.ubatch}, lane {slot.lane}"


def rank_text(ranks: Ranks) -> str:
    """`tp1` or `dp0 pp1 tp0`: only what tells ranks apart."""
    parts = [("dp", ranks.dp), ("pp", ranks.pp), ("tp", ranks.tp), ("ep", ranks.ep)]
    named = [f"{name}{value}" for name, value in parts if value]
    return " ".join(named) or "rank 0"


def step_text(step: Step | None) -> str:
    """What the scheduler had in the step: `step 12: 256 tokens of 1 request, 3840 computed`."""
    if step is None:
        return ""
    if not step.requests:
        return f"step {step.index} ({step.kind}): {step.total_tokens} tokens"
    longest = max(step.requests, key=lambda r: r.computed)
    count = plural(step.num_reqs, "request")
    return (
        f"step {step.index}: {step.total_tokens} tokens of {count}, "
        f"longest {_request_text(longest)}"
    )


def _request_text(request: ScheduledRequest) -> str:
    return f"{request.computed} computed + {request.scheduled} scheduled"


def evidence(finding: Finding) -> list[str]:
    """The facts of a finding, one a line, without its title; safe for a terminal."""
    return [clean(line, MAX_LINE) for line in _facts(finding)]


def _facts(finding: Finding) -> list[str]:
    lines = [ended(finding.detail[:1].upper() + finding.detail[1:])]
    if finding.layers:
        more = f" and {len(finding.layers) - 1} more" if len(finding.layers) > 1 else ""
        lines.append(f"layer: {clean(finding.layers[0])}{more}")
    if slot_text(finding.slot):
        lines.append(f"slot: {slot_text(finding.slot)}")
    if len(finding.ranks) > 1:
        lines.append("ranks: " + ", ".join(rank_text(r) for r in finding.ranks[:8]))
    if finding.step is not None:
        lines.append(f"when: {finding.phase}, {step_text(finding.step)}")
    bound = finding.bound
    if bound is not None and bound.drivers:
        lines.append(f"why: {why(bound)}")
    lines += [f"made by: {statement}" for statement in finding.statements[1:4]]
    if bound is not None and bound.bytes is not None:
        lines.append(f"can need: {exact(bound.bytes)}, {bound.grade}")
        lines.append(f"formula: {bound.formula}" if bound.formula else f"because: {bound.why}")
        lines += [f"way: {way_text(way)}" for way in bound.ways[:MAX_WAYS]]
    return lines


def way_text(way: CallerWay) -> str:
    """`from impl.py:18:Impl.decode: 64.00 KiB with num_reqs * 1024, asked 8.00 KiB`."""
    where = way.callers[0].rpartition("/")[2] if way.callers else ", ".join(way.types)
    asked = f"asked {human(way.observed)}"
    return f"from {where}: {human(way.bytes)} with {way.formula}, {asked}"


def sizes(finding: Finding) -> str:
    """`warm-up 66.25 KiB, serving 512.00 KiB, arena 66.25 KiB`."""
    pairs = (
        ("warm-up", finding.warmup_bytes),
        ("serving", finding.serving_bytes),
        ("arena", finding.arena_bytes),
    )
    return ", ".join(f"{name} {human(size)}" for name, size in pairs if size is not None)
