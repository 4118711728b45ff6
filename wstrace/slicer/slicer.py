"""From a live get_simultaneous call to a closed formula for its bytes.

Runs in the worker's slow path. It reads source, frames and plain attributes; it runs none
of the worker's code and never raises into it. Parsed sources, call places and class checks
are cached (bounded); values are read anew for every request.
"""

from __future__ import annotations

import ast
import traceback
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wstrace.expr import tree
from wstrace.expr.expression import MAX_LENGTH
from wstrace.expr.tree import Const, Node, simplified
from wstrace.slicer import arithmetic
from wstrace.slicer.evaluator import Evaluator
from wstrace.slicer.live.world import LiveState, LiveWorld
from wstrace.slicer.provenance import Leaf, Sliced
from wstrace.slicer.scope import Scope
from wstrace.slicer.slice_state import Session
from wstrace.slicer.values import Dtype, Obj, Opaque, Seq, Stop, Value, arms

MAX_STATEMENTS = 24
Spec = tuple[Sequence[int], object]


def slice_request(
    frame: types.FrameType, specs: Sequence[Spec], max_callers: int = 4
) -> Sliced:
    """The formula of the request that `frame` is making.

    `frame` is the one that called get_simultaneous, `specs` its actual (shape, dtype)
    arguments. The result gives bytes: the sum over specs of round256(elements * itemsize).
    Checked against `specs`; nothing is raised, whatever goes wrong is in `stopped`.
    """
    session = Session()
    world = _World(session, max_callers)
    world.evaluator = Evaluator(session, world)
    try:
        return _sliced(session, world, frame, specs)
    except Stop as stop:
        _forget_way(stop)
        return Sliced(None, (), _statements(session), str(stop))
    except tree.FormulaError as error:
        return Sliced(None, (), _statements(session), error.message)
    except RecursionError:
        return Sliced(None, (), _statements(session), "the slice is nested too deeply")
    except Exception as error:
        return Sliced(None, (), (), f"internal: {type(error).__name__}: {error}"[:300])
    finally:
        world.let_go()


class _World(LiveWorld):
    """Lets go of the frames that it looked at: the evaluator's closures are cycles, as are the
    tracebacks of remembered ends, and what a frame's variables hold (a view of the arena) would
    live until the next garbage collection.
    """

    def __init__(self, session: Session, max_callers: int) -> None:
        super().__init__(session, max_callers)
        self.states: list[LiveState] = []

    def scope_of(self, frame: types.FrameType, up: int) -> tuple[Scope, ast.Call]:
        """As LiveWorld's; its state is kept in mind."""
        scope, call = super().scope_of(frame, up)
        if isinstance(scope.state, LiveState):
            self.states.append(scope.state)
        return scope, call

    def let_go(self) -> None:
        """No frame is held any more."""
        for state in self.states:
            object.__setattr__(state, "frame", None)
            state.closure.clear()
        for found in self.evaluator.memo.values():
            if isinstance(found, Stop):
                _forget_way(found)
        self.evaluator.memo.clear()


def _forget_way(error: BaseException) -> None:
    """Clear the frames that an error passed, and those of the errors before it."""
    before = [e for e in (error.__context__, error.__cause__) if e is not None]
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    error.__traceback__ = error.__context__ = error.__cause__ = None
    for earlier in before:
        _forget_way(earlier)


def _sliced(
    session: Session, world: LiveWorld, frame: types.FrameType, specs: Sequence[Spec]
) -> Sliced:
    evaluator = world.evaluator
    scope, call = world.scope_of(frame, 0)
    session.statements[scope.source.line(call)] = None
    if call.keywords:
        raise Stop(scope.where(call), "specs given as keywords")
    asked = evaluator.packed(call.args, scope, whole=True)
    where = scope.where(call)
    nodes = [request_bytes(session, arm, where) for arm in arms(asked)]
    unsettle(session, scope.source.file + scope.source.qualname)
    return checked(session, list(dict.fromkeys(nodes)), _bytes(specs))


_assumed: dict[tuple[str, str, str], int | None] = {}
_MAX_ASSUMED: Final = 4096


