"""Scheduler quantities that a fitted template does not use and yet may depend on.

A quantity that stayed inside one rounding step, in every request, gives a rounded value that
never changed: it can be a factor of a coefficient or a part of the constant, and no request
tells. Where its limit lies in a later step, the template may be too small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from wstrace.bounds.evidence import Row
from wstrace.bounds.templates import Larger, Line, Rounded, Template

Rows = Sequence[Sequence[Row]]
"""For each request the rows that explain it: one of them was served."""
Choices = Set[frozenset[int]]
"""For each request the values that a quantity may have had; equal requests count once."""


@dataclass(frozen=True)
class Hidden:
    """A quantity seen from `low` to `high` only; a value above `beyond` shows its part."""

    quantity: str
    low: int
    high: int
    beyond: int

    def told(self) -> str:
        """What was seen of it, and what would decide its part."""
        alone = f"was always {self.low}" if self.low == self.high else ""
        seen = alone or f"stayed within {self.low}..{self.high}"
        return f"{self.quantity} {seen} (record a step with more than {self.beyond})"


def hidden(
    template: Template, rows: Rows, ranges: Mapping[str, tuple[int, int]], steps: Sequence[int]
) -> list[Hidden]:
    """The quantities of `ranges` that may enlarge `template` beyond what `rows` can tell.

    `steps` are the rounding units of the template class, 1 among them.
    """
    found = []
    for name, (_, high) in ranges.items():
        choices = {frozenset(row[name] for row in choice if name in row) for choice in rows}
        choices.discard(frozenset())
        ends = list(_ends(template, name, high, choices, steps))
        if ends:
            seen = frozenset().union(*choices)
            found.append(Hidden(name, min(seen), max(seen), max(ends)))
    return found


def _ends(
    template: Template, name: str, high: int, choices: Choices, steps: Sequence[int]
) -> Iterator[int]:
    """The upper end of every rounding step that held `name` and hides a part of it."""
    for step in steps:
        last = -(-high // step)
        for level in _levels(step, choices):
            if 0 < level < last and _fits_in(template, name, level):
                yield level * step
    if name not in _names(template):
        yield from (value for value in _always(choices) if value < high)


def _always(choices: Choices) -> set[int]:
    """The value of a quantity that had only one, or that one and 0: its part is unknown."""
    present = {choice - {0} for choice in choices} - {frozenset()}
    return _levels(1, present or choices)


def _levels(step: int, choices: Choices) -> set[int]:
    """Rounded values that every request may have had; {} where the quantity must have moved."""
    common: set[int] | None = None
    for choice in choices:
        levels = {-(-value // step) for value in choice}
        common = levels if common is None else common & levels
        if not common:
            break
    return common or set()


def _fits_in(template: Template, name: str, level: int) -> bool:
    """A coefficient or a constant of `template` has room for a part of `name`.

    Part of a coefficient is enough: c * x may be a * x * level + b * x.
    """
    return any(
        _in_coefficient(line, name, level) or _in_constant(line, name, level)
        for line in _lines(template)
    )


def _in_coefficient(line: Line, name: str, level: int) -> bool:
    pairs = zip(line.coefficients, line.terms, strict=True)
    return any(
        len(term.factors) == 1 and term.factors[0].quantity != name and coefficient >= level
        for coefficient, term in pairs
    )


def _in_constant(line: Line, name: str, level: int) -> bool:
    used = {factor.quantity for term in line.terms for factor in term.factors}
    return name not in used and (line.constant >= level or line.constant < 0)


def _names(template: Template) -> set[str]:
    lines = _lines(template)
    return {f.quantity for line in lines for term in line.terms for f in term.factors}


def _lines(template: Template) -> tuple[Line, ...]:
    if isinstance(template, Larger):
        return template.lines
    return (template.line,) if isinstance(template, Rounded) else (template,)
