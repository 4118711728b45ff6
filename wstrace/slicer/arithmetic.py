"""Arithmetic on symbolic values: integers, per-request series, shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wstrace.expr import tree
from wstrace.expr.tree import Const, Node, Op, simplified
from wstrace.slicer.ledger import Kind, Ledger
from wstrace.slicer.values import (
    COMPUTED,
    LENGTHS,
    QUERIES,
    STARTS,
    BitLength,
    Element,
    Index,
    Literal,
    Num,
    Obj,
    Opaque,
    Ratio,
    Seq,
    Series,
    Stop,
    Tail,
    Tensor,
    Value,
    spread,
)


def negated(node: Node) -> Node:
    """-node, with -(-a // b) and -(a // -b) read as the ceiling they are."""
    if isinstance(node, Op) and node.op == "neg":
        return node.args[0]
    if isinstance(node, Op) and node.op == "//":
        top, bottom = node.args
        if isinstance(top, Op) and top.op == "neg":
            return ceiling(top.args[0], bottom)
        if isinstance(bottom, Const) and bottom.value < 0:
            return ceiling(top, Const(-bottom.value))
        if isinstance(bottom, Op) and bottom.op == "neg":
            return ceiling(top, bottom.args[0])
    return simplified("neg", node)


def ceiling(top: Node, bottom: Node) -> Node:
    """ceil(top / bottom)."""
    return simplified("ceil_div", top, bottom)


def multiplied(a: Node, b: Node) -> Node:
    """a * b, with ceil_div(x, b) * b read as round_up."""
    for left, right in ((a, b), (b, a)):
        if isinstance(left, Op) and left.op == "ceil_div" and left.args[1] == right:
            return simplified("round_up", left.args[0], right)
    return simplified("*", a, b)


def _shifted(a: Node, b: Node, up: bool) -> Node | None:
    if not isinstance(b, Const) or not 0 <= b.value < 63:
        return None
    power = Const(1 << b.value)
    return multiplied(a, power) if up else simplified("//", a, power)


def _masked(a: Node, b: Node) -> Node | None:
    """a & ~(2^k - 1) rounds down to 2^k; a & (2^k - 1) is the rest."""
    if not isinstance(b, Const):
        return _masked(b, a) if isinstance(a, Const) else None
    low = ~b.value if b.value < 0 else b.value
    if low & (low + 1):
        return None
    power = Const(low + 1)
    if b.value < 0:
        return simplified("*", simplified("//", a, power), power)
    return simplified("%", a, power)


_NUMBERS: Final[dict[str, Callable[[Node, Node], Node | None]]] = {
    "Add": lambda a, b: simplified("+", a, b),
    "Sub": lambda a, b: simplified("-", a, b),
    "Mult": multiplied,
    "FloorDiv": lambda a, b: simplified("//", a, b),
    "Mod": lambda a, b: simplified("%", a, b),
    "LShift": lambda a, b: _shifted(a, b, True),
    "RShift": lambda a, b: _shifted(a, b, False),
    "BitAnd": _masked,
    "Pow": lambda a, b: _power(a, b),
}


def _power(a: Node, b: Node) -> Node | None:
    if isinstance(b, Const) and 0 <= b.value <= 8:
        return tree.product([a] * b.value)
    return None


def binary(ledger: Ledger, op: str, left: Value, right: Value, where: str) -> Value:
    """`left op right` on every pair of arms; `op` is the name of its syntax node."""
    return spread(lambda a, b: combine(ledger, op, a, b, where), left, right)


def combine(ledger: Ledger, op: str, a: Value, b: Value, where: str) -> Value:
    """`a op b`; Stop where the result is not understood."""
    special = _special(ledger, op, a, b, where)
    if special is not None:
        return special
    left, right = number(ledger, a, where), number(ledger, b, where)
    if op == "Div":
        return Ratio(left, right)
    node = _NUMBERS[op](left, right) if op in _NUMBERS else None
    if node is None:
        raise Stop(where, f"{op} of these values is not understood")
    return Num(node)


def _special(ledger: Ledger, op: str, a: Value, b: Value, where: str) -> Value | None:
    if isinstance(a, Seq) or isinstance(b, Seq):
        return _sequences(op, a, b, where)
    if op == "LShift" and a == Num(Const(1)) and isinstance(b, BitLength):
        return Num(simplified("next_pow2", simplified("+", b.of, Const(1))))
    if isinstance(a, Index) and isinstance(b, Num) and isinstance(b.node, Const):
        step = {"Add": b.node.value, "Sub": -b.node.value}.get(op)
        if step is not None:
            return Index(a.base, a.offset + step, None if a.value is None else a.value + step)
    if isinstance(b, Index) and op == "Add" and isinstance(a, Num):
        return combine(ledger, op, b, a, where)
    if op == "Sub":
        return a if b == Num(Const(0)) else _difference(ledger, a, b, where)
    if isinstance(a, Tensor) and _keeps_shape(ledger, b):
        return a
    if op == "Mult" and isinstance(a, Num) and isinstance(b, Num):
        return ledger.whole(a, b) or ledger.padded_rows(a, b, where)
    return None


def _keeps_shape(ledger: Ledger, value: Value) -> bool:
    """Numbers, tensors of one element and vLLM's quantization scales enlarge nothing."""
    if isinstance(value, Tensor) and value.dims is not None:
        return all(isinstance(d, Num) and ledger.fixed_value(d) == 1 for d in value.dims)
    scale = isinstance(value, Obj) and value.path.endswith("_scale")
    return scale or isinstance(value, Num | Literal)


def _sequences(op: str, a: Value, b: Value, where: str) -> Value:
    if op == "Add" and isinstance(a, Seq) and isinstance(b, Tail):
        return Seq((*a.items, b))
    if op == "Add" and isinstance(a, Seq) and isinstance(b, Seq):
        return Seq(a.items + b.items, a.mutable)
    for seq, times in ((a, b), (b, a)):
        count = times.node if isinstance(times, Num) else None
        if op == "Mult" and isinstance(seq, Seq) and isinstance(count, Const):
            return Seq(seq.items * min(count.value, 16), seq.mutable)
    raise Stop(where, "a tuple or list in arithmetic")


def _difference(ledger: Ledger, a: Value, b: Value, where: str) -> Value | None:
    """Neighbouring query starts give a query length; whole minus query the cached tokens."""
    if isinstance(a, Series) and isinstance(b, Series):
        return _series_difference(a, b)
    if isinstance(a, Element) and isinstance(b, Element):
        same = a.series.owner == b.series.owner and a.index.base == b.index.base
        first, last = _place(b), _place(a)
        if same and last - first == 1:
            index = Index(a.index.base, first)
            return ledger.element(Series(QUERIES, a.series.owner), index, where)
        raise Stop(where, "query starts of requests that are not neighbours")
    if isinstance(a, Num) and isinstance(b, Num):
        return ledger.cached_length(a, b, where)
    return None


def _place(element: Element) -> int:
    return element.index.offset + element.series.start


def _series_difference(a: Series, b: Series) -> Value | None:
    if a.owner != b.owner:
        return None
    if a.kind == b.kind == STARTS and a.start - b.start == 1:
        return Series(QUERIES, a.owner, b.start, a.where)
    if a.kind == LENGTHS and b.kind == QUERIES and a.start == b.start:
        return Series(COMPUTED, a.owner, a.start, a.where)
    return None


def number(ledger: Ledger, value: Value, where: str) -> Node:
    """The tree of an integer value; Stop for anything else."""
    if isinstance(value, Num):
        return value.node
    if isinstance(value, Literal) and isinstance(value.value, bool) and value.fixed:
        return Const(int(value.value))
    if isinstance(value, Index):
        why = f"{where}: a position in a loop proves nothing"
        held = None if value.value is None else value.value - value.offset
        base = ledger.leaf(
            ("index", value.base), "position", "unbound", held, None, "", where, why
        )
        return simplified("+", base.node, Const(value.offset))
    if isinstance(value, Obj) and isinstance(value.handle, Opaque):
        return opaque_leaf(ledger, value, where).node
    if isinstance(value, Element):
        raise Stop(where, "a query start on its own has no limit")
    if isinstance(value, Ratio):
        raise Stop(where, "a true division that is not rounded")
    raise Stop(where, f"{type(value).__name__} where an integer is needed")


def opaque_leaf(ledger: Ledger, value: Obj, where: str, suffix: str = "") -> Num:
    """A number that is not known offline, named after the attribute that holds it."""
    *before, name = value.path.split(".")
    if before and name.startswith("shape"):
        name = before[-1] + name.removeprefix("shape")
    key = ("opaque", value.key, suffix)
    handle = value.handle
    assert isinstance(handle, Opaque)
    kind: Kind = "unbound" if handle.open and suffix != "_itemsize" else "constant"
    why = handle.why if kind == "unbound" or not handle.open else ""
    source = value.path + suffix.replace("_", " ", 1)
    return ledger.leaf(key, name + suffix, kind, None, None, source, where, why)


def rounded(value: Value, up: bool, where: str) -> Value:
    """ceil or floor of a true division. Exact while both sides stay below 2^53."""
    if isinstance(value, Ratio):
        way = ceiling if up else _floored
        return Num(way(value.top, value.bottom))
    if isinstance(value, Num | Index | Element | Obj):
        return value
    raise Stop(where, f"a {type(value).__name__} is made an integer")


def _floored(top: Node, bottom: Node) -> Node:
    return simplified("//", top, bottom)
