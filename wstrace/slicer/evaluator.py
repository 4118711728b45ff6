"""The evaluator: a worker's source, evaluated symbolically. Nothing of theirs is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from wstrace.expr import tree
from wstrace.expr.tree import Const, Node, simplified
from wstrace.slicer import arithmetic
from wstrace.slicer.callees import Callees
from wstrace.slicer.conditions import Conditions
from wstrace.slicer.definitions import Definitions
from wstrace.slicer.expressions import Expressions
from wstrace.slicer.ledger import Ledger
from wstrace.slicer.scope import Scope, World
from wstrace.slicer.syntax import Block, CodePoint, FunctionSource
from wstrace.slicer.values import Dtype, Obj, Opaque, Seq, Stop, Value, arms


class Evaluator:
    """Owns the four parts and hands each question to the one that answers it.

    Expressions, the definitions that reach a name, conditions that constants decide, and
    callees. Each part knows only this object (as `scope.Evaluation`), never another part.
    """

    def __init__(self, ledger: Ledger, world: World) -> None:
        self.ledger = ledger
        self.world = world
        self.expressions = Expressions(self)
        self.definitions = Definitions(self)
        self.conditions = Conditions(self)
        self.callees = Callees(self)

    def forget(self) -> None:
        """Let go of remembered values and ends: what they hold are cycles, and live on until
        the next garbage collection."""
        self.definitions.forget()

    def request(self, call: ast.Call, scope: Scope) -> list[Node]:
        """Bytes of the request that `call` makes: a formula for each way conditions go."""
        asked = self.packed(call.args, scope, whole=True)
        where = scope.where(call)
        nodes = [_request_bytes(self.ledger, arm, where) for arm in arms(asked)]
        return list(dict.fromkeys(nodes))

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """See `Evaluation`, as for every method here."""
        return self.expressions.value(node, scope)

    def member(self, owner: Value, name: str, where: str) -> Value:
        return self.expressions.member(owner, name, where)

    def part(self, value: Value, index: int, where: str) -> Value:
        return self.expressions.part(value, index, where)

    def name(self, scope: Scope, name: str, point: CodePoint, where: str) -> Value:
        return self.definitions.name(scope, name, point, where)

    def decided(self, test: ast.expr, scope: Scope) -> bool | None:
        return self.conditions.decided(test, scope)

    def packed(self, nodes: Sequence[ast.expr], scope: Scope, whole: bool = False) -> Value:
        return self.callees.packed(nodes, scope, whole)

    def call(self, node: ast.Call, scope: Scope) -> Value:
        return self.callees.call(node, scope)

    def arguments(
        self,
        source: FunctionSource,
        first: Sequence[Value],
        node: ast.Call,
        scope: Scope,
    ) -> dict[str, Callable[[], Value]]:
        return self.callees.arguments(source, first, node, scope)

    def returned(self, scope: Scope, block: Block, where: str) -> Value:
        return self.callees.returned(scope, block, where)


def _request_bytes(ledger: Ledger, asked: Value, where: str) -> Node:
    """Bytes of one request: each spec is rounded up to 256 on its own."""
    if not isinstance(asked, Seq):
        raise Stop(where, "the specs are not understood")
    total: Node = Const(0)
    for spec in asked.items:
        total = simplified("+", total, spec_bytes(ledger, spec, where))
    return total


def spec_bytes(ledger: Ledger, spec: Value, where: str) -> Node:
    """Bytes of one (shape, dtype), rounded up to 256."""
    if isinstance(spec, Obj) and isinstance(spec.handle, Opaque):
        return arithmetic.opaque_leaf(ledger, spec, where, "_bytes").node
    if not isinstance(spec, Seq) or len(spec.items) != 2:
        raise Stop(where, "a spec is not a (shape, dtype) that is understood")
    shape, dtype = spec.items
    size = _itemsize(ledger, dtype, where)
    if isinstance(shape, Obj) and isinstance(shape.handle, Opaque):
        elements = arithmetic.opaque_leaf(ledger, shape, where, "_elements").node
        return simplified("round256", tree.product([elements, size]))
    if not isinstance(shape, Seq):
        raise Stop(where, "a shape is not a tuple that is understood")
    sizes = [arithmetic.number(ledger, size, where) for size in shape.items]
    return simplified("round256", tree.product([*sizes, size]))


def _itemsize(ledger: Ledger, dtype: Value, where: str) -> Node:
    """Bytes of one element."""
    if isinstance(dtype, Obj) and isinstance(dtype.handle, Opaque):
        return arithmetic.opaque_leaf(ledger, dtype, where, "_itemsize").node
    if not isinstance(dtype, Dtype) or dtype.itemsize is None:
        raise Stop(where, "a dtype is not understood")
    return dtype.itemsize
