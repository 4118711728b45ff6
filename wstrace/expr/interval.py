"""Interval arithmetic and proven monotonicity over formula trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from wstrace.expr import tree
from wstrace.expr.tree import Const, FormulaError, Node, Variable
from wstrace.vllm.arena import aligned

Interval = tuple[int, int]
Box = Mapping[str, Interval]
Way = Literal["flat", "up", "down", "unknown"]


def interval(node: Node, box: Box) -> Interval:
    """Values that `node` can take while each name stays in its range; may be too wide."""
    if isinstance(node, Const):
        return node.value, node.value
    if isinstance(node, Variable):
        return box[node.name]
    args = [interval(a, box) for a in node.args]
    return _RULES[node.op](*args)


def _corners(op: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    values = [op(x, y) for x in a for y in b]
    return min(values), max(values)


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
    "*": lambda a, b: _corners(lambda x, y: x * y, a, b),
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


def direction(node: Node, name: str, box: Box) -> Way:
    """How `node` moves as `name` rises in `box`, others fixed, where the tree proves it."""
    if name not in tree.names(node):
        return "flat"
    if isinstance(node, Variable):
        return "up"
    assert not isinstance(node, Const)
    ways = [direction(a, name, box) for a in node.args]
    if node.op in ("+", "min", "max"):
        return _together(*ways)
    if node.op == "-":
        return _together(ways[0], _flip(ways[1]))
    if node.op == "neg":
        return _flip(ways[0])
    if node.op in ("round256", "next_pow2"):
        return ways[0]
    sides = [interval(a, box) for a in node.args]
    if node.op == "*":
        return _together(_scaled(ways[0], sides[1]), _scaled(ways[1], sides[0]))
    if node.op in ("//", "ceil_div"):
        return _together(_scaled(ways[0], sides[1]), _flip(_divided(ways[1], *sides)))
    if node.op == "round_up" and ways[1] == "flat" and sides[1][0] > 0:
        return ways[0]
    return "unknown"


def _together(*ways: Way) -> Way:
    moving = {w for w in ways if w != "flat"}
    if not moving:
        return "flat"
    return moving.pop() if len(moving) == 1 else "unknown"


def _flip(way: Way) -> Way:
    if way == "up":
        return "down"
    return "up" if way == "down" else way


def _scaled(way: Way, factor: Interval) -> Way:
    if way == "flat" or factor[0] >= 0:
        return way
    return _flip(way) if factor[1] <= 0 else "unknown"


def _divided(way: Way, dividend: Interval, divisor: Interval) -> Way:
    """The way of -(dividend // divisor) as the divisor moves `way`; its sign must be fixed."""
    if way == "flat" or divisor[0] <= 0 <= divisor[1]:
        return "flat" if way == "flat" else "unknown"
    return _scaled(way, dividend)
