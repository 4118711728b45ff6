"""The formulas that inference may propose, and their exact solution from observations.

A template is a sum of terms and a constant, or the larger of two such lines. A term is a
product of at most two factors ceil_div(x, b), with b = 1 for a plain quantity; its
coefficient is a positive integer. Nothing is fitted approximately: coefficients are solved
with fractions from as many observations as there are unknowns, and must be integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import gcd

from wstrace.bounds.evidence import Row
from wstrace.vllm.arena import aligned


@dataclass(frozen=True)
class Factor:
    """ceil_div(quantity, step)."""

    quantity: str
    step: int = 1

    def value(self, row: Row) -> int:
        """The factor in one observation."""
        return -(-row[self.quantity] // self.step)


@dataclass(frozen=True)
class Term:
    """A product of one or two factors."""

    factors: tuple[Factor, ...]

    def value(self, row: Row) -> int:
        """The product in one observation."""
        result = 1
        for factor in self.factors:
            result *= factor.value(row)
        return result

    def text(self, coefficient: int) -> str:
        """`coefficient` times the term, rounded quantities as round_up where that divides."""
        parts = []
        for factor in self.factors:
            shared = gcd(coefficient, factor.step) == factor.step
            coefficient //= factor.step if shared else 1
            parts.append(_factor_text(factor, shared))
        return " * ".join(([str(coefficient)] if coefficient != 1 else []) + parts)


def _factor_text(factor: Factor, whole: bool) -> str:
    if factor.step == 1:
        return factor.quantity
    name = "round_up" if whole else "ceil_div"
    return f"{name}({factor.quantity}, {factor.step})"


@dataclass(frozen=True)
class Line:
    """Sum of coefficient * term, plus a constant."""

    terms: tuple[Term, ...]
    coefficients: tuple[int, ...]
    constant: int

    def value(self, row: Row) -> int:
        """The line in one observation."""
        pairs = zip(self.coefficients, self.terms, strict=True)
        return self.constant + sum(c * term.value(row) for c, term in pairs)

    def text(self) -> str:
        """The line in the expression language."""
        parts = [t.text(c) for c, t in zip(self.coefficients, self.terms, strict=True)]
        text = " + ".join(parts) or str(self.constant)
        if not parts or not self.constant:
            return text
        return f"{text} {'+' if self.constant > 0 else '-'} {abs(self.constant)}"


@dataclass(frozen=True)
class Larger:
    """The larger of two lines."""

    lines: tuple[Line, Line]

    def value(self, row: Row) -> int:
        """The larger line in one observation."""
        return max(line.value(row) for line in self.lines)

    def text(self) -> str:
        """max(...) in the expression language."""
        return f"max({self.lines[0].text()}, {self.lines[1].text()})"


@dataclass(frozen=True)
class Rounded:
    """`count` buffers of round256(line) bytes each."""

    line: Line
    count: int

    def value(self, row: Row) -> int:
        """The bytes in one observation."""
        return self.count * aligned(self.line.value(row))

    def text(self) -> str:
        """[count *] round256(line) in the expression language."""
        inner = f"round256({self.line.text()})"
        return inner if self.count == 1 else f"{self.count} * {inner}"


Template = Line | Larger | Rounded


def term_levels(names: Sequence[str], steps: Sequence[int]) -> Iterator[list[tuple[Term, ...]]]:
    """Sets of terms to try, the simplest level first."""
    plain = [Factor(name) for name in names]
    stepped = [Factor(name, step) for name in names for step in steps]
    yield [(Term((factor,)),) for factor in stepped]
    products = [Term(pair) for pair in _pairs(plain, stepped)]
    yield [(term,) for term in products]
    singles = [(Term((a,)), Term((b,))) for a, b in _pairs(plain, stepped)]
    bilinear = [
        (term, Term((factor,)))
        for term in products
        for factor in term.factors
        if len({f.quantity for f in term.factors}) == 2
    ]
    yield [*singles, *bilinear]
    yield [tuple(Term((factor,)) for factor in three) for three in combinations(plain, 3)]


def _pairs(plain: Sequence[Factor], stepped: Sequence[Factor]) -> Iterator[tuple[Factor, ...]]:
    """Pairs of different quantities in which at most one is rounded, each pair once."""
    for a in plain:
        for b in stepped:
            if a.quantity < b.quantity or (a.quantity > b.quantity and b.step > 1):
                yield (a, b)


def solve(terms: tuple[Term, ...], rows: Sequence[Row], ys: Sequence[int]) -> Line | None:
    """The line through the first independent observations; None unless all is integer."""
    unknowns = len(terms) + 1
    matrix: list[list[Fraction]] = []
    for row, y in zip(rows, ys, strict=True):
        equation = [Fraction(term.value(row)) for term in terms]
        reduced = _reduce(matrix, [*equation, Fraction(1), Fraction(y)])
        if any(reduced[:unknowns]):
            matrix.append(reduced)
        elif reduced[unknowns]:
            return None
        if len(matrix) == unknowns:
            return _line(terms, _back_substitute(matrix))
    return None


def _reduce(matrix: Sequence[Sequence[Fraction]], row: list[Fraction]) -> list[Fraction]:
    for known in matrix:
        lead = next(i for i, value in enumerate(known) if value)
        if row[lead]:
            scale = row[lead] / known[lead]
            row = [value - scale * k for value, k in zip(row, known, strict=True)]
    return row


def _back_substitute(matrix: Sequence[list[Fraction]]) -> list[Fraction]:
    solution: dict[int, Fraction] = {}
    for row in reversed(matrix):
        lead = next(i for i, value in enumerate(row) if value)
        rest = sum((row[i] * value for i, value in solution.items()), Fraction(0))
        solution[lead] = (row[-1] - rest) / row[lead]
    return [solution[i] for i in range(len(matrix))]


def _line(terms: tuple[Term, ...], solution: Sequence[Fraction]) -> Line | None:
    if any(value.denominator != 1 for value in solution):
        return None
    *coefficients, constant = (int(value) for value in solution)
    if any(coefficient <= 0 for coefficient in coefficients):
        return None
    return Line(terms, tuple(coefficients), constant)
