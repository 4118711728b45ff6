"""What one call asks of the workspace, spec by spec: dimensions and bytes, from source alone.

`survey` gives a site's bytes or nothing. Here each argument is followed by itself, so that what
is understood of a request is kept where a list of further specs is not.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from wstrace.expr import tree
from wstrace.expr.tree import FormulaError, Node, simplified
from wstrace.slicer import arithmetic
from wstrace.slicer.evaluator import Evaluator, spec_bytes
from wstrace.slicer.ledger import Ledger, SlicedLeaf
from wstrace.slicer.static.project import CallPlace, Project
from wstrace.slicer.static.source_world import SourceWorld
from wstrace.slicer.values import Obj, Opaque, Seq, Stop, Value, arms


@dataclass(frozen=True)
class SpecShape:
    """One (shape, dtype): its bytes, rounded up to 256, and its dimensions where they show."""

    bytes: Node
    dims: tuple[Node, ...] | None = None


@dataclass(frozen=True)
class Piece:
    """One argument of the call: the specs it stands for, once for each way conditions go, or
    where following it stopped."""

    text: str
    ways: tuple[tuple[SpecShape, ...], ...] = ()
    stopped: str | None = None


@dataclass(frozen=True)
class AskedSpecs:
    """A request's arguments, and the names in their formulas."""

    pieces: tuple[Piece, ...]
    leaves: dict[str, SlicedLeaf] = field(default_factory=dict)

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


def asked(project: Project, place: CallPlace, nodes: Sequence[ast.expr]) -> AskedSpecs:
    """What `nodes`, arguments of the call at `place`, ask for."""
    ledger = Ledger()
    world = SourceWorld(ledger, project)
    evaluator = Evaluator(ledger, world)
    world.attach(evaluator)
    pieces = tuple(_piece(evaluator, world, place, node) for node in nodes)
    used = {name for p in pieces for way in p.ways for s in way for name in _names(s)}
    return AskedSpecs(pieces, {name: ledger.leaves[name] for name in sorted(used)})


def _names(spec: SpecShape) -> frozenset[str]:
    return tree.names(spec.bytes).union(*(tree.names(d) for d in spec.dims or ()))


def _piece(evaluator: Evaluator, world: SourceWorld, place: CallPlace, node: ast.expr) -> Piece:
    scope = world.scope(place.module, place.source)
    where, text = scope.where(node), ast.unparse(node)
    try:
        packed = evaluator.packed([node], scope, whole=True)
        ways = [_specs(evaluator.ledger, arm, where) for arm in arms(packed)]
        return Piece(text, tuple(dict.fromkeys(ways)))
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
