"""A known site's rule: its worst case in numbers, and the first way to a bound.

`rule_bound` is the one place where a rule meets the numbers of a config, a log or a person,
and where vLLM's defaults fill in for the numbers that nobody gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from wstrace.bounds.bound import Bound
from wstrace.bounds.buffers import same_buffers
from wstrace.bounds.evidence import Refusal, Site, reaches, told
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.expr.expression import Expression
from wstrace.expr.maximum import maximise
from wstrace.known_sites import known
from wstrace.known_sites.known import KnownSite
from wstrace.trace.records import Request
from wstrace.vllm.dispatch import is_read
from wstrace.vllm.limits import LIMIT_NAMES

RULE_ALONE = "rule, not confirmed by a trace"
"""The grade of a rule's answer where no request was held against it."""


def by_rule(site: Site) -> Bound | Refusal:
    """The worst case by the rule of a known site; the largest where alternatives hold.

    Requests of experts that a rule names are held against that rule alone, and every kind of
    experts that asked needs one: sizes that happen to fit another rule prove nothing.
    """
    rules = known.matches(site.file, site.function, site.vllm_version)
    rules = tuple(rule for rule in rules if rule.kind == "arena")
    asked: dict[str, list[Request]] = {}
    for request in site.requests:
        asked.setdefault(_experts(request, rules), []).append(request)
    found = [_by_identity(replace(site, requests=tuple(a)), rules, e) for e, a in asked.items()]
    refused = next((result for result in found if isinstance(result, Refusal)), None)
    if refused is not None:
        return refused
    bounds = [bound for bound in found if isinstance(bound, Bound)]
    if not bounds:
        return _by_identity(site, rules, "")
    return max(bounds, key=lambda bound: bound.bytes or 0)


def _experts(request: Request, rules: Sequence[KnownSite]) -> str:
    """The class of experts that asked, as rules name it: of a class and its bases the first
    that a rule knows, else the class; "" where the trace does not say. Experts may ask by
    themselves (Humming's): then they are the caller."""
    named = {name for rule in rules for name in rule.experts}
    classes = request.classes.get("fused_experts", [])
    known = [name for name in (*classes, *request.classes.get("caller", [])) if name in named]
    return next(iter((*known, *classes)), "")


def _by_identity(site: Site, rules: Sequence[KnownSite], experts: str) -> Bound | Refusal:
    chosen = [
        rule for rule in rules if (experts in rule.experts if experts else not rule.by_class)
    ]
    if rules and not chosen:
        named = f"no rule is for the experts {experts}"
        return Refusal(named if experts else "no rule is for a request that names no class")
    results = [_try(rule, site) for rule in chosen]
    held = [result for result in results if isinstance(result, Bound)]
    if held:
        return max(held, key=lambda bound: bound.bytes or 0)
    refusal = next((r for r in results if isinstance(r, Refusal)), Refusal(""))
    return replace(refusal, refuted="") if _given_by_some(site, chosen) else refusal


def _given_by_some(site: Site, rules: Sequence[KnownSite]) -> bool:
    """Whether each request is what one of these rules gives: a function that asks several
    times (a builder, for a decode and a prefill) has a rule for each, and none is wrong."""
    calls = [
        call for rule in rules for call in _calls(rule, site, _defaults(rule, site.numbers))
    ]
    return all(_reproduced(request, calls) for request in site.requests)


def by_base(site: Site) -> Bound | Refusal:
    """The worst case by the rule of a class that the caller inherits from: a class of a plugin
    or a model, in a file that no rule knows, with a method of the same name.

    Its code was not read, so that a rule which gives every buffer of every request is fitted,
    not proved.
    """
    rules = _of_bases(site)
    for rule in rules:
        found = _try(rule, site)
        if isinstance(found, Bound):
            return replace(found, grade="fitted", why=f"{found.why}; its own code was not read")
    return Refusal("")


def _of_bases(site: Site) -> list[KnownSite]:
    own, _, method = site.function.rpartition(".")
    if not own or not site.requests or not all(request.specs for request in site.requests):
        return []
    chains = [set(request.classes.get("caller", [])) for request in site.requests]
    bases = set.intersection(*chains) - {own}
    return [
        msgspec.structs.replace(
            rule.at(site.vllm_version), found_by=f"found by its base class {base}"
        )
        for base in sorted(bases)
        for rule in known.known_sites()
        if rule.kind == "arena" and f"{base}.{method}" in rule.functions
    ]


