"""The first way to a bound: a known site's rule that reproduces every request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from wstrace.bounds import known
from wstrace.bounds.evidence import Refusal, Site, scheduled_rows, told
from wstrace.bounds.known import KnownSite
from wstrace.bounds.worst import Worst
from wstrace.errors import WstraceError
from wstrace.formula import expression
from wstrace.formula.expression import Expression
from wstrace.trace.records import Ask

_MOST_POINTS: Final = 200_000
_EXACT_ROLES: Final = frozenset(
    ("num_computed_tokens", "seq_len", "query_len", "num_scheduled_tokens")
)
"""Roles whose value a step fixes; the others may have been padded above it."""


def by_rule(site: Site) -> Worst | Refusal:
    """The worst case by the rule of a known site; the largest where alternatives hold."""
    rules = known.matches(site.file, site.function, site.vllm_version)
    results = [_try(rule, site) for rule in rules if rule.kind == "arena"]
    held = [result for result in results if isinstance(result, Worst)]
    if held:
        return max(held, key=lambda worst: worst.bytes)
    return next((r for r in results if isinstance(r, Refusal)), Refusal(""))


def _try(rule: KnownSite, site: Site) -> Worst | Refusal:
    case = known.evaluate(rule, site.numbers)
    lever = {"flag": rule.lever.flag, "effect": rule.lever.effect}
    if case.bytes is None:
        needs = ", ".join(case.needs)
        return Refusal(f"the rule {rule.id} needs {needs}", case.needs, rule.id, lever)
    assumed = _defaults(rule, site)
    failed = next((a for a in site.asks if not _reproduces(rule, a, site, assumed)), None)
    if failed is not None:
        why = f"the rule {rule.id} does not give {told(failed)}"
        return Refusal(why, known_site=rule.id, lever=lever)
    request = expression.parse(rule.request_formula or case.formula).substitute(assumed)
    closed = expression.parse(case.formula).substitute(assumed)
    monotone = rule.variant.monotone
    return Worst(
        bytes=case.bytes,
        formula=str(closed if monotone else request),
        driver_formula=str(request),
        constants={},
        drivers={
            name: str(expression.parse(limit).substitute(assumed))
            for name, limit in rule.drivers.items()
        },
        lowest={} if monotone else dict.fromkeys(rule.drivers, 1),
        joint=(),
        at={},
        why="; ".join([f"the rule {rule.id} gives every request seen", *case.assumed]),
        lever=lever,
        known_site=rule.id,
        closed=monotone,
    )


def _defaults(rule: KnownSite, site: Site) -> dict[str, Expression]:
    """vLLM's own values for the names that the config does not give, in terms of the rest."""
    found: dict[str, Expression] = {}
    for name in rule.names:
        if name.name not in site.numbers and name.default is not None:
            found[name.name] = expression.parse(str(name.default)).substitute(found)
    return found


def _reproduces(
    rule: KnownSite, ask: Ask, site: Site, assumed: Mapping[str, Expression]
) -> bool:
    """True where the rule gives the request's bytes for values that its step allows."""
    request = expression.parse(rule.request_formula or rule.formula).substitute(assumed)
    try:
        ends = {
            name: expression.parse(text).substitute(assumed).evaluate(site.numbers)
            for name, text in rule.drivers.items()
            if name in request.names
        }
        request = request.substitute(
            {name: site.numbers[name] for name in request.names - ends.keys()}
        )
        return any(
            _reachable(request, spans, ask.bytes, rule.variant.monotone)
            for spans in _spans(ask, ends, first=0 if rule.variant.monotone else 1)
        )
    except (WstraceError, KeyError):
        return False


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
