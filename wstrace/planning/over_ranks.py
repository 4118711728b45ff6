"""One bound for ranks of several bounds: the maximum of their formulas.

The largest under today's limits need not be the largest under others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wstrace.bounds.bound import Bound, reserve_of
from wstrace.expr.expression import FormulaError, parse
from wstrace.reserve.evaluate import numeric
from wstrace.reserve.schema import GRADES
from wstrace.trace.records import Limit
from wstrace.vllm.limits import LAYOUT_NAMES

NOT_JOINED: Final = "other ranks' formulas are too long to stand beside it"


@dataclass(frozen=True)
class _Part:
    """A formula with the quantities that vary, as a reserve's site has them."""

    formula: str
    drivers: dict[str, str] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)
    joint: tuple[str, ...] = ()

    def with_names(self, names: Mapping[str, int | str]) -> _Part:
        """The part with names of limits, constants or drivers replaced."""
        return _Part(
            str(parse(self.formula).substitute(names)),
            {
                str(names.get(n, n)): str(parse(limit).substitute(names))
                for n, limit in self.drivers.items()
            },
            {str(names.get(n, n)): low for n, low in self.lowest.items()},
            tuple(str(parse(text).substitute(names)) for text in self.joint),
        )


def over_ranks(
    ranks: Sequence[tuple[Mapping[str, Limit], Bound]], recorded: Mapping[str, Limit]
) -> Bound:
    """The worst rank's bound, with the maximum of all ranks' formulas where these differ.

    `ranks` are the limits and the bound of each, `recorded` the limits that the formulas are
    computed under: a rank's own number of the layout (its heads, its sizes) that is another
    stands in its formula.
    """
    worst = max((bound for _, bound in ranks), key=lambda b: b.bytes or 0)
    if not _follows(worst):
        return worst
    theirs = numeric(recorded)
    different: dict[object, tuple[Bound, dict[str, int]]] = {}
    for limits, bound in sorted(ranks, key=lambda pair: pair[1] is not worst):
        own = _own_numbers(limits, theirs)
        different.setdefault((id(bound), *own.items()), (bound, own))
    told = [pair for pair in different.values() if _follows(pair[0])]
    alike = {repr((_part(bound), bound.constants, own)) for bound, own in told}
    return _maximum(worst, told) if len(alike) > 1 or told[0][1] else worst


def _follows(bound: Bound) -> bool:
    return bound.grade != "observed" and bool(reserve_of(bound).formula)


def _own_numbers(limits: Mapping[str, Limit], theirs: Mapping[str, int]) -> dict[str, int]:
    """Numbers of the layout that a rank has otherwise: no what-if changes them."""
    own = numeric(limits)
    return {n: own[n] for n in LAYOUT_NAMES if n in own and own[n] != theirs.get(n)}


def _maximum(worst: Bound, ranks: Sequence[tuple[Bound, dict[str, int]]]) -> Bound:
    bounds = [bound for bound, _ in ranks]
    fixed = any(bound.constants != worst.constants for bound in bounds)
    names = [{**own, **(b.constants if fixed else {})} for b, own in ranks]
    closed = all(bound.closed for bound in bounds)
    parts = [_part(b).with_names(n) for b, n in zip(bounds, names, strict=True)]
    whole = [parse(b.formula or "0").substitute(n) for b, n in zip(bounds, names, strict=True)]
    made = _joined(parts)
    formula = _max([str(text) for text in whole])
    if not (_is_readable(made.formula) and _is_readable(formula)):
        return replace(worst, why=f"{worst.why}; {NOT_JOINED}")
    if closed:  # one request's formula stands beside the worst case's
        made = _joined([_request(b).with_names(n) for b, n in zip(bounds, names, strict=True)])
    known = {bound.known_site for bound in bounds}
    return replace(
        worst,
        grade=max((bound.grade for bound in bounds), key=GRADES.index),
        formula=formula,
        driver_formula=made.formula,
        constants={} if fixed else worst.constants,
        drivers=made.drivers,
        lowest=made.lowest,
        joint=made.joint,
        closed=closed,
        known_site=worst.known_site if len(known) == 1 else None,
        assumed=tuple(dict.fromkeys(word for bound in bounds for word in bound.assumed)),
    )


def _part(bound: Bound) -> _Part:
    """What a reserve has of it."""
    made = reserve_of(bound)
    return _Part(made.formula or "0", made.drivers, made.lowest, tuple(made.joint))


def _request(bound: Bound) -> _Part:
    text = bound.driver_formula or bound.formula or "0"
    return _Part(text, bound.drivers, bound.lowest, bound.joint)


def _joined(parts: Sequence[_Part]) -> _Part:
    """The maximum of several. A quantity that two of them have is one where it has the same
    range in both, and the same limits bind it; else each has its own name."""
    drivers: dict[str, str] = {}
    lowest: dict[str, int] = {}
    joint: list[str] = []
    texts: list[str] = []
    for number, part in enumerate(parts, 1):
        clash = any(
            (drivers[n], lowest.get(n, 0)) != (part.drivers[n], part.lowest.get(n, 0))
            for n in part.drivers.keys() & drivers.keys()
        )
        if clash or (texts and set(part.joint) != set(joint)):
            part = part.with_names({name: f"{name}_{number}" for name in part.drivers})
        drivers |= part.drivers
        lowest |= part.lowest
        joint += [text for text in part.joint if text not in joint]
        texts.append(part.formula)
    return _Part(_max(texts), drivers, lowest, tuple(joint))


def _is_readable(text: str) -> bool:
    """Whether it is short and flat enough for whoever reads the reserve."""
    try:
        parse(text)
    except FormulaError:
        return False
    return True


def _max(texts: Sequence[str]) -> str:
    different = list(dict.fromkeys(texts))
    return f"max({', '.join(different)})" if len(different) > 1 else different[0]
