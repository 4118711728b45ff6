"""What is known about one site before a bound is made: its requests and the config.

A request belongs to a step; its scheduler gives the values that the quantities of a formula
may have had (`rows`), and a formula explains the request if it gives the bytes for some of
them (`reaches`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final

from wstrace.bounds.limits import RoleLimit, role_limits
from wstrace.expr.expression import Expression
from wstrace.reserve.evaluate import numeric
from wstrace.trace.records import Limit, Request, ScheduledRequest, Step
from wstrace.vllm.quantities import MIXED_GRAPHS, mixed_graphs

Row = Mapping[str, int]
_MOST_POINTS: Final = 200_000
_EXACT_ROLES: Final = frozenset(
    ("num_computed_tokens", "seq_len", "query_len", "num_scheduled_tokens")
)
"""Roles whose value a real step fixes; the others may have been padded above it."""


@dataclass(frozen=True)
class Refusal:
    """Why a way of bounding was not taken; an empty `why` needs no mention.

    `known_site` and `lever` are those of a rule that names the site but did not hold.
    `refuted`: a request that was seen contradicts that rule, in words.
    """

    why: str
    needs: tuple[str, ...] = ()
    known_site: str | None = None
    lever: dict[str, str] | None = None
    refuted: str = ""


@dataclass(frozen=True)
class Site:
    """One call site, all its requests (any slot, rank and phase), and the config's limits."""

    file: str
    function: str
    requests: tuple[Request, ...]
    limits: dict[str, Limit]
    vllm_version: str | None = None

    @cached_property
    def observed(self) -> int:
        """The largest request seen, in bytes; 0 without any."""
        return max((request.bytes for request in self.requests), default=0)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The limits that formulas can use."""
        padding = mixed_graphs(self.limits)
        found = dict(zip(MIXED_GRAPHS, padding, strict=True)) if any(padding) else {}
        return numeric(self.limits) | found

    @cached_property
    def roles(self) -> dict[str, RoleLimit]:
        """The range of every scheduler quantity."""
        return role_limits(self.limits)


def scheduled_rows(request: Request) -> tuple[Row, ...]:
    """The scheduler's values for `request` where they are the truth: a real step's."""
    step = request.step
    return rows_of(step) if step is not None and step.kind == "real" else ()


def told(request: Request) -> str:
    """One request, as a sentence names it: '10,420,224 bytes in serving, step 12'."""
    step = f", step {request.step.index}" if request.step is not None else ""
    return f"{request.bytes:,} bytes in {request.phase}{step}"


def rows_of(step: Step | None) -> tuple[Row, ...]:
    """The values that roles may have had for a call in `step`; empty where unknown.

    A call serves the whole step or one of its requests, and a trace does not say which.
    The first row takes the largest of every per-request quantity, the others are the
    requests one by one; a step of one request has one row.
    """
    if step is None or step.total_tokens <= 0:
        return ()
    shared = {"num_scheduled_tokens": step.total_tokens, "num_reqs": step.num_reqs}
    if not step.requests:
        return (shared,)
    shared |= _totals(step.requests)
    single = [{**shared, **_of_request(request)} for request in step.requests]
    largest = {name: max(row[name] for row in single) for name in single[0]}
    return (largest, *(row for row in single if row != largest))


def _of_request(request: ScheduledRequest) -> dict[str, int]:
    return {
        "num_computed_tokens": request.computed,
        "query_len": request.scheduled,
        "seq_len": request.computed + request.scheduled,
    }


def _totals(requests: Sequence[ScheduledRequest]) -> dict[str, int]:
    decodes = [request for request in requests if _decodes(request)]
    decode_tokens = sum(request.scheduled for request in decodes)
    return {
        "num_decodes": len(decodes),
        "num_decode_tokens": decode_tokens,
        "num_decode_rows": len(decodes) * max((r.scheduled for r in decodes), default=0),
        "num_prefills": len(requests) - len(decodes),
        "num_prefill_tokens": sum(r.scheduled for r in requests) - decode_tokens,
        "total_seq_len": sum(r.computed + r.scheduled for r in requests),
    }


def _decodes(request: ScheduledRequest) -> bool:
    return request.computed > 0 and request.scheduled <= 1 + request.draft


def reaches(
    formula: Expression,
    request: Request,
    ends: Mapping[str, int],
    *,
    monotone: bool = True,
    fits: Callable[[Mapping[str, int]], bool] = lambda _: True,
) -> bool:
    """True where `formula` is the bytes of `request` for some values of its drivers that `fits`
    takes.

    `ends` are the drivers' limits. A real step narrows them to what the scheduler gave; a
    dummy step (profiling, capture) may have had any. `monotone`: the formula rises in each
    driver, so that the last one is found by bisection.
    """
    every = _spans(request, ends, first=0 if monotone else 1)
    return any(_reachable(formula, spans, request.bytes, monotone, fits) for spans in every)


def _spans(request: Request, ends: Mapping[str, int], first: int) -> list[dict[str, range]]:
    """The values of each driver that the step allows, one dict a request it may have served."""
    whole = {name: range(first, end + 1) for name, end in ends.items()}
    spans = [
        {name: _span(name, row, span) for name, span in whole.items()}
        for row in scheduled_rows(request)
    ]
    return spans or [whole]


def _span(name: str, row: Mapping[str, int], whole: range) -> range:
    if name not in row:
        return whole
    low = row[name]
    return (
        range(low, min(low + 1, whole.stop))
        if name in _EXACT_ROLES
        else range(max(low, whole.start), whole.stop)
    )


def _reachable(
    formula: Expression,
    spans: Mapping[str, range],
    size: int,
    monotone: bool,
    fits: Callable[[Mapping[str, int]], bool],
) -> bool:
    names = sorted(spans, key=lambda name: len(spans[name]))
    outer = names[:-1] if monotone else names
    points = 1
    for name in outer:
        points *= len(spans[name])
    if points > _MOST_POINTS:
        return False
    for values in product(*(spans[name] for name in outer)):
        fixed = dict(zip(outer, values, strict=True))
        met = _meeting(formula, fixed, names[len(outer) :], spans, size)
        if met is not None and fits(met):
            return True
    return False


def _meeting(
    formula: Expression,
    fixed: dict[str, int],
    rest: Sequence[str],
    spans: Mapping[str, range],
    size: int,
) -> dict[str, int] | None:
    """The values that give `size`: with all but one driver fixed, the last is searched by
    bisection, since the rule rises in it. Where several do, its buffers are the same in all."""
    if not rest:
        return fixed if formula.evaluate(fixed) == size else None
    span = spans[rest[0]]
    low, high = 0, len(span)
    while low < high:
        middle = (low + high) // 2
        tried = {**fixed, rest[0]: span[middle]}
        value = formula.evaluate(tried)
        if value == size:
            return tried
        low, high = (middle + 1, high) if value < size else (low, middle)
    return None
