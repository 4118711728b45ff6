"""Expressions: each kind of syntax node by its rule."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from wstrace.expr.tree import Const, simplified
from wstrace.slicer import arithmetic, functions, tensors
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.values import (
    BoundMethod,
    Dtype,
    Index,
    Literal,
    Num,
    Obj,
    ProcessGroup,
    Seq,
    Series,
    Stop,
    Tail,
    Tensor,
    Value,
    choose,
    constant,
    present,
    spread,
)


class Expressions:
    """What an expression stands for, at the place where it is written."""

    def __init__(self, ev: Evaluation) -> None:
        self.ev = ev

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """The value of `node` where it stands; Stop says what is not understood."""
        self.ev.ledger.step(scope.where(node))
        rule = _RULES.get(type(node))
        if rule is None:
            raise Stop(scope.where(node), f"{type(node).__name__} is not followed")
        return rule(self, node, scope)

    def constant(self, node: ast.Constant, scope: Scope) -> Value:
        if isinstance(node.value, bool) or node.value is None or isinstance(node.value, str):
            return Literal(node.value)
        if isinstance(node.value, int):
            return constant(node.value)
        raise Stop(scope.where(node), f"the literal {node.value!r}")

    def named(self, node: ast.Name, scope: Scope) -> Value:
        point = scope.source.places.get(id(node))
        if point is None:
            raise Stop(scope.where(node), f"{node.id} stands outside the function")
        return self.ev.name(scope, node.id, point, scope.where(node))

    def attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        where = scope.where(node)
        stored = scope.source.attribute_stores.get(node.attr)
        if stored is not None and scope.source.name != "__init__":
            raise Stop(where, f"{node.attr} is assigned in the same function (line {stored})")
        owner = present(self.value(node.value, scope))
        return spread(lambda v: self.member(v, node.attr, where), owner)

    def member(self, owner: Value, name: str, where: str) -> Value:
        """`owner.name`."""
        if isinstance(owner, Obj):
            return self.ev.world.attribute(owner, name, where)
        if isinstance(owner, Tensor):
            found = tensors.attribute(owner, name, where)
            return found if found is not None else BoundMethod(owner, name)
        if isinstance(owner, Series) and name == "shape":
            return Seq((functions.length(owner, where),))
        if isinstance(owner, ProcessGroup) and name == "world_size":
            return owner.size
        if isinstance(owner, Dtype) and name == "itemsize":
            if owner.itemsize is None:
                raise Stop(where, "the size of a dtype that is not known")
            return Num(owner.itemsize)
        return BoundMethod(owner, name)

    def subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        where = scope.where(node)
        owner = present(self.value(node.value, scope))
        if isinstance(node.slice, ast.Slice):
            return spread(lambda v: self.sliced(v, node.slice, scope), owner)
        if isinstance(owner, Tensor) or _has_slices(node.slice):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return spread(lambda v: tensors.indexed(self.ev, v, parts, scope), owner)
        key = self.value(node.slice, scope)
        return spread(lambda v, k: self.item(v, k, where), owner, key)

    def item(self, owner: Value, key: Value, where: str) -> Value:
        """`owner[key]`."""
        if isinstance(owner, Obj) and isinstance(owner.handle, Tensor):
            return owner.handle.dim(self.known_index(key, where), where)
        if isinstance(owner, Obj):
            return self.ev.world.item(owner, key, where)
        if isinstance(owner, Series):
            return self.ev.ledger.element(owner, self.ev.ledger.index(key, where), where)
        place = self.ev.ledger.literal_index(key)
        if isinstance(owner, Seq) and place is not None:
            return self.part(owner, place, where)
        raise Stop(where, "an element that is not understood")

    def part(self, value: Value, index: int, where: str) -> Value:
        if isinstance(value, Seq) and -len(value.items) <= index < len(value.items):
            return value.items[index]
        if isinstance(value, Obj) and isinstance(value.handle, Tensor) and index >= 0:
            return value.handle.dim(index, where)
        if isinstance(value, Obj) and not isinstance(value.handle, Tensor):
            return self.ev.world.item(value, constant(index), where)
        raise Stop(where, "unpacks something whose parts are not known")

    def known_index(self, key: Value, where: str) -> int:
        found = self.ev.ledger.literal_index(key)
        if found is None:
            raise Stop(where, "a dimension chosen at run time")
        return found

    def sliced(self, owner: Value, cut: ast.expr, scope: Scope) -> Value:
        assert isinstance(cut, ast.Slice)
        where = scope.where(cut)
        if isinstance(owner, Tensor):
            return tensors.indexed(self.ev, owner, [cut], scope)
        ends = [self.literal_end(e, scope) for e in (cut.lower, cut.upper, cut.step)]
        if isinstance(owner, Obj) and isinstance(owner.handle, Tensor):
            if ends[1:] == [None, None] and isinstance(ends[0], int) and ends[0] >= 0:
                return Tail(owner.handle, ends[0])
            owner = _open_shape(owner.handle, ends, where)
        elif isinstance(owner, Obj):
            return tensors.indexed(self.ev, self.ev.world.as_tensor(owner, where), [cut], scope)
        if isinstance(owner, Seq) and "open" not in ends:
            bounds = [None if isinstance(e, str) else e for e in ends]
            return Seq(owner.items[slice(*bounds)], owner.mutable)
        if isinstance(owner, Series) and cut.step is None and isinstance(ends[0], int | None):
            return _tail(owner, ends[0] or 0, cut.upper is not None)
        raise Stop(where, "a slice that is not understood")

    def literal_end(self, node: ast.expr | None, scope: Scope) -> int | str | None:
        """An end of a slice: an int, None where absent, 'open' where not a constant."""
        if node is None:
            return None
        found = self.ev.ledger.literal_index(self.value(node, scope))
        return "open" if found is None else found

    def unary(self, node: ast.UnaryOp, scope: Scope) -> Value:
        where = scope.where(node)
        if isinstance(node.op, ast.Not):
            known = self.ev.decided(node, scope)
            if known is None:
                raise Stop(where, "a condition used as a value")
            return Literal(known)
        inner = self.value(node.operand, scope)
        if isinstance(node.op, ast.USub):
            return spread(
                lambda v: Num(arithmetic.negated(arithmetic.number(self.ev.ledger, v, where))),
                inner,
            )
        if isinstance(node.op, ast.Invert):
            return arithmetic.binary(self.ev.ledger, "Sub", constant(-1), inner, where)
        return inner

    def arithmetic(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        return arithmetic.binary(
            self.ev.ledger, type(node.op).__name__, left, right, scope.where(node)
        )

    def sequence(self, node: ast.Tuple | ast.List, scope: Scope) -> Value:
        mutable = isinstance(node, ast.List)
        packed = self.ev.packed(node.elts, scope)
        return spread(lambda given: replace(given, mutable=mutable), packed)

    def conditional(self, node: ast.IfExp, scope: Scope) -> Value:
        decided = self.ev.decided(node.test, scope)
        if decided is not None:
            return self.value(node.body if decided else node.orelse, scope)
        yes, no = self.value(node.body, scope), self.value(node.orelse, scope)
        return choose((scope.serial, id(node)), yes, no)

    def boolean(self, node: ast.BoolOp, scope: Scope) -> Value:
        """`a or b` where a constant decides; else both, as either may be the result."""
        stops = isinstance(node.op, ast.Or)
        *first, last = node.values
        result = self.value(last, scope)
        for part in reversed(first):
            decided = self.ev.decided(part, scope)
            if decided is None:
                result = choose((scope.serial, id(part)), self.value(part, scope), result)
            elif decided is stops:
                result = self.value(part, scope)
        return result

    def comparison(self, node: ast.Compare, scope: Scope) -> Value:
        known = self.ev.decided(node, scope)
        if known is None:
            raise Stop(scope.where(node), "a condition used as a value")
        return Literal(known)

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Value:
        """Unrolled over a sequence of known length, without conditions."""
        where = scope.where(node)
        inner = node.generators[0]
        if len(node.generators) > 1 or inner.ifs or not isinstance(inner.target, ast.Name):
            raise Stop(where, "a comprehension that is not followed")
        over = self.value(inner.iter, scope)
        name = inner.target.id
        if isinstance(over, Series):
            element = self.ev.ledger.element(over, Index(("comp", id(node))), where)
            return tensors.per_request(self.value(node.elt, scope.with_names({name: element})))
        if not isinstance(over, Seq):
            raise Stop(where, "a comprehension over something of unknown length")
        items = [self.value(node.elt, scope.with_names({name: v})) for v in over.items]
        return Seq(tuple(items), isinstance(node, ast.ListComp))


def _tail(series: Series, start: int, cut: bool) -> Series:
    count = series.count
    if count is not None and start:
        count = Num(simplified("-", count.node, Const(start)))
    start += series.start
    return replace(series, start=start, count=None if cut else count)


def _open_shape(tensor: Tensor, ends: list[int | str | None], where: str) -> Seq:
    """The first dimensions of a tensor whose rank is open, as far as the slice reads them."""
    last = ends[1]
    if not isinstance(last, int) or last < 0 or ends[2] is not None:
        raise Stop(where, "a slice of a shape whose rank is not known")
    return Seq(tuple(tensor.dim(i, where) for i in range(last)))


def _has_slices(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple) and any(isinstance(e, ast.Slice) for e in node.elts)


_RULES: Final[Mapping[type[ast.expr], Callable[..., Value]]] = {
    ast.Constant: Expressions.constant,
    ast.Name: Expressions.named,
    ast.Attribute: Expressions.attribute,
    ast.Subscript: Expressions.subscript,
    ast.UnaryOp: Expressions.unary,
    ast.BinOp: Expressions.arithmetic,
    ast.Tuple: Expressions.sequence,
    ast.List: Expressions.sequence,
    ast.IfExp: Expressions.conditional,
    ast.BoolOp: Expressions.boolean,
    ast.Compare: Expressions.comparison,
    ast.ListComp: Expressions.comprehension,
    ast.GeneratorExp: Expressions.comprehension,
    ast.Call: lambda self, node, scope: self.ev.call(node, scope),
}
