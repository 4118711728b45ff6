"""The second way to a bound: the formula that was read from the caller's source.

It is proved only when every request carries a closed formula whose leaves are constants or
drivers bound by source, gives its bytes exactly, and stays within the drivers' limits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wstrace.bounds.bound import Bound, CallerWay, Goal, worst_case
from wstrace.bounds.evidence import Refusal, Site, scheduled_rows, told
from wstrace.bounds.limits import joint_limits
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.expr.tree import numbered, unnumbered
from wstrace.reserve.schema import Grade
from wstrace.trace.records import Leaf, Provenance, Request
from wstrace.trace.site_key import SiteKey
from wstrace.vllm.limits import LIMIT_NAMES, NUMBERS
from wstrace.vllm.roles import ROLES

_ALIASES: Final = {coded: row.name for row in NUMBERS.values() for coded in row.coded}


_Way = tuple[tuple[str, ...], tuple[str, ...]]
"""Callers and types of a provenance: a formula holds for requests on the same way."""
_ASSUMED: Final = "assumed constant"
"""How the slicer's `why` of a dimension begins that nothing in the source fixes."""


@dataclass
class _Merged:
    """What the requests of a site agree on: constants by name, drivers by variable.

    A constant is one within its way only. Where two ways give a name two values, the second
    has another name in the formula of the site.
    """

    formulas: dict[str, dict[_Way, int]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    names: dict[tuple[_Way, str], str] = field(default_factory=dict)
    drivers: dict[str, str] = field(default_factory=dict)
    seen: list[dict[str, int]] = field(default_factory=list)
    assumed: dict[str, set[tuple[object, ...]]] = field(default_factory=dict)

    def constant(self, way: _Way, leaf: Leaf) -> str:
        """The name of a constant in the site's formula; '' where its way had another value."""
        wanted, value = _constant_name(leaf), leaf.value or 0
        held = self.names.get((way, wanted))
        if held is not None:
            return held if self.constants[held] == value else ""
        name, number = wanted, 1
        while self.constants.get(name, value) != value:
            number += 1
            name = f"{wanted}_{number}"
        self.names[way, wanted] = name
        self.constants[name] = value
        return name

    def unheld(self) -> tuple[str, ...]:
        """Dimensions assumed constant that only one kind of request has shown."""
        return tuple(sorted(name for name, rows in self.assumed.items() if len(rows) < 2))


def by_source(site: Site) -> Bound | Refusal:
    """The worst case of the source's formula; over several branches, the largest."""
    if not any(request.provenance is not None for request in site.requests):
        return Refusal("no source was read" if site.requests else "")
    merged = _Merged()
    for request in site.requests:
        why = _refused(request, site) or _merge(request, site, merged)
        if why:
            return Refusal(why)
    return _maximised(site, merged)


def _refused(request: Request, site: Site) -> str | None:
    """Why the source proves nothing about this request; None where it explains it."""
    provenance = request.provenance
    if provenance is None:
        return f"no source was read for {told(request)}"
    if provenance.formula is None or provenance.stopped:
        return f"the source could not be followed: {provenance.stopped or 'no formula'}"
    for leaf in provenance.leaves:
        why = _leaf_refused(leaf, request, site)
        if why:
            return why
    return _wrong(provenance, request)


def _leaf_refused(leaf: Leaf, request: Request, site: Site) -> str | None:
    if leaf.kind == "unbound":
        return f"{leaf.name} is not bound to a scheduler quantity: {leaf.why or leaf.where}"
    if leaf.value is None:
        return f"the value of {leaf.name} was not read for {told(request)}"
    if leaf.kind == "constant":
        return None
    limit = site.roles.get(leaf.role or "")
    if limit is None:
        return f"{leaf.name} has no scheduler quantity with a limit"
    if limit.maximum is not None and leaf.value > limit.maximum:
        return f"{leaf.role} was {leaf.value}, above its limit {limit.expression}"
    return _contradiction(leaf, request)


def _contradiction(leaf: Leaf, request: Request) -> str | None:
    """A driver larger than what the scheduler gave this step is not that driver."""
    if leaf.role not in ("num_computed_tokens", "num_scheduled_tokens"):
        return None
    seen = [row[leaf.role] for row in scheduled_rows(request) if leaf.role in row]
    if seen and leaf.value is not None and leaf.value > max(seen):
        return f"{leaf.role} was {leaf.value} where the step scheduled {max(seen)}"
    return None


def _wrong(provenance: Provenance, request: Request) -> str | None:
    """Why the formula (or each arm of a condition) does not give the request's bytes."""
    values = {leaf.name: leaf.value for leaf in provenance.leaves if leaf.value is not None}
    given: set[int] = set()
    for text in provenance.arms or [provenance.formula or ""]:
        try:
            given.add(expression.parse(text).evaluate(values))
        except WstraceError as error:
            return f"the source's formula fails for {told(request)}: {error.message}"
    if request.bytes in given:
        return None
    return f"the source's formula gives {max(given):,} for {told(request)}"


def _merge(request: Request, site: Site, merged: _Merged) -> str | None:
    assert request.provenance is not None
    leaves = request.provenance.leaves
    drivers = _variables([leaf for leaf in leaves if leaf.kind == "driver"])
    renamed = {**drivers, **_bound_constants(leaves, site)}
    formula = expression.parse(request.provenance.formula or "").substitute(renamed)
    way = (tuple(request.provenance.callers), tuple(request.provenance.types))
    roles = {leaf.name: leaf.role or "" for leaf in leaves}
    merged.drivers |= {variable: roles[name] for name, variable in drivers.items()}
    values = {leaf.name: leaf.value or 0 for leaf in leaves}
    row = {variable: values[name] for name, variable in drivers.items()}
    merged.seen.append(row)
    named = {}
    for leaf in leaves:
        if leaf.kind != "constant" or leaf.name in renamed:
            continue
        named[leaf.name] = name = merged.constant(way, leaf)
        if not name:
            before = merged.constants[merged.names[way, _constant_name(leaf)]]
            return f"{leaf.name} was {before} and {leaf.value}: it is no constant"
        if leaf.why.startswith(_ASSUMED):
            merged.assumed.setdefault(name, set()).add(_kind_of_request(request, row))
    asked = merged.formulas.setdefault(str(formula.substitute(named)), {})
    asked[way] = max(request.bytes, asked.get(way, 0))
    return None


def _kind_of_request(request: Request, row: dict[str, int]) -> tuple[object, ...]:
    """What tells two requests apart: their drivers, or the step where there are none."""
    tokens = request.step.total_tokens if request.step is not None and not row else None
    return (tokens, *sorted(row.items()))


def _variables(drivers: Sequence[Leaf]) -> dict[str, str]:
    """Leaf name to variable: the role, numbered where one role has several quantities."""
    names: dict[str, str] = {}
    for leaf in sorted(drivers, key=lambda leaf: leaf.name):
        role = leaf.role or leaf.name
        taken = sum(role in (other, unnumbered(other)) for other in names.values())
        names[leaf.name] = role if not taken else numbered(role, taken + 1)
    return names


def _bound_constants(leaves: Sequence[Leaf], site: Site) -> dict[str, str]:
    """Constants that are a limit of the config: same name and same value."""
    bound = {}
    for leaf in leaves:
        # matches: "self.num_kv_heads"
        words = [re.findall(r"\w+", text)[-1:] for text in (leaf.source, leaf.name)]
        names = [word[0].removeprefix("self_").removeprefix("_") for word in words if word]
        for name in (_ALIASES.get(name, name) for name in names):
            if leaf.kind == "constant" and site.numbers.get(name, None) == leaf.value:
                bound[leaf.name] = name
    return bound


def _constant_name(leaf: Leaf) -> str:
    """A constant may share its name, but not its value, with a limit or a driver."""
    taken = leaf.name in LIMIT_NAMES or leaf.name in ROLES
    return f"{leaf.name}_here" if taken else leaf.name


def _held(joint: str, site: Site, seen: Sequence[dict[str, int]]) -> bool:
    """A joint limit that one request broke (padding can) is no limit of this site."""
    limit = expression.parse(joint)
    rows = ({**site.numbers, **row} for row in seen)
    return all(limit.evaluate(row) <= 0 for row in rows if limit.names <= row.keys())


def _maximised(site: Site, merged: _Merged) -> Bound | Refusal:
    texts = sorted(merged.formulas)  # not in the order of traffic
    text = texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"
    limits = {name: site.roles[role] for name, role in merged.drivers.items()}
    needs = tuple(dict.fromkeys(name for limit in limits.values() for name in limit.needs))
    if needs:
        return Refusal(f"the limit of a driver needs {', '.join(needs)}", needs)
    joint = tuple(t for t in joint_limits(limits, site.limits) if _held(t, site, merged.seen))
    why = "read from the source; gives every request seen to the byte"
    fixed = [f"{name} = {value}" for name, value in merged.constants.items()]
    if fixed:
        why += f" (read once: {', '.join(fixed)})"
    unheld, unseen = merged.unheld(), _unseen(site.requests)
    if unheld:
        # One request cannot tell a constant from a number that happened to have this value.
        why += f"; not proved: only one kind of request shows {', '.join(unheld)}"
    if unseen:
        why += f"; not proved: no request came by the call at {unseen[0]}"
    grade: Grade = "fitted" if unheld or unseen else "proved"
    try:
        goal = Goal(text, limits, merged.constants, joint)
        found = worst_case(goal, site.numbers, grade, why)
        return replace(found, assumed=unheld, ways=_ways(merged, goal, site))
    except WstraceError as error:
        return Refusal(f"the source's formula has no worst case: {error.message}")


def _unseen(requests: Sequence[Request]) -> tuple[str, ...]:
    """Calls of a function on the way that no request came by: each request names all but its
    own, so that what every one of them names was never made."""
    named: dict[str, set[str]] = {}
    for request in requests:
        mine: dict[str, set[str]] = {}
        for other in request.provenance.others if request.provenance else ():
            mine.setdefault(SiteKey.called(other).function, set()).add(other)
        for function, calls in mine.items():
            named[function] = named.get(function, calls) & calls
    return tuple(sorted(set().union(*named.values())))


def _alone(goal: Goal, text: str, site: Site) -> Goal:
    """One way's formula, under the limits of its own drivers."""
    names = expression.parse(text).names
    drivers = {name: limit for name, limit in goal.drivers.items() if name in names}
    known = drivers.keys() | site.numbers.keys()
    joint = tuple(j for j in goal.joint if expression.parse(j).names <= known)
    return Goal(text, drivers, goal.constants, joint)


def _ways(merged: _Merged, goal: Goal, site: Site) -> tuple[CallerWay, ...]:
    """Each way with its own maximum, the largest first; () where there is one."""
    if len({way for asked in merged.formulas.values() for way in asked}) < 2:
        return ()
    found: list[CallerWay] = []
    for text, asked in merged.formulas.items():
        bound = worst_case(_alone(goal, text, site), site.numbers, "proved", "")
        formula, size = bound.formula or text, bound.bytes or 0
        found += [CallerWay(*way, formula, size, seen) for way, seen in asked.items()]
    return tuple(sorted(found, key=lambda way: (-way.bytes, way.callers, way.types)))
