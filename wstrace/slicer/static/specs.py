"""What one call asks of the workspace, spec by spec: dimensions and bytes, from source alone.

`survey` gives a site's bytes or nothing. Here each argument is followed by itself, so that what
is understood of a request is kept where a list of further specs is not.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from wstrace.expr import tree
from wstrace.expr.tree import FormulaError, Node, simplified
from wstrace.slicer import arithmetic
from wstrace.slicer.evaluator import Evaluator, spec_bytes
from wstrace.slicer.ledger import Ledger, SlicedLeaf
from wstrace.slicer.scope import Scope
from wstrace.slicer.static.project import CallPlace, Project
from wstrace.slicer.static.source_world import SourceWorld
from wstrace.slicer.syntax import FunctionSource
from wstrace.slicer.values import Obj, Opaque, Seq, Stop, Value, arms_by_condition

Taken = frozenset[tuple[Hashable, bool]]
"""Conditions of a slice, and the side that was taken of each."""


@dataclass(frozen=True)
class SpecShape:
    """One (shape, dtype): its bytes, rounded up to 256, and its dimensions where they show."""

    bytes: Node
    dims: tuple[Node, ...] | None = None


@dataclass(frozen=True)
class Piece:
    """One argument of the call: the specs it stands for, once for each way conditions go, or
    where following it stopped. `taken` are the sides of conditions for each of `ways`."""

    text: str
    ways: tuple[tuple[SpecShape, ...], ...] = ()
    stopped: str | None = None
    taken: tuple[Taken, ...] = ()


@dataclass(frozen=True)
class AskedSpecs:
    """A request's arguments, and the names in their formulas. `followed` are the functions that
    the slice went through, `conditions` where its conditions stand."""

    pieces: tuple[Piece, ...]
    leaves: dict[str, SlicedLeaf] = field(default_factory=dict)
    followed: tuple[FunctionSource, ...] = ()
    conditions: dict[Hashable, tuple[FunctionSource, ast.AST]] = field(default_factory=dict)

    @property
    def stopped(self) -> str | None:
        """Where the first argument that is not understood stopped."""
        return next((p.stopped for p in self.pieces if p.stopped), None)

    def bytes(self) -> Node | None:
        """The largest request, over what is understood; None where nothing is."""
        sizes = [_largest(p) for p in self.pieces if p.ways]
        if not sizes:
            return None
        total = sizes[0]
        for size in sizes[1:]:
            total = simplified("+", total, size)
        return total


def _largest(piece: Piece) -> Node:
    each = [_total(way) for way in piece.ways]
    return simplified("max", *dict.fromkeys(each))


def _total(specs: Sequence[SpecShape]) -> Node:
    total: Node = tree.Const(0)
    for spec in specs:
        total = simplified("+", total, spec.bytes)
    return total


def asked(
    project: Project,
    place: CallPlace,
    nodes: Sequence[ast.expr],
    caller: CallPlace | None = None,
) -> AskedSpecs:
    """What `nodes`, arguments of the call at `place`, ask for: where `caller` calls the
    function that they stand in, else wherever it is called."""
    ledger = Ledger()
    world = SourceWorld(ledger, project)
    evaluator = Evaluator(ledger, world)
    world.attach(evaluator)
    scope = world.scope(place.module, place.source)
    if caller is not None:
        try:
            scope = world.parameters.entered(scope, caller)
        except Stop as stop:
            return AskedSpecs((Piece(ast.unparse(caller.call), stopped=str(stop)),))
    pieces = tuple(_piece(evaluator, scope, node) for node in nodes)
    used = {name for p in pieces for way in p.ways for s in way for name in _names(s)}
    followed = tuple(dict.fromkeys(world.parameters.followed))
    leaves = {name: ledger.leaves[name] for name in sorted(used)}
    return AskedSpecs(pieces, leaves, followed, _conditions(pieces, followed))


def _conditions(
    pieces: Sequence[Piece], followed: Sequence[FunctionSource]
) -> dict[Hashable, tuple[FunctionSource, ast.AST]]:
    """Where the conditions that the pieces' ways took stand: a key ends with a node's id."""
    keys = {on for piece in pieces for taken in piece.taken for on, _ in taken}
    if not keys:
        return {}
    nodes = {id(n): (source, n) for source in followed for n in ast.walk(source.node)}
    found = ((on, nodes.get(on[-1])) for on in keys if isinstance(on, tuple))
    return {on: place for on, place in found if place is not None}


def _names(spec: SpecShape) -> frozenset[str]:
    return tree.names(spec.bytes).union(*(tree.names(d) for d in spec.dims or ()))


def _piece(evaluator: Evaluator, scope: Scope, node: ast.expr) -> Piece:
    where, text = scope.where(node), ast.unparse(node)
    try:
        packed = evaluator.packed([node], scope, whole=True)
        each = [
            (taken, _specs(evaluator.ledger, arm, where))
            for taken, arm in arms_by_condition(packed)
        ]
        return Piece(text, tuple(w for _, w in each), taken=tuple(t for t, _ in each))
    except (Stop, FormulaError) as stop:
        return Piece(text, stopped=str(stop).splitlines()[0])
    except RecursionError:
        return Piece(text, stopped=f"{where}: nested too deeply")


def _specs(ledger: Ledger, arm: Value, where: str) -> tuple[SpecShape, ...]:
    if not isinstance(arm, Seq):
        raise Stop(where, "the specs are not understood")
    return tuple(_spec(ledger, item, where) for item in arm.items)


def _spec(ledger: Ledger, item: Value, where: str) -> SpecShape:
    size = spec_bytes(ledger, item, where)
    shape = item.items[0] if isinstance(item, Seq) and item.items else None
    if not isinstance(shape, Seq) or _opaque(item):
        return SpecShape(size)
    return SpecShape(size, tuple(arithmetic.number(ledger, d, where) for d in shape.items))


def _opaque(item: Value) -> bool:
    return isinstance(item, Obj) and isinstance(item.handle, Opaque)
