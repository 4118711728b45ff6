"""Interval arithmetic and proven monotonicity over formula trees.

A tree is numbered once, equal parts together; what is asked of a box is then one walk over
the parts, however many names the formula has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from wstrace.expr import tree
from wstrace.expr.tree import Const, FormulaError, Node, Variable
from wstrace.vllm.arena import aligned

Interval = tuple[int, int]
Box = Mapping[str, Interval]
Moves = tuple[int, int]
"""Names as bits: with which the value may rise as the name rises, and with which fall."""

HUGE: Final = 2**1024
"""No product on the way to a bound may be larger: 2^63 is the most that a value may have."""


def interval(node: Node, box: Box) -> Interval:
    """Values that `node` can take while each name stays in its range; may be too wide."""
    names = sorted(tree.names(node))
    return Numbered(node, names).span([box[name] for name in names])


class Numbered:
    """A tree as a list of its parts, each after those that it is made of.

    `names` gives each name its place in a box (a sequence of ranges); it may hold more names
    than the tree. `size` is the number of arguments in the tree, what a walk costs.
    """

    def __init__(self, node: Node, names: Sequence[str]) -> None:
        self._places: dict[object, int] = {Variable(n): i for i, n in enumerate(names)}
        self._constants: list[Interval] = []
        self._parts: list[tuple[str, tuple[int, ...]]] = []
        self._moves: list[Moves] = [(1 << i, 0) for i in range(len(names))]
        inner = [n for n in tree.walk(node) if isinstance(n, Const)]
        for value in dict.fromkeys(n.value for n in inner):
            self._places[Const(value)] = len(self._places)
            self._constants.append((value, value))
            self._moves.append((0, 0))
        self._root = self._number(node)
        self.size = 1 + sum(1 + len(args) for _, args in self._parts)

    def _number(self, node: Node) -> int:
        if isinstance(node, Const | Variable):
            return self._places[node]
        key = (node.op, tuple(self._number(arg) for arg in node.args))
        if key not in self._places:
            self._places[key] = len(self._places)
            self._parts.append(key)
        return self._places[key]

    def span(self, box: Sequence[Interval]) -> Interval:
        """Values of the tree while each name stays in its range; may be too wide."""
        return self._spans(box)[self._root]

    def look(self, box: Sequence[Interval]) -> tuple[Interval, Moves]:
        """The values of the tree in `box`, and how they move with each name, others fixed.

        A name in neither half moves nothing; in both, nothing is proved.
        """
        spans = self._spans(box)
        moves = self._moves.copy()
        for op, args in self._parts:
            rule = _MOVES.get(op, _any_way)
            moves.append(rule([moves[i] for i in args], [spans[i] for i in args]))
        return spans[self._root], moves[self._root]

    def _spans(self, box: Sequence[Interval]) -> list[Interval]:
        spans = [*box, *self._constants]
        for op, args in self._parts:
            spans.append(_RULES[op](*[spans[i] for i in args]))
        return spans


def _corners(op: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    values = [op(x, y) for x in a for y in b]
    return min(values), max(values)


def _times(a: Interval, b: Interval) -> Interval:
    low, high = a[0] * b[0], a[1] * b[1]
    if a[0] < 0 or b[0] < 0:
        low, high = _corners(lambda x, y: x * y, a, b)
    if high > HUGE or low < -HUGE:
        raise FormulaError(
            "a product in the formula can be above 2^63 by far", "check the names' values"
        )
    return low, high


def _nonzero(b: Interval) -> Interval:
    if b[0] <= 0 <= b[1]:
        raise FormulaError(
            "the formula divides by something that can be 0", "narrow the range of the divisor"
        )
    return b


def _modulo(a: Interval, b: Interval) -> Interval:
    low, high = _nonzero(b)
    if low == high and a[0] == a[1]:
        return a[0] % low, a[0] % low
    if low > 0 and a[0] >= 0 and a[1] < low:
        return a
    if low > 0:
        return 0, min(high - 1, a[1]) if a[0] >= 0 else high - 1
    return low + 1, 0


def _floor(a: Interval, b: Interval) -> Interval:
    return _corners(lambda x, y: x // y, a, _nonzero(b))


def _ceil(a: Interval, b: Interval) -> Interval:
    return _corners(lambda x, y: -(-x // y), a, _nonzero(b))


def _round_up(a: Interval, b: Interval) -> Interval:
    """round_up(a, b) lies between a and a + b - 1, and b need not be fixed."""
    low, high = _nonzero(b)
    if low == high:
        return _each("round_up", a, b)
    if low > 0:
        return a[0], a[1] + high - 1
    return a[0] + low + 1, a[1]


def _each(op: str, a: Interval, *fixed: Interval) -> Interval:
    ends = [_value(op, x, *(f[0] for f in fixed)) for x in a]
    return min(ends), max(ends)


def _value(op: str, *args: int) -> int:
    """As `tree.apply`, without the cap: a bound on the way to the maximum may exceed it."""
    if op == "round256":
        return aligned(args[0])
    if op == "round_up":
        return -(-args[0] // args[1]) * args[1]
    return 1 if args[0] <= 1 else 1 << (args[0] - 1).bit_length()


_RULES: Final[Mapping[str, Callable[..., Interval]]] = {
    "+": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "-": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "*": _times,
    "//": _floor,
    "%": _modulo,
    "neg": lambda a: (-a[1], -a[0]),
    "min": lambda *a: (min(x[0] for x in a), min(x[1] for x in a)),
    "max": lambda *a: (max(x[0] for x in a), max(x[1] for x in a)),
    "ceil_div": _ceil,
    "round_up": _round_up,
    "round256": lambda a: _each("round256", a),
    "next_pow2": lambda a: _each("next_pow2", a),
}

Ways = Sequence[Moves]
Spans = Sequence[Interval]


def _together(ways: Ways, _: Spans) -> Moves:
    up = down = 0
    for rising, falling in ways:
        up |= rising
        down |= falling
    return up, down


def _any_way(ways: Ways, spans: Spans) -> Moves:
    """Nothing is proved of any name inside."""
    up, down = _together(ways, spans)
    return up | down, up | down


def _flip(way: Moves) -> Moves:
    return way[1], way[0]


def _scaled(way: Moves, factor: Interval) -> Moves:
    if factor[0] >= 0:
        return way
    return _flip(way) if factor[1] <= 0 else _any_way([way], ())


def _difference(ways: Ways, spans: Spans) -> Moves:
    return _together([ways[0], _flip(ways[1])], spans)


def _product(ways: Ways, spans: Spans) -> Moves:
    return _together([_scaled(ways[0], spans[1]), _scaled(ways[1], spans[0])], spans)


def _quotient(ways: Ways, spans: Spans) -> Moves:
    """Rising with a positive dividend's name, falling with its divisor's; no divisor is 0."""
    of_divisor = _flip(_scaled(ways[1], spans[0]))
    return _together([_scaled(ways[0], spans[1]), of_divisor], spans)


def _rounded_up(ways: Ways, spans: Spans) -> Moves:
    """With the number as it moves, where the step is fixed and above 0."""
    if spans[1][0] <= 0:
        return _any_way(ways, spans)
    return _together([ways[0], _any_way([ways[1]], ())], spans)


_MOVES: Final[Mapping[str, Callable[[Ways, Spans], Moves]]] = {
    "+": _together,
    "min": _together,
    "max": _together,
    "-": _difference,
    "neg": lambda ways, _: _flip(ways[0]),
    "round256": _together,
    "next_pow2": _together,
    "*": _product,
    "//": _quotient,
    "ceil_div": _quotient,
    "round_up": _rounded_up,
}
