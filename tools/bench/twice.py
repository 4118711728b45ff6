"""Whether a bench gives the same figures twice, within the spread that it states itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

Run = Mapping[str, Sequence[float]]
"""One run's values of each figure."""
FEW: Final = 4


@dataclass(frozen=True)
class Spread:
    """The median, and the middle half of the values (all of them where they are few)."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        if len(values) < FEW:
            return cls(min(values), median(values), max(values))
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(low, middle, high)

    def agrees(self, other: Spread) -> bool:
        """Whether one of the two medians lies within the other's spread."""
        inside = self.low <= other.middle <= self.high
        return inside or other.low <= self.middle <= other.high


def disagreeing(first: Run, second: Run) -> list[str]:
    """The figures whose medians lie outside of each other's spread."""
    return [
        name for name in first if not Spread.of(first[name]).agrees(Spread.of(second[name]))
    ]


def both(first: Run, second: Run) -> dict[str, list[float]]:
    """The values of the two runs together."""
    return {name: [*first[name], *second[name]] for name in first}


def told(first: Run, second: Run) -> str:
    """The sentence about the two runs."""
    odd = disagreeing(first, second)
    if not odd:
        return "Measured twice: the figures agree within their spread."
    pairs = ", ".join(
        f"{name} {median(first[name]):.4g} and {median(second[name]):.4g}" for name in odd
    )
    return f"Measured twice: not the same within their spread: {pairs}."


def facts(first: Run, second: Run) -> dict[str, object]:
    """For the line of JSON: medians and spreads of both runs together, and of each alone."""
    whole = both(first, second)
    return {
        "medians": {name: round(median(values), 5) for name, values in whole.items()},
        "spreads": {name: _ends(values) for name, values in whole.items()},
        "runs": [{n: round(median(v), 5) for n, v in run.items()} for run in (first, second)],
        "same_twice": not disagreeing(first, second),
    }


def _ends(values: Sequence[float]) -> list[float]:
    spread = Spread.of(values)
    return [round(spread.low, 5), round(spread.high, 5)]
