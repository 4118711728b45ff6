"""The first way to a bound: a known site's rule that reproduces every request."""

from __future__ import annotations

from collections.abc import Mapping

from wstrace.bounds.evidence import Refusal, Site, told
from wstrace.bounds.reachable import reaches
from wstrace.bounds.worst import Worst
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.expr.expression import Expression
from wstrace.known_sites import known
from wstrace.known_sites.known import KnownSite
from wstrace.trace.records import Ask


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
    monotone = rule.variant.monotone or len(rule.requests) > 1
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
    """True where one of the function's calls gives the bytes for values its step allows."""
    return any(_gives(call, rule, ask, site, assumed) for call in rule.requests)


def _gives(
    call: str, rule: KnownSite, ask: Ask, site: Site, assumed: Mapping[str, Expression]
) -> bool:
    request = expression.parse(call).substitute(assumed)
    try:
        ends = {
            name: expression.parse(text).substitute(assumed).evaluate(site.numbers)
            for name, text in rule.drivers.items()
            if name in request.names
        }
        request = request.substitute(
            {name: site.numbers[name] for name in request.names - ends.keys()}
        )
        return reaches(request, ask, ends, monotone=rule.variant.monotone)
    except (WstraceError, KeyError):
        return False