def unsettle(session: Session, site: str) -> None:
    """Dimensions assumed constant are compared with earlier requests of the same site; one
    that has changed is unbound from then on."""
    for name, leaf in session.leaves.items():
        if leaf.kind != "constant" or not leaf.why or leaf.value is None:
            continue
        key = (site, leaf.where, leaf.source)
        if key not in _assumed and len(_assumed) >= _MAX_ASSUMED:
            continue
        first = _assumed.setdefault(key, leaf.value)
        if first != leaf.value:
            _assumed[key] = None
            why = f"{leaf.source} is not constant: {leaf.value} here, otherwise before"
            session.leaves[name] = replace(leaf, kind="unbound", why=why)


def request_bytes(session: Session, asked: Value, where: str) -> Node:
    """Bytes of one request: each spec is rounded up to 256 on its own."""
    if not isinstance(asked, Seq):
        raise Stop(where, "the specs are not understood")
    total: Node = Const(0)
    for spec in asked.items:
        total = simplified("+", total, spec_bytes(session, spec, where))
    return total


def spec_bytes(session: Session, spec: Value, where: str) -> Node:
    """Bytes of one (shape, dtype)."""
    if isinstance(spec, Obj) and isinstance(spec.handle, Opaque):
        return arithmetic.opaque_leaf(session, spec, where, "_bytes").node
    if not isinstance(spec, Seq) or len(spec.items) != 2:
        raise Stop(where, "a spec is not a (shape, dtype) that is understood")
    shape, dtype = spec.items
    size = itemsize(session, dtype, where)
    if isinstance(shape, Obj) and isinstance(shape.handle, Opaque):
        elements = arithmetic.opaque_leaf(session, shape, where, "_elements").node
        return simplified("round256", tree.product([elements, size]))
    if not isinstance(shape, Seq):
        raise Stop(where, "a shape is not a tuple that is understood")
    sizes = [arithmetic.number(session, size, where) for size in shape.items]
    return simplified("round256", tree.product([*sizes, size]))


def itemsize(session: Session, dtype: Value, where: str) -> Node:
    """Bytes of one element."""
    if isinstance(dtype, Obj) and isinstance(dtype.handle, Opaque):
        return arithmetic.opaque_leaf(session, dtype, where, "_itemsize").node
    if not isinstance(dtype, Dtype) or dtype.itemsize is None:
        raise Stop(where, "a dtype is not understood")
    return dtype.itemsize


def _bytes(specs: Sequence[Spec]) -> int:
    total = 0
    for shape, dtype in specs:
        size = int(dtype.itemsize)  # type: ignore[attr-defined]
        for dim in shape:
            size *= int(dim)
        total += -(-size // 256) * 256
    return total


def checked(session: Session, nodes: list[Node], actual: int) -> Sliced:
    """The result, once one arm gives exactly the bytes that were asked."""
    values = {n: leaf.value for n, leaf in session.leaves.items() if leaf.value is not None}
    given = [tree.evaluate(n, values) for n in nodes if tree.names(n) <= set(values)]
    statements = _statements(session)
    if not given:
        missing = sorted(frozenset[str]().union(*(tree.names(n) for n in nodes)) - set(values))
        return Sliced(None, (), statements, f"self-check: no value for {', '.join(missing)}")
    if actual not in given:
        worst = max(given)
        stopped = f"self-check: formula gives {worst}, request was {actual}"
        return Sliced(None, (), statements, stopped)
    return _closed(session, nodes, statements)


def _closed(session: Session, nodes: list[Node], statements: tuple[str, ...]) -> Sliced:
    whole = simplified("max", *nodes)
    used = sorted(tree.names(whole))
    leaves = tuple(session.leaves[n] for n in used)
    text = tree.text(whole)
    if len(text) > MAX_LENGTH:
        return Sliced(None, (), statements, f"the formula has {len(text)} characters")
    every = tuple(tree.text(n) for n in nodes) if len(nodes) > 1 else ()
    return Sliced(text, leaves, statements, _unbound(leaves), every)


def _unbound(leaves: Sequence[Leaf]) -> str | None:
    return next((f"{leaf.name}: {leaf.why}" for leaf in leaves if leaf.kind == "unbound"), None)


def _statements(session: Session) -> tuple[str, ...]:
    return tuple(session.statements)[:MAX_STATEMENTS]