def outside(rule: KnownSite, numbers: Mapping[str, int]) -> str:
    """Where these numbers are outside what the rule was read for, the words for it."""
    filled = {**numbers, **_values(_filled(rule, (c.zero for c in rule.valid_when), numbers))}
    for condition in rule.valid_when:
        text = expression.parse(condition.zero)
        if text.names <= filled.keys() and text.evaluate(filled) > 0:
            return f"the rule {rule.id} holds only {condition.when}"
    return ""


def with_defaults(rule: KnownSite, numbers: Mapping[str, int]) -> dict[str, int]:
    """`numbers` and vLLM's own values for what the rule's formulas lack, as far as known."""
    defaults = _filled(rule, (rule.formula, *rule.requests), numbers)
    known = {n: t.evaluate(numbers) for n, t in defaults.items() if t.names <= numbers.keys()}
    return {**numbers, **known}


def _values(defaults: Mapping[str, Expression]) -> dict[str, int]:
    return {name: text.evaluate({}) for name, text in defaults.items() if not text.names}


def rule_bound(rule: KnownSite, numbers: Mapping[str, int]) -> Bound:
    """The worst case of `rule` where the config's numbers are `numbers`, in bytes.

    A number that is missing and has no default in vLLM's code is named in `needs`; numbers
    that the rule was not read for are told in `contradiction`. Where
    the largest request is not at the drivers' limits, every value up to them is counted.
    `formula` and `drivers` follow the limits of a config; a number that no config has, given
    or a default, stands in `constants`, and as it is in the limits of drivers.
    """
    defaults = _defaults(rule, numbers)
    needs = _missing(rule, numbers, defaults)
    bound = Bound(
        grade="proved",
        formula=rule.formula,
        needs=needs,
        lever={"flag": rule.lever.flag, "effect": rule.lever.effect},
        known_site=rule.id,
        assumed=_assumed(rule, numbers, defaults),
        contradiction=outside(rule, numbers),
    )
    if needs or bound.contradiction:
        return bound
    filled = {**numbers, **{n: text.evaluate(numbers) for n, text in defaults.items()}}
    fixed = {name: value for name, value in filled.items() if name not in LIMIT_NAMES}
    closed = rule.variant.monotone or len(rule.requests) > 1 or not rule.request_formula
    total = expression.parse(rule.formula).evaluate(filled)
    if not rule.variant.monotone:
        total = _largest(rule, filled)
    request = rule.request_formula or rule.formula
    used = expression.parse(rule.formula).names | expression.parse(request).names
    return replace(
        bound,
        bytes=total,
        driver_formula=request,
        constants={name: fixed[name] for name in sorted(used & fixed.keys())},
        drivers={n: str(_with(text, fixed)) for n, text in rule.drivers.items()},
        lowest={} if closed else dict.fromkeys(rule.drivers, 1),
        closed=closed,
    )


def _missing(
    rule: KnownSite, numbers: Mapping[str, int], defaults: Mapping[str, Expression]
) -> tuple[str, ...]:
    """The names of the worst case that nobody gave, those of vLLM's defaults included."""
    used = _with(rule.formula, defaults).names
    return tuple(sorted(used - numbers.keys()))


def _assumed(
    rule: KnownSite, numbers: Mapping[str, int], defaults: Mapping[str, Expression]
) -> tuple[str, ...]:
    return tuple(
        f"{name} = {text.evaluate(numbers)} ({rule.vocabulary[name].why})"
        for name, text in defaults.items()
        if text.names <= numbers.keys()
    )


def _defaults(rule: KnownSite, numbers: Mapping[str, int]) -> dict[str, Expression]:
    """vLLM's own values for the names that nobody gave, in terms of the numbers given."""
    return _filled(rule, (rule.formula,), numbers)


def _filled(
    rule: KnownSite, texts: Iterable[str], numbers: Mapping[str, int]
) -> dict[str, Expression]:
    """The defaults of the names in `texts`, and of those in the defaults themselves."""
    found: dict[str, Expression] = {}

    def fill(name: str) -> None:
        row = rule.vocabulary.get(name)
        if name in numbers or name in found or row is None or row.default is None:
            return
        if name in rule.no_default:
            return
        text = expression.parse(str(row.default))
        for behind in sorted(text.names):
            fill(behind)
        found[name] = text.substitute(dict(found))

    for text in texts:
        for name in sorted(expression.parse(text).names):
            fill(name)
    return found


