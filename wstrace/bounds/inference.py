"""Formulas for sites whose source nobody can read: exact on every observation, or nothing.

Candidates are solved on four fifths of the observations, the smaller ones, and must then
hit every one of the rest, which are the largest: a formula that only interpolates fails.
Where several candidates of the same simplicity fit, the one with the largest worst case
counts. There is no fit where the data cannot decide: another formula of the templates fits
as well and needs more, be it that a quantity stayed within one rounding step (and hides in a
coefficient or a constant), be it that a less simple template reproduces every request too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

from wstrace.bounds.evidence import Row
from wstrace.bounds.hiding import Hidden, hidden
from wstrace.bounds.templates import (
    Factor,
    Larger,
    Line,
    Rounded,
    Template,
    Term,
    solve,
    term_levels,
)
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.expr.maximum import BUDGET, Joint, maximise
from wstrace.vllm.arena import ALIGNMENT

LEAST: Final = 4
"""Distinct observations below which nothing is fitted."""
STEPS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_MOST: Final = 400
_NAMED: Final = 4
_LINKED_BUDGET: Final = 20_000


@dataclass(frozen=True)
class Observation:
    """One request: the values that its drivers may have had, and its size.

    Several rows mean that the trace does not say which request of a step was served.
    """

    rows: tuple[Row, ...]
    size: int


@dataclass(frozen=True)
class Space:
    """What drivers may be: ranges by role, joint limits (<= 0), numbers of the config."""

    ranges: Mapping[str, tuple[int, int]]
    numbers: Mapping[str, int]
    joint: tuple[str, ...] = ()

    def maximum(self, text: str, *, linked: bool = False) -> tuple[int, dict[str, int]]:
        """The largest value of `text` over the space, and where.

        `linked`: under joint limits with quantities outside `text` too, which is slower.
        """
        formula = expression.parse(text)
        joint = [Joint.of(limit, 0) for limit in self.joint]
        names = formula.names & self.ranges.keys()
        if linked:
            near = [j.left.names for j in joint if j.left.names & names]
            names |= set().union(*near) & self.ranges.keys()
        ranges = {name: self.ranges[name] for name in names}
        used = [j for j in joint if j.left.names <= ranges.keys() | self.numbers.keys()]
        budget = _LINKED_BUDGET if linked else BUDGET
        found = maximise(formula, self.numbers, ranges, used, budget)
        return found.value, found.at


@dataclass(frozen=True)
class Fit:
    """A formula that reproduces every observation, and its worst case in the space.

    `others` are the formulas that fit as well; none of them can need more.
    """

    formula: str
    maximum: int
    at: dict[str, int]
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoFit:
    """Why nothing was fitted, and what more observations would help."""

    why: str


@dataclass(frozen=True)
class Undecided(NoFit):
    """A template fits, but so does one that needs more: no other way to fit may be taken."""


def infer(
    observations: Sequence[Observation], space: Space, *, bytes_: bool = True
) -> Fit | NoFit:
    """The formula of `observations` over the quantities of the space.

    `bytes_` False: the sizes are dimensions of a shape, so buffers are not rounded to 256.
    """
    data = _distinct(observations)
    names = _varying(data, space)
    if len({observation.size for observation in data}) < LEAST:
        return NoFit(f"fewer than {LEAST} different sizes were seen")
    if not names:
        return NoFit("no scheduler quantity varied with the size")
    return _fitted(data, _levels(data, names, _steps(space), bytes_), space, names)


def _fitted(
    data: Sequence[Observation],
    levels: Iterator[list[Template]],
    space: Space,
    names: Sequence[str],
) -> Fit | NoFit:
    """The largest of the simplest level that has any; none where a later one needs more."""
    found = next((level for level in levels if level), [])
    found = found or larger(data, names, _steps(space))
    if not found:
        return NoFit("no template reproduces every request")
    undecided = _undecided(found, data, space)
    if undecided is not None:
        return undecided
    fit = _largest(found, space)
    if isinstance(fit, NoFit):
        return fit
    return _rivalled(fit, [t for level in levels for t in level], space)


def _rivalled(fit: Fit, rivals: Sequence[Template], space: Space) -> Fit | NoFit:
    """The fit, unless one of the less simple templates that fit as well needs more."""
    for rival in rivals:
        try:
            needs_more = all(
                space.maximum(rival.text(), linked=linked)[0] > fit.maximum
                for linked in (False, True)
            )
        except WstraceError:
            needs_more = True
        if needs_more:
            text = expression.parse(rival.text())
            return Undecided(f"the requests fit {fit.formula} and {text}, which needs more")
    return fit


def _distinct(observations: Sequence[Observation]) -> list[Observation]:
    seen = {(str(o.rows), o.size): o for o in observations if o.rows}
    data = sorted(seen.values(), key=lambda o: o.size)
    if len(data) <= _MOST:
        return data
    step = len(data) / _MOST
    return [data[int(i * step)] for i in range(_MOST - 1)] + [data[-1]]


def _varying(data: Sequence[Observation], space: Space) -> list[str]:
    shared = [n for n in space.ranges if all(n in row for o in data for row in o.rows)]
    return [n for n in shared if len({o.rows[0][n] for o in data}) > 1]


def _steps(space: Space) -> tuple[int, ...]:
    config = (n for n in space.numbers.values() if 1 < n <= 4096)
    return tuple(sorted({*STEPS, *config}))


def _levels(
    data: Sequence[Observation], names: Sequence[str], steps: Sequence[int], bytes_: bool
) -> Iterator[list[Template]]:
    """The templates that fit, level by level, the simplest level first."""
    rounds = bytes_ and all(o.size % ALIGNMENT == 0 for o in data)
    for level in term_levels(names, steps):
        found: list[Template] = [
            line for terms in level for line in _solved(terms, data) if hits(line, data)
        ]
        if rounds:
            found += [t for terms in level if len(terms) == 1 for t in _rounded(terms, data)]
        yield found


def _train(data: Sequence[Observation]) -> Sequence[Observation]:
    """The smaller four fifths; those of one row, if enough: they leave nothing to guess."""
    plain = [o for o in data if len(o.rows) == 1]
    kept = plain if len(plain) > LEAST else data
    return kept[: max(LEAST - 1, len(kept) * 4 // 5)]


def _solved(terms: tuple[Term, ...], data: Sequence[Observation]) -> Iterator[Line]:
    train = _train(data)
    if len(data) < len(terms) + 3:
        return
    line = solve(terms, [o.rows[0] for o in train], [o.size for o in train])
    if line is not None:
        yield line


def hits(template: Template, data: Sequence[Observation]) -> bool:
    """True where each observation has a row for which the template gives its size."""
    return all(any(template.value(row) == o.size for row in o.rows) for o in data)


def _rounded(terms: tuple[Term, ...], data: Sequence[Observation]) -> Iterator[Rounded]:
    """count * round256(a * term): the largest a that is possible, if the range is narrow."""
    values = [(terms[0].value(o.rows[0]), o.size) for o in _train(data)]
    for count in (1, 2, 3, 4):
        if any(size % (ALIGNMENT * count) for _, size in values):
            continue
        spans = [
            ((s // count - ALIGNMENT) // v + 1, s // count // v) for v, s in values if v > 0
        ]
        low = max((low for low, _ in spans), default=1)
        high = min((high for _, high in spans), default=0)
        if max(low, 1) <= high and high - low <= high // 64:
            template = Rounded(Line(terms, (high,), 0), count)
            if hits(template, data):
                yield template


def larger(
    data: Sequence[Observation], names: Sequence[str], steps: Sequence[int]
) -> list[Template]:
    """max(line, line), each carried by observations of its own; or max(line, constant)."""
    few = [o for o in data if len(o.rows) == 1]
    lines = {line for terms in _single(names, steps) for line in _supported(terms, few)}
    lowest = min(o.size for o in data)
    floor = Line((), (), lowest)
    pairs = [*combinations(sorted(lines, key=Line.text), 2), *((x, floor) for x in lines)]
    return [both for pair in pairs if hits(both := Larger(pair), data)]


def _single(names: Sequence[str], steps: Sequence[int]) -> Iterator[tuple[Term, ...]]:
    return ((Term((Factor(name, step),)),) for name, step in product(names, steps))


def _supported(terms: tuple[Term, ...], data: Sequence[Observation]) -> Iterator[Line]:
    """Lines that no observation lies below and that at least three lie on."""
    points = sorted({(terms[0].value(o.rows[0]), o.size) for o in data})
    for (v1, s1), (v2, s2) in combinations(points[:40] + points[40:][-40:], 2):
        if v1 == v2 or (s2 - s1) % (v2 - v1) or s2 <= s1:
            continue
        slope = (s2 - s1) // (v2 - v1)
        line = Line(terms, (slope,), s1 - slope * v1)
        on = {v for v, s in points if slope * v + line.constant == s}
        if len(on) >= 3 and all(slope * v + line.constant <= s for v, s in points):
            yield line


def _undecided(
    found: Sequence[Template], data: Sequence[Observation], space: Space
) -> Undecided | None:
    """The quantities that may hide in a template that fits, and what would show them."""
    blind: dict[str, Hidden] = {}
    for template in found:
        rows = [[r for r in o.rows if template.value(r) == o.size] for o in data]
        for quantity in hidden(template, rows, space.ranges, _steps(space)):
            blind.setdefault(quantity.quantity, quantity)
    if not blind:
        return None
    told = [quantity.told() for quantity in blind.values()]
    more = [f"{len(told) - _NAMED} more"] if len(told) > _NAMED else []
    named = ", ".join(told[:_NAMED] + more)
    return Undecided(f"varied too little to know their part in the size: {named}")


def _largest(found: Sequence[Template], space: Space) -> Fit | NoFit:
    results = {}
    for template in found:
        text = str(expression.parse(template.text()))
        try:
            results[text] = space.maximum(text)
        except WstraceError:
            return NoFit(f"the largest value of {text} cannot be found")
    order = sorted(results, key=lambda text: (-results[text][0], len(text), text))
    value, at = results[order[0]]
    return Fit(order[0], value, at, tuple(order[1:]))
