"""Scheduler quantities that a fitted template does not use and yet may depend on.

A quantity that stayed inside one rounding step, in every request, gives a rounded value that
never changed: it can be a factor of a coefficient or a part of the constant, and no request
tells. Where its limit lies in a later step, the template may be too small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wstrace.bounds.quantities import Row
from wstrace.bounds.templates import Larger, Line, Rounded, Template

Rows = Sequence[Sequence[Row]]
"""For each request the rows that explain it: one of them was served."""


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
        ends = list(_ends(template, name, high, rows, steps))
        if ends:
            seen = {row[name] for choice in rows for row in choice if name in row}
            found.append(Hidden(name, min(seen), max(seen), max(ends)))
    return found


def _ends(
    template: Template, name: str, high: int, rows: Rows, steps: Sequence[int]
) -> Iterator[int]:
    """The upper end of every rounding step that held `name` and hides a part of it."""
    for step in steps:
        last = -(-high // step)
        for level in _levels(name, step, rows):
            if 0 < level < last and _fits_in(template, name, level):
                yield level * step
    if name not in _names(template):
        yield from (value for value in _always(name, rows) if value < high)


def _always(name: str, rows: Rows) -> set[int]:
    """The value of a quantity that had only one, or that one and 0: its part is unknown."""
    present = [[row for row in choice if row.get(name)] for choice in rows]
    return _levels(name, 1, present if any(present) else rows)


def _levels(name: str, step: int, rows: Rows) -> set[int]:
    """Rounded values of `name` that every request may have had; {} where it must have moved."""
    sets = [{-(-row[name] // step) for row in choice if name in row} for choice in rows]
    known = [levels for levels in sets if levels]
    return set.intersection(*known) if known else set()


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
