"""Conditions that cannot change while the config runs; all others keep both arms."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Final

from wstrace.expr.tree import Const
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.values import Literal, Num, Obj, Stop

_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[object, object], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}
_ORDER: Final[Mapping[type[ast.cmpop], Callable[[int, int], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNKNOWN: Final = object()


class Conditions:
    """Which tests only constants decide."""

    def __init__(self, ev: Evaluation) -> None:
        self.ev = ev

    def decided(self, test: ast.expr, scope: Scope) -> bool | None:
        """True or False where only constants decide, else None."""
        if isinstance(test, ast.BoolOp):
            parts = [self.decided(v, scope) for v in test.values]
            stops = isinstance(test.op, ast.Or)
            if stops in parts:
                return stops
            return None if None in parts else not stops
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decided(test.operand, scope)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self.compared(test, scope)
        if isinstance(test, ast.Name | ast.Attribute | ast.Constant):
            known = self.fixed(test, scope)
            return None if known is _UNKNOWN or isinstance(known, Obj) else bool(known)
        return None

    def compared(self, test: ast.Compare, scope: Scope) -> bool | None:
        op = type(test.ops[0])
        left = self.fixed(test.left, scope)
        right = self.fixed(test.comparators[0], scope)
        if left is _UNKNOWN or right is _UNKNOWN:
            return None
        if isinstance(left, int) and isinstance(right, int) and op in _ORDER:
            return _ORDER[op](left, right)
        if isinstance(left, Obj) or isinstance(right, Obj):
            absent = left is None or right is None
            return _COMPARE[op](1, 2) if absent and op in (ast.Is, ast.IsNot) else None
        return _COMPARE[op](left, right) if op in _COMPARE else None

    def fixed(self, node: ast.expr, scope: Scope) -> object:
        """An operand of a comparison that cannot change, or `_UNKNOWN`."""
        try:
            value = self.ev.value(node, scope)
        except Stop:
            return _UNKNOWN
        if isinstance(value, Literal) and value.fixed:
            return value.value
        if isinstance(value, Num):
            if isinstance(value.node, Const):
                return value.node.value
            known = self.ev.ledger.fixed_value(value)
            return _UNKNOWN if known is None else known
        fixed_object = isinstance(value, Obj) and value.tag == "fixed"
        return value if fixed_object else _UNKNOWN