def _with(text: str, values: Mapping[str, Expression] | Mapping[str, int]) -> Expression:
    return expression.parse(text).substitute(dict(values))


def _largest(rule: KnownSite, filled: Mapping[str, int]) -> int:
    limits = {role: expression.parse(t).evaluate(filled) for role, t in rule.drivers.items()}
    ranges = {role: (1, max(1, limit)) for role, limit in limits.items()}
    return maximise(expression.parse(rule.request_formula), filled, ranges).value


def _try(rule: KnownSite, site: Site) -> Bound | Refusal:
    bound = rule_bound(rule, {**site.numbers, **_dispatch(site)})
    if bound.contradiction:
        return Refusal(bound.contradiction, known_site=rule.id, lever=bound.lever)
    if bound.bytes is None:
        needs = ", ".join(bound.needs)
        return Refusal(f"the rule {rule.id} needs {needs}", bound.needs, rule.id, bound.lever)
    defaults = _defaults(rule, site.numbers)
    calls = _calls(rule, site, defaults)
    failed = next(
        (request for request in site.requests if not _reproduced(request, calls)), None
    )
    if failed is not None:
        why = f"the rule {rule.id} does not give {told(failed)}"
        above = max(site.requests, key=lambda request: request.bytes)
        more = f"; {above.bytes:,} bytes are above its most, {bound.bytes:,}"
        told_all = why + (more if above.bytes > bound.bytes else "")
        return Refusal(why, known_site=rule.id, lever=bound.lever, refuted=told_all)
    return _of_config(bound, rule, defaults)


def _dispatch(site: Site) -> dict[str, int]:
    """Whether tokens came to their experts by a way that no rule's rows were read for."""
    ways = [request.classes.get("prepare_finalize", []) for request in site.requests] or [[]]
    return {"unread_dispatch": int(not all(is_read(site.limits, way) for way in ways))}


def _of_config(bound: Bound, rule: KnownSite, defaults: Mapping[str, Expression]) -> Bound:
    """The bound over what the engine's own config has: its absent names will be absent later
    too, so that their defaults are part of the formulas."""
    request = _with(bound.driver_formula or rule.formula, defaults)
    return replace(
        bound,
        formula=str(_with(rule.formula, defaults) if bound.closed else request),
        driver_formula=str(request),
        constants={},
        drivers={name: str(_with(limit, defaults)) for name, limit in rule.drivers.items()},
        why="; ".join(
            [
                f"the rule {rule.id} gives every request seen",
                *filter(None, [rule.found_by]),
                *bound.assumed,
            ]
        ),
    )


@dataclass(frozen=True)
class _Call:
    """One of a function's calls under the limits of a config: its bytes over drivers alone and
    over all names, and how large each driver can be."""

    request: Expression
    whole: Expression
    ends: dict[str, int]
    numbers: Mapping[str, int]
    monotone: bool

    def gives(self, request: Request) -> bool:
        """True where it gives the bytes, buffer for buffer, for values that the step allows."""
        try:
            return reaches(
                self.request,
                request,
                self.ends,
                monotone=self.monotone,
                fits=lambda drivers: same_buffers(
                    self.whole, {**self.numbers, **drivers}, request
                ),
            )
        except (WstraceError, KeyError):
            return False


def _reproduced(request: Request, calls: Sequence[_Call]) -> bool:
    """True where one of the calls gives the request."""
    return any(call.gives(request) for call in calls)


def _calls(rule: KnownSite, site: Site, defaults: Mapping[str, Expression]) -> list[_Call]:
    """The function's calls; one whose limits are missing or fail gives no request."""
    made = []
    for text in rule.requests:
        whole = _with(text, defaults)
        with suppress(WstraceError, KeyError):
            ends = {
                name: _with(limit, defaults).evaluate(site.numbers)
                for name, limit in rule.drivers.items()
                if name in whole.names
            }
            fixed = {name: site.numbers[name] for name in whole.names - ends.keys()}
            request = whole.substitute(fixed)
            made.append(_Call(request, whole, ends, site.numbers, rule.variant.monotone))
    return made
