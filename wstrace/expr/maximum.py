"""The largest value of a formula over whole ranges of its drivers.

Formulas need not be monotone (a number of splits that falls while rows rise), so the upper
ends prove nothing by themselves. Boxes of driver values are bounded by interval arithmetic,
the box with the largest bound is split first, and a box ends when the formula is provably
monotone in it or small enough to count out. When the budget is spent first, the largest
bound that is left is returned with `exact=False`: never below the truth.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wstrace.expr import tree
from wstrace.expr.expression import Expression, parse
from wstrace.expr.interval import Box, direction, interval
from wstrace.expr.tree import BIGGEST, FormulaError, Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUDGET: Final = 400_000
"""Evaluations before the search gives up being exact: a few seconds."""
_COUNT_OUT: Final = 64


@dataclass(frozen=True)
class Joint:
    """A limit on several drivers at once: `left <= limit`, such as `rows * splits <= 4096`."""

    left: Expression
    limit: int

    @classmethod
    def of(cls, left: str, limit: int) -> Joint:
        """From text: `Joint.of("a * b", 4096)`."""
        return cls(parse(left), limit)


@dataclass(frozen=True)
class Maximum:
    """The largest value, one place where it is reached, and whether it is reached at all.

    `exact` False: `value` is an upper bound, and `at` the best place that was found.
    """

    value: int
    at: dict[str, int] = field(default_factory=dict)
    exact: bool = True


def maximise(
    expression: Expression,
    constants: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int]],
    joint: Sequence[Joint] = (),
    budget: int = BUDGET,
) -> Maximum:
    """The maximum over `ranges` (both ends included) under `joint` limits.

    FormulaError: a name has neither a constant nor a range, a range is empty, no point
    satisfies the joint limits, a divisor's range holds 0, or the maximum is above 2^63.
    """
    fixed = {n: tree.Const(v) for n, v in constants.items() if n not in ranges}
    goal = tree.substitute(expression.root, fixed)
    limits = [(tree.substitute(j.left.root, fixed), j.limit) for j in joint]
    used = tree.names(goal).union(*(tree.names(left) for left, _ in limits))
    for name in sorted(used - set(ranges)):
        raise FormulaError(f"the formula needs {name}", f"give {name} a value or a range")
    for name, (low, high) in ranges.items():
        if low > high:
            raise FormulaError(
                f"the range of {name} is empty: {low} to {high}", "swap its ends"
            )
    search = _Search(goal, limits, budget)
    result = search.run({n: r for n, r in ranges.items() if n in used})
    if result.value > BIGGEST:
        raise FormulaError("the maximum is larger than 2^63", "check the names' values")
    return result


class _Search:
    def __init__(self, goal: Node, limits: list[tuple[Node, int]], budget: int) -> None:
        self.goal = goal
        self.limits = limits
        self.limited = frozenset[str]().union(*(tree.names(left) for left, _ in limits))
        self.budget = budget
        self.best: int | None = None
        self.at: dict[str, int] = {}
        self.heap: list[tuple[int, int, Box]] = []
        self.order = itertools.count()

    def run(self, box: Box) -> Maximum:
        self.push(box)
        while self.heap and self.budget > 0:
            bound, _, box = heapq.heappop(self.heap)
            if self.best is not None and -bound <= self.best:
                return Maximum(self.best, self.at)
            self.settle(box)
        return self.result()

    def result(self) -> Maximum:
        left = -self.heap[0][0] if self.heap else None
        if left is not None and (self.best is None or left > self.best):
            return Maximum(left, self.at, exact=False)
        if self.best is None:
            raise FormulaError("no values satisfy the joint limits", "check the joint limits")
        return Maximum(self.best, self.at)

    def push(self, box: Box) -> None:
        self.budget -= 1
        if any(interval(left, box)[0] > limit for left, limit in self.limits):
            return
        bound = interval(self.goal, self.narrowed(box))[1]
        if self.best is None or bound > self.best:
            heapq.heappush(self.heap, (-bound, next(self.order), box))

    def narrowed(self, box: Box) -> Box:
        """The face of `box` that holds its maximum, joint limits aside."""
        ends = {"up": 1, "down": 0}
        for name, ends_of in box.items():
            way = direction(self.goal, name, box)
            if way in ends and ends_of[0] < ends_of[1]:
                end = ends_of[ends[way]]
                box = {**box, name: (end, end)}
        return box

    def settle(self, box: Box) -> None:
        """Try the box's best corner; count a small box out; else split it."""
        face = self.narrowed(box)
        if self.points(face) == 1 and self.offer(face):
            return
        box = {n: face[n] if n not in self.limited else self.relaxed(n, box) for n in box}
        if self.points(box) <= _COUNT_OUT:
            self.count_out(box)
            return
        self.try_corner(box)
        name = max(box, key=lambda n: box[n][1] - box[n][0])
        low, high = box[name]
        middle = (low + high) // 2
        self.push({**box, name: (low, middle)})
        self.push({**box, name: (middle + 1, high)})

    def relaxed(self, name: str, box: Box) -> tuple[int, int]:
        """A name that only the limits hold stays at its low end, where they bind least."""
        low, high = box[name]
        ways = {direction(left, name, box) for left, _ in self.limits}
        idle = direction(self.goal, name, box) == "flat" and ways <= {"up", "flat"}
        return (low, low) if idle else (low, high)

    def try_corner(self, box: Box) -> None:
        """Any feasible point raises the best value early; the low corner most often is one."""
        self.offer({n: (low, low) for n, (low, _) in box.items()})
        self.offer({n: (high, high) for n, (_, high) in box.items()})

    def count_out(self, box: Box) -> None:
        spans = [range(low, high + 1) for low, high in box.values()]
        for point in itertools.product(*spans):
            self.offer({n: (v, v) for n, v in zip(box, point, strict=True)})

    def offer(self, point: Box) -> bool:
        self.budget -= 1
        values = {n: low for n, (low, _) in point.items()}
        if any(interval(left, point)[0] > limit for left, limit in self.limits):
            return False
        value = interval(self.goal, point)[1]
        if self.best is None or value > self.best:
            self.best, self.at = value, values
        return True

    @staticmethod
    def points(box: Box) -> int:
        total = 1
        for low, high in box.values():
            total *= high - low + 1
        return total
