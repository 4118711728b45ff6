"""Nodes of the integer language: immutable trees, built only through `make`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError
from wstrace.vllm.arena import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

BIGGEST: Final = 2**63
"""No value, intermediate ones included, may be larger than this in magnitude."""


class FormulaError(WstraceError):
    """A formula that cannot be read or evaluated; `position` counts characters from 0."""

    def __init__(self, message: str, hint: str, position: int | None = None) -> None:
        super().__init__(message, hint)
        self.position = position


@dataclass(frozen=True)
class Const:
    """An integer literal."""

    value: int


@dataclass(frozen=True)
class Variable:
    """A quantity that is given when the formula is evaluated."""

    name: str


@dataclass(frozen=True)
class Op:
    """An operator or function of the language applied to its arguments."""

    op: str
    args: tuple[Node, ...]


Node = Const | Variable | Op
# matches: "max_model_len_2"
_NUMBER: Final = re.compile(r"_\d+$")


def numbered(name: str, number: int) -> str:
    """The name of another quantity that is called alike: `num_reqs_2`."""
    return f"{name}_{number}"


def unnumbered(name: str) -> str:
    """A name without what `numbered` put there."""
    return _NUMBER.sub("", name)


def divisor(value: int) -> int:
    if value == 0:
        raise FormulaError("the formula divides by zero", "give the divisor's name a value > 0")
    return value


def _next_pow2(value: int) -> int:
    return 1 if value <= 1 else 1 << (value - 1).bit_length()


def _ceil_div(a: int, b: int) -> int:
    return -(-a // divisor(b))


OPERATORS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // divisor(b),
    "%": lambda a, b: a % divisor(b),
}
FUNCTIONS: Final[Mapping[str, tuple[int, int | None]]] = {
    "min": (1, None),
    "max": (1, None),
    "ceil_div": (2, 2),
    "round_up": (2, 2),
    "round256": (1, 1),
    "next_pow2": (1, 1),
}
"""Each function's least and largest number of arguments."""

_APPLY: Final[Mapping[str, Callable[..., int]]] = {
    **OPERATORS,
    "neg": lambda a: -a,
    "min": lambda *a: min(a),
    "max": lambda *a: max(a),
    "ceil_div": _ceil_div,
    "round_up": lambda a, b: _ceil_div(a, b) * b,
    "round256": aligned,
    "next_pow2": _next_pow2,
}


def apply(op: str, args: Sequence[int]) -> int:
    """The value of `op` on integers; FormulaError past `BIGGEST` or on a division by zero."""
    value = _APPLY[op](*args)
    if not -BIGGEST <= value <= BIGGEST:
        raise FormulaError("the formula's value is larger than 2^63", "check the names' values")
    return value


def make(op: str, *args: Node) -> Node:
    """`op` applied to `args`; literals are folded where the value exists."""
    if all(isinstance(a, Const) for a in args):
        try:
            return Const(apply(op, [a.value for a in args if isinstance(a, Const)]))
        except FormulaError:
            return Op(op, args)
    return Op(op, args)


def simplified(op: str, *args: Node) -> Node:
    """As `make`, without the neutral elements of + and * (for formulas that are built)."""
    one, zero = Const(1), Const(0)
    if op == "*" and one in args:
        return args[0] if args[1] == one else args[1]
    if op == "+" and zero in args:
        return args[0] if args[1] == zero else args[1]
    if op in ("//", "ceil_div", "round_up") and args[1] == one:
        return args[0]
    if op in ("max", "min"):
        args = tuple(dict.fromkeys(args))
        if len(args) == 1:
            return args[0]
    return make(op, *args)


def product(nodes: Sequence[Node]) -> Node:
    """The product of `nodes`; 1 when there are none."""
    result: Node = Const(1)
    for node in nodes:
        result = simplified("*", result, node)
    return result


def walk(node: Node) -> Iterator[Node]:
    """Every node of the tree, the root first."""
    yield node
    if isinstance(node, Op):
        for arg in node.args:
            yield from walk(arg)


def names(node: Node) -> frozenset[str]:
    """The names that the tree needs."""
    return frozenset(n.name for n in walk(node) if isinstance(n, Variable))


def evaluate(node: Node, values: Mapping[str, int]) -> int:
    """The tree's value. FormulaError names what is missing, too large or divides by zero."""
    if isinstance(node, Const):
        return node.value
    if isinstance(node, Op):
        return apply(node.op, [evaluate(a, values) for a in node.args])
    if node.name not in values:
        raise FormulaError(f"the formula needs {node.name}", f"give {node.name} a value")
    return _integer(node.name, values[node.name])


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormulaError(
            f"{name} is not an integer: {value!r}", "formulas take integers only"
        )
    if not -BIGGEST <= value <= BIGGEST:
        raise FormulaError(f"{name} is larger than 2^63", "check the names' values")
    return value


def substitute(node: Node, mapping: Mapping[str, Node]) -> Node:
    """The tree with names replaced, all at once."""
    if isinstance(node, Variable):
        return mapping.get(node.name, node)
    if isinstance(node, Op):
        return make(node.op, *(substitute(a, mapping) for a in node.args))
    return node


_PRECEDENCE: Final = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2, "neg": 3}


def text(node: Node) -> str:
    """Canonical text: reads back to the same tree."""
    return _render(node, 0)


def _render(node: Node, outer: int) -> str:
    if isinstance(node, Variable):
        return node.name
    if isinstance(node, Const):
        return str(node.value)
    if node.op not in _PRECEDENCE:
        return f"{node.op}({', '.join(_render(a, 0) for a in node.args)})"
    level = _PRECEDENCE[node.op]
    if node.op == "neg":
        body = "-" + _render(node.args[0], level)
    else:
        left, right = node.args
        body = f"{_render(left, level)} {node.op} {_render(right, level + 1)}"
    return f"({body})" if level < outer else body
