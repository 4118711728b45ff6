"""Whether a formula can give one request's bytes for values that its step allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from wstrace.bounds.evidence import scheduled_rows
from wstrace.expr.expression import Expression
from wstrace.trace.records import Ask

_MOST_POINTS: Final = 200_000
_EXACT_ROLES: Final = frozenset(
    ("num_computed_tokens", "seq_len", "query_len", "num_scheduled_tokens")
)
"""Roles whose value a real step fixes; the others may have been padded above it."""


def reaches(
    request: Expression, ask: Ask, ends: Mapping[str, int], *, monotone: bool = True
) -> bool:
    """True where `request` is the bytes of `ask` for some values of its drivers.

    `ends` are the drivers' limits. A real step narrows them to what the scheduler gave; a
    dummy step (profiling, capture) may have had any. `monotone`: the formula rises in each
    driver, so that the last one is found by bisection.
    """
    every = _spans(ask, ends, first=0 if monotone else 1)
    return any(_reachable(request, spans, ask.bytes, monotone) for spans in every)


def _spans(ask: Ask, ends: Mapping[str, int], first: int) -> list[dict[str, range]]:
    """The values of each driver that the step allows, one dict a request it may have served."""
    whole = {name: range(first, end + 1) for name, end in ends.items()}
    spans = [
        {name: _span(name, row, span) for name, span in whole.items()}
        for row in scheduled_rows(ask)
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
    request: Expression, spans: Mapping[str, range], size: int, monotone: bool
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
        if _meets(request, fixed, names[len(outer) :], spans, size):
            return True
    return False


def _meets(
    request: Expression,
    fixed: dict[str, int],
    rest: Sequence[str],
    spans: Mapping[str, range],
    size: int,
) -> bool:
    """With all but one driver fixed, search the last by bisection: the rule rises in it."""
    if not rest:
        return request.evaluate(fixed) == size
    span = spans[rest[0]]
    low, high = 0, len(span)
    while low < high:
        middle = (low + high) // 2
        value = request.evaluate({**fixed, rest[0]: span[middle]})
        if value == size:
            return True
        low, high = (middle + 1, high) if value < size else (low, middle)
    return False
