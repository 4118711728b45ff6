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
from wstrace.expr.interval import Interval, Moves, Numbered
from wstrace.expr.tree import BIGGEST, FormulaError, Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUDGET: Final = 400_000
"""Boxes and points before the search gives up being exact."""
WORK: Final = 6_000_000
"""Parts of the formula looked at before it does: a long formula has fewer boxes. Seconds."""
_COUNT_OUT: Final = 64
_Spans = tuple[Interval, ...]


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
    satisfies the joint limits, a divisor's range holds 0, or the maximum is above 2^63 or,
    where the search was cut short, may be.
    """
    fixed = {n: tree.Const(v) for n, v in constants.items() if n not in ranges}
    goal = tree.substitute(expression.root, fixed)
    limits = [(tree.substitute(j.left.root, fixed), j.limit) for j in joint]
    used = sorted(tree.names(goal).union(*(tree.names(left) for left, _ in limits)))
    for name in used:
        if name not in ranges:
            raise FormulaError(f"the formula needs {name}", f"give {name} a value or a range")
    for name, (low, high) in ranges.items():
        if low > high:
            raise FormulaError(
                f"the range of {name} is empty: {low} to {high}", "swap its ends"
            )
    result = _Search(goal, limits, used, budget).run(tuple(ranges[name] for name in used))
    if result.value > BIGGEST:
        verb = "is" if result.exact else "may be"
        raise FormulaError(f"the maximum {verb} larger than 2^63", "check the names' values")
    return result


class _Search:
    def __init__(
        self, goal: Node, limits: list[tuple[Node, int]], names: list[str], budget: int
    ) -> None:
        self.names = names
        self.goal = Numbered(goal, names)
        self.limits = [(Numbered(left, names), limit) for left, limit in limits]
        inside = frozenset[str]().union(*(tree.names(left) for left, _ in limits))
        self.limited = [name in inside for name in names]
        self.budget = budget
        self.work = WORK
        self.best: int | None = None
        self.at: _Spans = ()
        self.heap: list[tuple[int, int, _Spans]] = []
        self.order = itertools.count()

    def run(self, box: _Spans) -> Maximum:
        self.push(box)
        while self.heap and self.budget > 0 and self.work > 0:
            bound, _, box = heapq.heappop(self.heap)
            if self.best is not None and -bound <= self.best:
                return self.found()
            self.settle(box)
        return self.result()

    def result(self) -> Maximum:
        left = -self.heap[0][0] if self.heap else None
        if left is not None and (self.best is None or left > self.best):
            return Maximum(left, self.found().at, exact=False)
        return self.found()

    def found(self) -> Maximum:
        if self.best is None and not self.heap:
            raise FormulaError("no values satisfy the joint limits", "check the joint limits")
        at = {name: low for name, (low, _) in zip(self.names, self.at, strict=False)}
        return Maximum(self.best or 0, at)

    def push(self, box: _Spans) -> None:
        if not self.within(box):
            return
        bound = self.narrowed(box)[1]
        if self.best is None or bound > self.best:
            heapq.heappush(self.heap, (-bound, next(self.order), box))

    def within(self, box: _Spans) -> bool:
        """Whether `box` may hold a place under the joint limits; counts as one box."""
        self.budget -= 1
        self.work -= self.goal.size + len(box)
        return all(self.span(left, box)[0] <= limit for left, limit in self.limits)

    def span(self, of: Numbered, box: _Spans) -> Interval:
        self.work -= of.size
        return of.span(box)

    def look(self, of: Numbered, box: _Spans) -> tuple[Interval, Moves]:
        self.work -= 2 * of.size
        return of.look(box)

    def narrowed(self, box: _Spans) -> tuple[_Spans, int]:
        """The face of `box` that holds its maximum, joint limits aside, and its bound.

        A face may show how the formula moves with a further name.
        """
        while True:
            (_, bound), (up, down) = self.look(self.goal, box)
            wide = [i for i, (low, high) in enumerate(box) if low < high]
            one_way = [i for i in wide if (up ^ down) >> i & 1]
            if not one_way:
                return box, bound
            face = list(box)
            for i in one_way:
                end = box[i][up >> i & 1]
                face[i] = (end, end)
            box = tuple(face)

    def settle(self, box: _Spans) -> None:
        """Try the box's best corner; count a small box out; else split it."""
        face, _ = self.narrowed(box)
        if all(low == high for low, high in face) and self.offer(face):
            return
        box = self.relaxed(box, face)
        if self.is_small(box):
            for point in itertools.product(*(range(low, high + 1) for low, high in box)):
                self.offer(tuple((value, value) for value in point))
            return
        # any place under the limits raises the best value early; a corner most often is one
        self.offer(tuple((low, low) for low, _ in box))
        self.offer(tuple((high, high) for _, high in box))
        widest = max(range(len(box)), key=lambda i: box[i][1] - box[i][0])
        low, high = box[widest]
        middle = (low + high) // 2
        for half in ((low, middle), (middle + 1, high)):
            self.push((*box[:widest], half, *box[widest + 1 :]))

    def relaxed(self, box: _Spans, face: _Spans) -> _Spans:
        """The face, as far as the limits let it.

        A name that only they hold goes to its low end, where they bind least.
        """
        if not self.limits:
            return face
        up, down = self.look(self.goal, box)[1]
        held = up | down
        for left, _ in self.limits:
            held |= self.look(left, box)[1][1]
        return tuple(
            end if not limited else (whole[0], whole[0]) if not held >> i & 1 else whole
            for i, (whole, end, limited) in enumerate(zip(box, face, self.limited, strict=True))
        )

    def offer(self, point: _Spans) -> bool:
        if not self.within(point):
            return False
        value = self.span(self.goal, point)[1]
        if self.best is None or value > self.best:
            self.best, self.at = value, point
        return True

    @staticmethod
    def is_small(box: _Spans) -> bool:
        points = 1
        for low, high in box:
            points *= high - low + 1
            if points > _COUNT_OUT:
                return False
        return True
